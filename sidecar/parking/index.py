"""Every parked call that the store holds, in memory and without its arguments: to list, to count
and to find what is due. Pure.
"""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from sidecar.parking import machine
from sidecar.parking.record import Parked, State, lean


@dataclass(frozen=True, slots=True)
class Row:
    """A parked call and the version of its record."""

    parked: Parked
    version: int


class Index:
    """Rows by id, in the order in which they were asked."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._order: list[tuple[float, str]] = []
        self._open: dict[str, None] = {}
        self._waiting: dict[str, int] = {}
        self._counts: Counter[State] = Counter()
        self._deadlines: list[tuple[float, str, int]] = []
        self._approvals: dict[tuple[str, str], tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, id: str) -> Row | None:
        """The row of an id."""
        return self._rows.get(id)

    def put(self, parked: Parked, version: int) -> Row | None:
        """Take a record in; the row before, or ``None`` when it is new.

        A version that is not newer than the one that is there changes nothing, and the row
        itself is returned.
        """
        before = self._rows.get(parked.id)
        if before is not None and before.version >= version:
            return before
        row = Row(_interned(lean(parked)), version)
        self._rows[parked.id] = row
        if before is None:
            insort(self._order, (parked.asked_at, parked.id))
        else:
            self._count(before.parked, -1)
        self._count(parked, 1)
        if parked.open:
            self._open[parked.id] = None
            self.look_again(parked.id)
        else:
            self._open.pop(parked.id, None)
        if _approved(parked):
            tool = (parked.server, parked.tool)
            newest = (parked.answered_at, parked.id)
            self._approvals[tool] = max(newest, self._approvals.get(tool, newest))
        return before

    def drop(self, id: str) -> Row | None:
        """The record is gone."""
        row = self._rows.pop(id, None)
        if row is None:
            return None
        parked = row.parked
        at = self._place(parked)
        if at is not None:
            del self._order[at]
        self._count(parked, -1)
        self._open.pop(id, None)
        tool = (parked.server, parked.tool)
        if self._approvals.get(tool, (0.0, ""))[1] == id:
            del self._approvals[tool]
        return row

    def _place(self, parked: Parked) -> int | None:
        at = bisect_left(self._order, (parked.asked_at, parked.id))
        return at if at < len(self._order) and self._order[at][1] == parked.id else None

    def _count(self, parked: Parked, by: int) -> None:
        self._counts[parked.state] += by
        if parked.state is not State.WAITING:
            return
        principal = parked.principal
        count = self._waiting.get(principal, 0) + by
        if count > 0:
            self._waiting[principal] = count
        else:
            self._waiting.pop(principal, None)

    # ------------------------------------------------------------------------------ asking

    def waiting(self, principal: str) -> int:
        """How many calls of this principal wait."""
        return self._waiting.get(principal, 0)

    @property
    def open(self) -> int:
        """How many calls wait, are approved or run."""
        return len(self._open)

    def still_open(self) -> Iterator[Row]:
        """Those that something follows upon."""
        for id in tuple(self._open):
            row = self._rows.get(id)
            if row is not None:
                yield row

    def due(self, now: float, most: int) -> list[str]:
        """Ids of those that time changes by now, at most so many. Each is told once, until its
        record changes or ``look_again``."""
        found: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= now and len(found) < most:
            _, id, version = heapq.heappop(self._deadlines)
            row = self._rows.get(id)
            if row is not None and row.version == version and machine.overdue(row.parked, now):
                found.append(id)
        return found

    def next_due(self) -> float:
        """When to look for what is due again; infinity for never."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def look_again(self, id: str, at: float = 0.0) -> None:
        """It may be due by its deadline, and not before ``at``."""
        row = self._rows.get(id)
        if row is None or not row.parked.open:
            return
        deadline = max(machine.deadline(row.parked), at)
        heapq.heappush(self._deadlines, (deadline, id, row.version))
        if len(self._deadlines) > 2 * len(self._open) + 64:
            # Records that changed over and over have left their former deadlines behind.
            self._deadlines = [
                each
                for each in self._deadlines
                if (known := self._rows.get(each[1])) is not None and known.version == each[2]
            ]
            heapq.heapify(self._deadlines)

    def oldest_ended(self, beyond: int) -> list[str]:
        """Ids of the oldest that have ended, as many as there are more than ``beyond``."""
        surplus = len(self._rows) - len(self._open) - beyond
        found: list[str] = []
        for _, id in self._order:
            if len(found) >= surplus:
                break
            if id not in self._open:
                found.append(id)
        return found

    def last_approved(self, server: str, tool: str, before: float | None = None) -> str | None:
        """The id of the call of this tool that was approved last (before a moment)."""
        found = self._approvals.get((server, tool))
        if found is not None and before is not None and found[0] >= before:
            # Only history looks back this far: one walk, and no list of all approvals is kept.
            earlier = (
                (parked.answered_at, id)
                for id, parked in ((id, row.parked) for id, row in self._rows.items())
                if (parked.server, parked.tool) == (server, tool)
                and _approved(parked)
                and parked.answered_at < before
            )
            found = max(earlier, default=None)
        return found[1] if found is not None else None

    def page(
        self,
        wanted: Callable[[Parked], bool],
        *,
        after: str | None,
        limit: int,
        oldest_first: bool = False,
    ) -> tuple[Sequence[Row], bool]:
        """Rows that are ``wanted``, after the one of id ``after``, and whether there are more."""
        order = self._order if oldest_first else self._order[::-1]
        found: list[Row] = []
        passing = after is None
        for _, id in order:
            if not passing:
                passing = id == after
                continue
            row = self._rows[id]
            if wanted(row.parked):
                if len(found) == limit:
                    return found, True
                found.append(row)
        return found, False

    def counts(self) -> dict[str, int]:
        """How many there are in each state."""
        return {state.value: count for state, count in self._counts.items() if count}


def _approved(parked: Parked) -> bool:
    return bool(parked.answered_at) and parked.state is not State.DENIED


def _interned(parked: Parked) -> Parked:
    """Names that many records share are kept once."""
    return msgspec.structs.replace(
        parked,
        tool=sys.intern(parked.tool),
        server=sys.intern(parked.server),
        upstream_name=sys.intern(parked.upstream_name),
        principal=sys.intern(parked.principal),
        definition=sys.intern(parked.definition),
        asked_revision=sys.intern(parked.asked_revision),
        revision=sys.intern(parked.revision),
    )
