"""A configuration in which servers on this machine may be added: a rule of the operator's.

Nothing in these tests is about approvals, so the policies that ask are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

RULE = """\
apiVersion: sidecar/v1
kind: Policy
name: lab
rules:
  - id: this-machine
    on: connect
    effect: allow
    when: addresses.size() > 0 && addresses.all(a, a.class == "loopback")
    message: '"the servers of this test are on this machine"'
"""


def lab(folder: Path, *, rules: str = "", **more: Any) -> dict[str, Any]:
    """Settings of a sidecar; ``folder`` keeps the rule, and ``rules`` beside it."""
    file = folder / "lab.yaml"
    file.write_text(RULE + rules)
    return {"policies": [str(file)], "policy": {"shipped": ["egress"]}, **more}
