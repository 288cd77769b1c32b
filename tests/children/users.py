"""A sidecar that starts as it would in a pod: root with a handful of capabilities, a worker that
is not root, and children that are somebody else again."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER, CHILD = 10001, 10002
SIX = ("chown", "dac_override", "fowner", "kill", "setgid", "setuid")
SEVEN = (*SIX, "setpcap")
_SETPRIV = "/usr/bin/setpriv"


def why_not() -> str:
    """Why such a process cannot be had here; empty when it can."""
    if sys.platform != "linux":
        return "capabilities are Linux's"
    if os.geteuid() != 0:
        return "only root can become somebody else"
    if not Path(_SETPRIV).exists():
        return "setpriv is not installed"
    done = subprocess.run(
        [*limited(SEVEN), "grep", "^CapEff", "/proc/self/status"],
        capture_output=True,
        text=True,
        check=False,
    )
    if int(done.stdout.split()[1] if done.returncode == 0 else "0", 16) != mask(SEVEN):
        return "this root has not the capabilities that it takes"
    return "" if python() else "no Python can be run by another user"


@functools.cache
def python() -> str:
    """A Python that another user can run: this one, or the system's; empty for none."""
    for path in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        # By way of a shell: what setpriv itself starts may be found with root's rights.
        command = [_SETPRIV, "--reuid", str(CHILD), "--clear-groups", "sh", "-c", f"{path} -c ''"]
        done = subprocess.run(command, cwd="/", capture_output=True, check=False)
        if done.returncode == 0:
            return path
    return ""


_NUMBERS = {
    "chown": 0, "dac_override": 1, "fowner": 3, "kill": 5, "setgid": 6, "setuid": 7, "setpcap": 8,
}  # fmt: skip


def mask(names: tuple[str, ...]) -> int:
    return sum(1 << _NUMBERS[name] for name in names)


def limited(names: tuple[str, ...]) -> list[str]:
    """A prefix for a program: root with these capabilities, and no others to be had."""
    bounding = ",".join(["-all", *[f"+{name}" for name in names]])
    return [_SETPRIV, f"--bounding-set={bounding}", "--inh-caps=-all", "--"]


REASON = why_not()
needs_users = pytest.mark.skipif(bool(REASON), reason=REASON)
