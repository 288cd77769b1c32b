"""What the tests of egress share: answers, policies, and what was published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar.config import ServerConfig
from sidecar.egress.check import EgressCheck, Never
from sidecar.events import Bus, Decided
from sidecar.policy import load
from sidecar.policy.guard import Guarded
from sidecar.ports.resolver import Unresolved

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "cases.jsonl").read_text("utf-8").splitlines()
]
RUNTIME = ServerConfig("added", "http", url="https://added.example.com/mcp", runtime=True)


class Answers:
    """A resolver that answers from a table, and remembers what it was asked."""

    def __init__(self, table: Mapping[str, Sequence[str]], second: Any = None) -> None:
        self.table = dict(table)
        self.second = dict(second or {})
        self.asked: list[str] = []

    async def addresses(self, host: str) -> Sequence[str]:
        name = host.removesuffix(".")
        later = name in self.second and any(name == asked.rstrip(".") for asked in self.asked)
        self.asked.append(host)
        found = (self.second if later else self.table).get(name)
        if not found:
            raise Unresolved(name)
        return found


def policy(folder: Path, rules: str = "", *, shipped: Sequence[str] = ()) -> Guarded:
    """The policy of ``rules``, YAML of a list, alone or beside shipped ones."""
    if not rules:
        return load((), shipped=shipped)
    file = folder / "rules.yaml"
    indented = "\n".join("  " + line for line in rules.strip("\n").splitlines())
    file.write_text(f"apiVersion: sidecar/v1\nkind: Policy\nname: op\nrules:\n{indented}\n")
    return load([file], shipped=shipped)


class Bench:
    """A check, its resolver, and every decision that it published."""

    def __init__(
        self,
        revision: Guarded,
        table: Mapping[str, Sequence[str]] | None = None,
        *,
        resolver: Any = None,
        never: Never | None = None,
    ) -> None:
        self.policy = revision
        self.resolver = resolver if resolver is not None else Answers(table or {})
        self.bus = Bus()
        self.decided: list[Decided] = []
        self.bus.listen(Decided, self.decided.append)
        self.check = EgressCheck(lambda: self.policy, self.resolver, self.bus, proxy_never=never)
