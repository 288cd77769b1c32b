"""Which processes use a directory: as the kernel tells, not as they do.

Sources: proc(5) ``/proc/pid/cwd``, ``fd``, ``maps``.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import re
from pathlib import Path

__all__ = ["Usage"]

_MAPS = 16 << 20
_SHARED = re.compile(rb"^\S+ .w.s \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
"""A mapping that writes to its file."""


class Usage:
    """What every other process had open at one moment.

    Processes whose user is another are only seen with the right to trace them; outside Linux
    nothing is seen.
    """

    def __init__(self) -> None:
        found: dict[str, int] = {}
        us = str(os.getpid())
        with contextlib.suppress(OSError):
            for name in os.listdir("/proc"):
                if name.isdigit() and name != us:
                    for path in _paths(f"/proc/{name}"):
                        found.setdefault(path, int(name))
        self._paths = sorted(found)
        self._pids = found

    def of(self, directory: Path) -> int | None:
        """A process that uses something at or below the directory, or ``None``."""
        text = str(directory)
        for wanted in (text, text + "/"):
            at = bisect.bisect_left(self._paths, wanted)
            if at < len(self._paths):
                path = self._paths[at]
                if path == text or path.startswith(text + "/"):
                    return self._pids[path]
        return None


def _paths(process: str) -> set[str]:
    """Where a process is, what it has open, and what it can write to without having it open."""
    found = set()
    for name in ("cwd", "root"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"{process}/{name}"))
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"{process}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"{process}/fd/{fd}"))
    with contextlib.suppress(OSError), open(f"{process}/maps", "rb") as maps:
        found.update(map(os.fsdecode, _SHARED.findall(maps.read(_MAPS))))
    return {path for path in found if path.startswith("/") and path != "/"}
