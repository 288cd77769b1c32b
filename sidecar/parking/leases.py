"""Signs of life: what this node runs stays ``taken`` for as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sidecar.parking.book import Book, Missing
from sidecar.parking.chores import log
from sidecar.parking.machine import Renewed, WrongState
from sidecar.ports.store import StoreError

LEASE: Final = 20.0
"""Seconds after which a node that has not said otherwise counts as gone."""


class Leases:
    """One task renews them all."""

    def __init__(
        self, book: Book, node: str, clock: Callable[[], float], *, length: float = LEASE
    ) -> None:
        self._book = book
        self._node = node
        self._clock = clock
        self._length = length
        self._held: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def until(self) -> float:
        """When a lease that begins now ends."""
        return self._clock() + self._length

    def hold(self, id: str) -> None:
        """Renew this one from now on."""
        self._held.add(id)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._renew(), name="leases")

    def let_go(self, id: str) -> None:
        """Renew it no more."""
        self._held.discard(id)

    async def close(self) -> None:
        """Renew none. Idempotent."""
        self._held.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(self._length / 4)
            for id in tuple(self._held):
                try:
                    await self._book.change(id, Renewed(self._node, self.until()))
                except (WrongState, Missing):
                    self._held.discard(id)
                except StoreError as error:
                    log.warning("what runs cannot be kept alive in the store: %s", error)
