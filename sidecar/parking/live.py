"""The parked calls for which this node holds requests open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from sidecar.model import Fields
from sidecar.parking.record import Parked


class Live:
    """One of them: the record as it was last seen, and who waits for it here."""

    __slots__ = ("_waiters", "asking", "holders", "outcome", "parked")

    def __init__(self, parked: Parked) -> None:
        self.parked = parked
        self.holders = 0
        self.outcome: Fields | BaseException | None = None
        """What became of the call that took it here."""
        self.asking = False
        """Whether the client of somebody who waits here is asked."""
        self._waiters: set[asyncio.Future[None]] = set()

    def saw(self, parked: Parked) -> None:
        """The record has changed."""
        self.parked = parked
        self.wake()

    def ended(self, outcome: Fields | BaseException) -> None:
        """The call that took it has ended."""
        self.outcome = outcome
        self.wake()

    def wake(self) -> None:
        """Have everybody look again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def change(self, timeout: float) -> None:
        """Return when somebody should look again, or after so many seconds."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(max(timeout, 0.0), _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Lives:
    """All of them, by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Live] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Live]:
        return iter(tuple(self._by_id.values()))

    def enter(self, parked: Parked) -> Live:
        """One more waits for it. ``leave`` is owed."""
        live = self._by_id.get(parked.id)
        if live is None:
            live = self._by_id[parked.id] = Live(parked)
        live.holders += 1
        return live

    def leave(self, live: Live) -> bool:
        """One less; whether it was the last."""
        live.holders -= 1
        if live.holders > 0:
            return False
        if self._by_id.get(live.parked.id) is live:
            del self._by_id[live.parked.id]
        return True

    def held(self, id: str) -> bool:
        """Whether anybody waits for it here."""
        return id in self._by_id

    def saw(self, parked: Parked) -> None:
        """The record has changed."""
        live = self._by_id.get(parked.id)
        if live is not None:
            live.saw(parked)

    def wake(self) -> None:
        """Have everybody look again."""
        for live in self:
            live.wake()
