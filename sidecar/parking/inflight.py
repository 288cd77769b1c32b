"""What becomes of what waits, or is approved, when the world around it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sidecar.model import Tool
from sidecar.parking.machine import Removed, Revoked, Superseded, Voided
from sidecar.parking.record import Parked, State
from sidecar.parking.steps import Steps


class InFlight:
    """Each of these looks at all that is open and returns at once; the steps follow."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def _unanswered_or_unused(self) -> Iterator[Parked]:
        for row in self._steps.book.index.still_open():
            if row.parked.state is not State.TAKEN:
                yield row.parked

    def redefined(self, server: str, definition: Callable[[str, str], Tool | None]) -> None:
        """A server lists something else: what was asked for may be another thing now."""
        for parked in self._unanswered_or_unused():
            if parked.server == server and parked.definition:
                tool = definition(server, parked.upstream_name)
                if tool is not None and tool.digest != parked.definition:
                    self._steps.later(parked, Superseded("the tool's definition has changed"))

    def removed(self, server: str) -> None:
        """A server is gone for good: what waits for it is lost, what is approved void."""
        for parked in self._unanswered_or_unused():
            if parked.server == server:
                self._steps.later(parked, Removed("the server was removed"))

    def revoked(self, principal: str) -> None:
        """A principal may not call any more: what it asked for is cancelled."""
        for parked in self._unanswered_or_unused():
            if parked.principal == principal:
                self._steps.later(parked, Revoked("the caller's token was revoked"))

    def reloaded(self, revision: str) -> None:
        """The policies are others now: what was approved under those before is void."""
        for parked in self._unanswered_or_unused():
            if parked.state is State.APPROVED and parked.revision != revision:
                why = "the policies have changed since it was approved"
                self._steps.later(parked, Voided(why))
