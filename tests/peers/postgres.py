"""PostgreSQL's own programs, from Debian's package: where they are, and how they get there.

``python tests/peers/postgres.py`` (a part of ``make peers``) installs the package when they are
missing, which needs root and apt; where that is not possible it says so and ends well, and the
tests that need them are skipped with the same reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL_TIMEOUT = 500.0
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


def install() -> None:
    """Raises CalledProcessError or TimeoutExpired."""
    # Its installation would start a server of its own; the tests start theirs.
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["-qq", "-y", "-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Use-Pty=0"]
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", *quiet, "--no-install-recommends", "postgresql"],
    ):
        subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=INSTALL_TIMEOUT,
        )


def main() -> int:
    if programs() is not None:
        return 0
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        print(f"{MISSING}; the tests that need it are skipped.")
        return 0
    print("Installing PostgreSQL for the tests …", flush=True)
    try:
        install()
    except (OSError, subprocess.SubprocessError) as problem:
        print(f"Could not install PostgreSQL: {problem}", file=sys.stderr)
        return 1
    return 0 if programs() is not None else 1


if __name__ == "__main__":
    sys.exit(main())
