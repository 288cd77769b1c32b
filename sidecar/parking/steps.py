"""Steps as this node takes them: in the store, and seen by whoever waits here."""

from __future__ import annotations

import msgspec

from sidecar.parking.book import Book, Missing
from sidecar.parking.chores import Chores
from sidecar.parking.live import Live, Lives
from sidecar.parking.machine import Event, WrongState
from sidecar.parking.record import Parked, State


class Steps:
    """What holds the book, who waits here, and the work in the background together."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.lives = Lives()
        self.chores = Chores()

    async def did(self, id: str, event: Event) -> bool:
        """Whether the step was allowed. What the record is then is seen either way.

        Raises:
            StoreError: nobody knows.
        """
        try:
            await self.book.change(id, event)
        except WrongState:
            return False
        except Missing:
            # Deleted by hand: nobody can answer it any more.
            for live in self.lives:
                if live.parked.id == id:
                    gone = "its record was deleted"
                    live.saw(
                        msgspec.structs.replace(live.parked, state=State.CANCELLED, ended=gone)
                    )
            return False
        return True

    def enter(self, parked: Parked) -> Live:
        """One more waits here for a record that was just read. ``Lives.leave`` is owed."""
        # What was seen of it meanwhile is not older than what was read.
        row = self.book.index.get(parked.id)
        return self.lives.enter(row.parked if row is not None else parked)
