"""iptables, from Debian's package: it is installed where that is possible.

``python -m tests.peers.iptables`` (a part of ``make peers``).
"""

from __future__ import annotations

import shutil
import sys

from tests.peers import debian

MISSING = "iptables missing: install Debian's package iptables"


def program() -> str | None:
    """The path of ``iptables-restore``."""
    return shutil.which("iptables-restore", path="/usr/sbin:/sbin:/usr/bin:/bin")


if __name__ == "__main__":
    sys.exit(debian.ensure("iptables", ("iptables",), program, MISSING))
