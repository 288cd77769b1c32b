"""Sees that files changed: edited, replaced, or swapped by Kubernetes' ConfigMap symlinks.

Polling is the one way that sees all three, on every file system (inotify follows the inode, so
a swapped symlink is missed).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

INTERVAL = 0.5
"""Seconds between looks. A change is in force after two of them and the time that loading takes,
which is to be less than two seconds."""
MOST_BYTES: Final = 8 << 20
"""Of a larger file the beginning counts, its size, and when it was written."""


def digest(paths: Sequence[Path]) -> bytes:
    """What the files hold now; a missing one counts as its absence, not as an error."""
    seen = hashlib.sha256()
    for path in paths:
        try:
            seen.update(b"+" + _content(path))
        except OSError:
            seen.update(b"-")
    return seen.digest()


def _content(path: Path) -> bytes:
    """The sha256 of a file.

    Raises:
        OSError: it is not there, or is a pipe or a device, of which reading may never end.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        about = os.fstat(stream.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError("is not a file")
        seen = hashlib.sha256(stream.read(MOST_BYTES))
        if about.st_size > MOST_BYTES:
            seen.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return seen.digest()


class FileWatch:
    """``changed`` returns once the files differ from what they were, and have settled.

    Settled: two looks in a row are the same, so that a file is not read while it is written.
    """

    def __init__(self, paths: Sequence[Path], interval: float = INTERVAL) -> None:
        self._paths = tuple(paths)
        self._interval = interval
        self._known = digest(self._paths)

    async def changed(self) -> None:
        """Wait for a change; may be called again and again."""
        before = self._known
        while True:
            await asyncio.sleep(self._interval)
            now = await asyncio.to_thread(digest, self._paths)
            if now == before != self._known:
                self._known = now
                return
            before = now
