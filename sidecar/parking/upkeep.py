"""What time does to parked calls, and how many are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sidecar.parking.book import KEPT, Book, Missing
from sidecar.parking.chores import log
from sidecar.parking.machine import Elapsed, WrongState
from sidecar.ports.store import StoreError

LOOK: Final = 5.0
"""Seconds between two looks at most."""
_SOON: Final = 0.02
_AT_ONCE: Final = 500


class Upkeep:
    """``start`` begins it. Every node does it: of two, one finds that it is done."""

    def __init__(self, book: Book, clock: Callable[[], float], *, kept: int = KEPT) -> None:
        self._book = book
        self._clock = clock
        self._kept = kept
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="parked calls")

    async def close(self) -> None:
        """End. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.once()
            except StoreError as error:
                log.warning("parked calls cannot be looked after: %s", error)
                await asyncio.sleep(LOOK)
            wait = self._book.index.next_due() - self._clock()
            await asyncio.sleep(min(max(wait, _SOON), LOOK))

    async def once(self) -> None:
        """Have what is due expire, and forget what is too old."""
        index = self._book.index
        due = index.due(self._clock(), _AT_ONCE)
        for n, id in enumerate(due):
            try:
                await self._book.change(id, Elapsed())
            except Missing:
                index.drop(id)
            except WrongState as error:
                log.debug("%s: %s", id, error)
            except StoreError:
                for left in due[n:]:
                    index.look_again(left, self._clock() + LOOK)
                raise
        for id in index.oldest_ended(self._kept)[:_AT_ONCE]:
            await self._book.forget(id)
