"""What becomes of what waits, or is approved, when the world around it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from sidecar.model import Tool
from sidecar.parking.machine import Event, Removed, Revoked, Superseded, Voided
from sidecar.parking.record import Parked, State
from sidecar.parking.steps import Steps

_TOGETHER: Final = 32


class InFlight:
    """Each of these looks at all that is open and returns at once; the steps follow."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def _each(self, why: Callable[[Parked], Event | None]) -> None:
        """Take the step that ``why`` gives for each that is unanswered or unused, in order."""
        steps = [
            (row.parked.id, event)
            for row in self._steps.book.index.still_open()
            if row.parked.state is not State.TAKEN and (event := why(row.parked)) is not None
        ]
        if steps:
            self._steps.chores.start("what happens to parked calls", self._take(steps))

    async def _take(self, steps: Sequence[tuple[str, Event]]) -> None:
        # A few at a time: there may be many, and whoever waits for an answer comes in between.
        for at in range(0, len(steps), _TOGETHER):
            together = steps[at : at + _TOGETHER]
            await asyncio.gather(*(self._steps.did(id, event) for id, event in together))

    def redefined(self, server: str, definition: Callable[[str, str], Tool | None]) -> None:
        """A server lists something else: what was asked for may be another thing now."""

        def why(parked: Parked) -> Event | None:
            if parked.server != server or not parked.definition:
                return None
            tool = definition(server, parked.upstream_name)
            if tool is None or tool.digest == parked.definition:
                return None
            return Superseded("the tool's definition has changed")

        self._each(why)

    def removed(self, server: str) -> None:
        """A server is gone for good: what waits for it is lost, what is approved void."""
        gone = Removed("the server was removed")
        self._each(lambda parked: gone if parked.server == server else None)

    def revoked(self, principal: str) -> None:
        """A principal may not call any more: what it asked for is cancelled."""
        revoked = Revoked("the caller's token was revoked")
        self._each(lambda parked: revoked if parked.principal == principal else None)

    def reloaded(self, revision: str) -> None:
        """The policies are others now: what was approved under those before is void."""
        void = Voided("the policies have changed since it was approved")

        def why(parked: Parked) -> Event | None:
            used = parked.state is not State.APPROVED or parked.revision == revision
            return None if used else void

        self._each(why)
