"""PostgreSQL's own programs, from Debian's package.

``python -m tests.peers.postgres`` (a part of ``make peers``) installs it when they are missing.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.peers.debian import ensure

MISSING = "PostgreSQL missing: install Debian's package postgresql, or run `make peers` as root"


def programs() -> Path | None:
    """The folder of ``initdb`` and ``postgres``, the newest one."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: float(path.parts[-3]) if path.parts[-3].replace(".", "").isdigit() else 0,
    )
    if found:
        return found[-1].parent
    beside = shutil.which("initdb")
    return Path(beside).resolve().parent if beside else None


def no_server_of_its_own() -> None:
    """The installation would start one; the tests start theirs."""
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")


if __name__ == "__main__":
    sys.exit(ensure("PostgreSQL", ("postgresql",), programs, MISSING, no_server_of_its_own))
