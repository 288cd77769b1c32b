"""Sees that files changed: edited, replaced, or swapped by Kubernetes' ConfigMap symlinks.

Polling is the one way that sees all three, on every file system (inotify follows the inode, so
a swapped symlink is missed).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

INTERVAL = 2.0
"""Seconds between looks."""


def digest(paths: Sequence[Path]) -> bytes:
    """What the files hold now; a missing one counts as its absence, not as an error."""
    seen = hashlib.sha256()
    for path in paths:
        try:
            content: bytes | None = path.read_bytes()
        except OSError:
            content = None
        seen.update(b"-" if content is None else b"+" + hashlib.sha256(content).digest())
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
