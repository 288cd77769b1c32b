"""What tests need of Debian's packages: installed where that is possible, or told and left out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

INSTALL_TIMEOUT = 500.0


def install(*packages: str) -> None:
    """Raises CalledProcessError or TimeoutExpired."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["-qq", "-y", "-o", "Dpkg::Options::=--force-confold", "-o", "Dpkg::Use-Pty=0"]
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", *quiet, "--no-install-recommends", *packages],
    ):
        subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=INSTALL_TIMEOUT,
        )


def ensure(
    name: str,
    packages: tuple[str, ...],
    there: Callable[[], object],
    missing: str,
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """The exit status of a script that sees to it that something is ``there``.

    Where it cannot be installed, which needs root and apt, that is told, and well: tests are then
    skipped with ``missing``. ``prepare`` is called before an installation.
    """
    if there() is not None:
        return 0
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        print(f"{missing}; the tests that need it are skipped.")
        return 0
    print(f"Installing {name} for the tests …", flush=True)
    try:
        prepare()
        install(*packages)
    except (OSError, subprocess.SubprocessError) as problem:
        print(f"Could not install {name}: {problem}", file=sys.stderr)
        return 1
    return 0 if there() is not None else 1
