"""What waits to be written to an editor: in order, bounded, nothing left out."""

from __future__ import annotations

import asyncio
from collections import deque

from sidecar.downstream.pipes import Write

__all__ = ["Outbox"]


class Outbox:
    """``write_all`` runs beside; ``finish`` lets it return once all is written."""

    def __init__(self, most: int) -> None:
        """``most`` is how many bytes may wait."""
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._finishing = False

    def push(self, message: bytes) -> bool:
        """Send it as soon as there is room; ``False``: too much waits, and all of it is dropped,
        since what is left would be a text with holes. Never blocks."""
        self._waiting.append(message)
        self._size += len(message)
        self._wake.set()
        if self._size <= self._most:
            return True
        self._waiting.clear()
        self._size = 0
        return False

    def finish(self) -> None:
        """Nothing more comes."""
        self._finishing = True
        self._wake.set()

    async def write_all(self, write: Write) -> None:
        """Write what comes, until it has an end. Raises what ``write`` does."""
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                self._size -= len(message)
                await write(message)
            if self._finishing:
                return
            self._wake.clear()
            await self._wake.wait()
