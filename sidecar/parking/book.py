"""The parked calls in the store: read, created and changed by compare-and-set.

``calls/{id}`` holds a record, ``tickets/{claim}`` the id of the last record of a claim.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from sidecar.gate.mirror import PATIENCE, Mirror
from sidecar.model import Json
from sidecar.parking import machine, record
from sidecar.parking.index import Index
from sidecar.parking.machine import Elapsed, Event
from sidecar.parking.record import PREFIX, Parked
from sidecar.ports.store import ABSENT, Conflict, Record, Store, StoreError
from sidecar.wire import json

log = logging.getLogger("sidecar.parking")

T = TypeVar("T")

KEPT_FOR: Final = 7 * 86400.0
"""Seconds that a record stays after it has ended."""
KEPT: Final = 10_000
"""Records that have ended and are kept at most."""
LONG: Final = 64 << 10
"""Bytes of arguments beyond which they are let go of when a call ends."""
MOST_DEFINITION: Final = 256 << 10
MOST_RESULT: Final = 1 << 20
"""Bytes of a result that is handed to another node."""
RESULT_FOR: Final = 300.0
_TRIES: Final = 16
_MOST_KNOWN: Final = 10_000

_ID: Final = re.compile(r"[!-~]{1,128}")
"""What can be an id: stores have limits of their own to what a key is, and fail beyond them."""

TICKETS: Final = "tickets/"
DEFINITIONS: Final = "definitions/"
RESULTS: Final = "results/"

Listener: TypeAlias = Callable[[Parked, Parked | None], None]


class Missing(Exception):
    """There is no such record (any more)."""


class Book:
    """``clock`` is in seconds since the epoch. Every method that waits raises StoreError."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self.index = Index()
        self._listeners: list[Listener] = []
        self._mirror = Mirror(store, PREFIX, self._told, self._gone)
        self._defined: dict[str, float] = {}

    async def start(self) -> None:
        """Read what there is, and follow what other nodes do."""
        await self._mirror.start()

    async def close(self) -> None:
        """Follow no more. Idempotent."""
        await self._mirror.close()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell of every record that changes here or elsewhere: the record, and the one before.

        Neither has its arguments. Returns the way to stop.
        """
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    # ----------------------------------------------------------------------------- reading

    async def get(self, id: str) -> Parked:
        """The whole record. Raises Missing."""
        parked = await self._read(id)
        if parked is None:
            raise Missing(id)
        return parked

    async def last(self, claim: str) -> tuple[Parked | None, int]:
        """The last record of a claim, and the version of what points to it."""
        pointer = await self._get(TICKETS + claim)
        if pointer is None:
            return None, ABSENT
        return await self._read(pointer.value.decode("utf-8", "replace")), pointer.version

    async def _read(self, id: str) -> Parked | None:
        found = await self._at(id)
        parked = record.of(found)
        if found is not None and parked is not None:
            self._note(found)
        return parked

    async def _at(self, id: str) -> Record | None:
        return await self._get(record.key(id)) if _ID.fullmatch(id) else None

    # ----------------------------------------------------------------------------- writing

    async def create(self, parked: Parked, pointer: int) -> Parked | None:
        """Write a new record and make it the last of its claim.

        ``pointer`` is the version that ``last`` gave. ``None``: another one was made meanwhile.
        """
        stored = await self._put(parked, ABSENT)
        expires = parked.expires_at * 2 - parked.asked_at + KEPT_FOR
        try:
            await self._within(
                self._store.put(
                    TICKETS + parked.claim, parked.id.encode(), expected=pointer, expires=expires
                )
            )
        except BaseException as error:
            # Nothing points to it: it can be approved as often as one likes, and nothing runs.
            await asyncio.shield(self._within(self._store.delete(stored.key)))
            if isinstance(error, Conflict):
                return None
            raise
        self._note(stored)
        return parked

    async def change(self, id: str, event: Event) -> Parked:
        """Take a step, on whatever the record is by then.

        Raises:
            Missing: there is no such record.
            WrongState: the step is not allowed from where the call stands.
        """
        for _ in range(_TRIES):
            found = await self._at(id)
            parked = record.of(found)
            if found is None or parked is None:
                raise Missing(id)
            self._note(found)
            now = self._clock()
            # What is out of time has expired, also when nobody has looked at it since.
            taken = Elapsed() if machine.out_of_time(parked, now) else event
            after = machine.step(parked, taken, now)
            if after is parked:
                return parked
            if not after.open:
                after = _trimmed(after)
            try:
                stored = await self._put(after, found.version)
            except Conflict:
                continue
            self._note(stored)
            if taken is event or isinstance(event, Elapsed):
                return after
        raise StoreError("a parked call changes faster than it can be written")

    async def forget(self, id: str) -> None:
        """Delete a record that has ended."""
        await self._within(self._store.delete(record.key(id)))
        self._gone(record.key(id))

    async def _put(self, parked: Parked, expected: int) -> Record:
        until = parked.ended_at if parked.ended_at else max(parked.expires_at, parked.lease)
        return await self._within(
            self._store.put(
                record.key(parked.id),
                record.encode(parked),
                expected=expected,
                expires=until + KEPT_FOR,
            )
        )

    async def _get(self, key: str) -> Record | None:
        return await self._within(self._store.get(key))

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(PATIENCE):
                return await work
        except TimeoutError:
            raise StoreError("the store does not answer") from None

    # ------------------------------------------------------------- what belongs to a record

    async def define(self, digest: str, definition: bytes, until: float) -> None:
        """Keep the definition of a tool, so that a later one can be compared with it."""
        if len(definition) > MOST_DEFINITION or self._defined.get(digest, 0.0) >= until:
            return
        expires = until + KEPT_FOR
        await self._within(self._store.put(DEFINITIONS + digest, definition, expires=expires))
        if len(self._defined) >= _MOST_KNOWN:
            self._defined.clear()
        # Not written again for each call: that it goes a day early matters to nobody.
        self._defined[digest] = until + 86400.0

    async def definition(self, digest: str) -> Json:
        """A kept definition, ``None`` for one that is not."""
        found = await self._get(DEFINITIONS + digest) if digest else None
        if found is None:
            return None
        try:
            return json.decode(found.value)
        except json.BadJson:
            return None

    async def hand_over(self, id: str, result: bytes) -> None:
        """Leave a result for the other nodes that wait for it."""
        if len(result) <= MOST_RESULT:
            expires = self._clock() + RESULT_FOR
            await self._within(self._store.put(RESULTS + id, result, expires=expires))

    async def handed_over(self, id: str) -> bytes | None:
        """What another node left."""
        found = await self._get(RESULTS + id)
        return found.value if found is not None else None

    # ------------------------------------------------------------------- what others write

    def _told(self, stored: Record) -> None:
        try:
            self._note(stored)
        except ValueError as error:
            log.error("%s: %s", stored.key, error)

    def _note(self, stored: Record) -> None:
        parked = record.decode(stored.value)
        before = self.index.get(parked.id)
        if before is not None and before.version >= stored.version:
            return
        self.index.put(parked, stored.version)
        now = self.index.get(parked.id)
        assert now is not None
        for listener in tuple(self._listeners):
            listener(now.parked, before.parked if before is not None else None)

    def _gone(self, key: str) -> None:
        self.index.drop(key.removeprefix(PREFIX))


def _trimmed(parked: Parked) -> Parked:
    """What has ended need not keep what is long."""
    if len(bytes(parked.args)) <= LONG:
        return parked
    return replace(parked, args=record.NOTHING, args_dropped=True)
