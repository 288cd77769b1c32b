"""How many files may be open at once: each connection is one, and a sidecar has many.

Most systems give a process 1,024 and let it take more. We take more; what we start gets what we
were given, since old programs select(2) on what they open, or close every number there could be.

Sources: getrlimit(2), prlimit(1).
"""

from __future__ import annotations

import contextlib
import os
import resource

MOST = 65_536
"""What we take, where the system lets us."""
_PROGRAMS = ("/usr/bin/prlimit", "/bin/prlimit")

_given: tuple[int, int] | None = None


def take() -> int:
    """Raise our own limit as far as we may; what it is now. Idempotent."""
    global _given  # noqa: PLW0603
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limit()
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _given = _given or (soft, hard)
    return limit()


def limit() -> int:
    """Files that may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def prefix() -> tuple[str, ...]:
    """What has a command started with the limit that we were given; empty where it has it anyway,
    or there is no program for it (then ``give_back``)."""
    if _given is None:
        return ()
    soft, hard = (_number(value) for value in _given)
    return next(
        ((path, f"--nofile={soft}:{hard}", "--") for path in _PROGRAMS if os.path.exists(path)), ()
    )


def give_back(pid: int) -> None:
    """The same for a process that runs already, if it is ours."""
    if _given is not None and hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _given)


def _number(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
