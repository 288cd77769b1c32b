"""How long one request is held open, and what its client hears meanwhile."""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.model import Caller
from sidecar.parking.record import Parked, State

PROGRESS: Final = 10.0
"""Seconds between two signs to a client that its request is still held."""
SPARE: Final = 0.25
"""Seconds before a caller's deadline in which the poll answer still reaches it."""


class Patience:
    """One request's."""

    def __init__(self, caller: Caller, hold: float, forever: bool) -> None:
        """``hold`` is in seconds; ``forever`` is for who has to have an answer."""
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        now = self._loop.time()
        self._until = float("inf") if forever else now + hold
        if caller.deadline is not None:
            self._until = min(self._until, caller.deadline - SPARE)
        self._next = now
        self._times = 0

    @property
    def over(self) -> bool:
        """Whether it is time to be told to call again."""
        return self._loop.time() >= self._until

    def next(self) -> float:
        """Seconds until there is something to do."""
        return min(self._until, self._next) - self._loop.time()

    def progress(self, parked: Parked) -> None:
        """Tell a client that wants to know that the request is alive, now and then."""
        now = self._loop.time()
        if now < self._next:
            return
        self._next = now + PROGRESS
        self._times += 1
        if self._caller.progress is None:
            return
        waits = parked.state is State.WAITING
        what = "waiting for a person's approval" if waits else "approved; the call is running"
        # It has to grow each time, and the server's own progress comes after it (MCP, progress).
        self._caller.notify(
            "notifications/progress",
            {
                "progressToken": self._caller.progress,
                "progress": self._times * 1e-6,
                "message": f"{what} (id {parked.id})",
            },
        )
