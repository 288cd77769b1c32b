"""How many servers are being connected at once: one that takes the connection and says nothing
holds a file for as long as an attempt lasts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

log = logging.getLogger("sidecar.upstream")

LEAST = 64
SHARE = 2
"""One file of so many may be that of an attempt; the others are for what works."""


class Attempts:
    """Turns for those that were added at run time, of which there may be many."""

    def __init__(self, files: int) -> None:
        """``files`` is how many may be open at once."""
        self.most = max(LEAST, files // SHARE)
        self._files = files
        self._turns = asyncio.Semaphore(self.most)
        self._told = False

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Held while an attempt runs; first come, first served."""
        if self._turns.locked() and not self._told:
            self._told = True
            log.warning(
                "%d servers are being connected at once and others wait for a turn, because only "
                "%d files may be open; raise that limit (LimitNOFILE, ulimit -n), or remove "
                "servers that never answer",
                self.most,
                self._files,
            )
        async with self._turns:
            yield
