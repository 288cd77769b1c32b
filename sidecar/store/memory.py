"""A store that forgets everything when the process ends."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable

from sidecar.ports.store import ABSENT, ANY, Change, Record, StoreError
from sidecar.store.checks import check_key, check_prefix, check_version, check_write, live
from sidecar.store.watching import Hub, Watch

_LONGEST_SLEEP = 60.0
"""Seconds between looks at the clock, which an administrator may set."""


class MemoryStore:
    """A dictionary with versions, expiry and watches. ``clock`` is seconds since the epoch."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._records: dict[str, Record] = {}
        self._last_version = 0
        self._expiring: list[tuple[float, str, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._hub = Hub()
        self._open = False
        self._closed = False

    async def open(self) -> None:
        """Nothing to make ready."""
        if self._closed:
            raise StoreError("the store is closed")
        self._open = True

    async def get(self, key: str) -> Record | None:
        """See the port."""
        check_key(key)
        self._check_open()
        return live(self._records.get(key), self._clock())

    async def put(
        self, key: str, value: bytes, *, expected: int = ANY, expires: float | None = None
    ) -> Record:
        """See the port."""
        check_write(key, value, expires)
        self._check_open()
        old = live(self._records.get(key), self._clock())
        check_version(key, expected, ABSENT if old is None else old.version)
        self._last_version += 1
        record = Record(key, bytes(value), self._last_version, expires)
        self._records[key] = record
        if expires is not None:
            heapq.heappush(self._expiring, (expires, key, record.version))
            self._forget_rewritten()
            self._arm()
        self._hub.publish([Change(key, record)])
        return record

    async def delete(self, key: str, *, expected: int = ANY) -> bool:
        """See the port."""
        check_key(key)
        self._check_open()
        old = live(self._records.get(key), self._clock())
        check_version(key, expected, ABSENT if old is None else old.version)
        if self._records.pop(key, None) is not None:
            self._hub.publish([Change(key, None)])
        return old is not None

    async def list(self, prefix: str) -> list[Record]:
        """See the port."""
        check_prefix(prefix)
        self._check_open()
        now = self._clock()
        found = [
            record
            for key, record in self._records.items()
            if key.startswith(prefix) and live(record, now)
        ]
        return sorted(found, key=lambda record: record.key)

    def watch(self, prefix: str) -> Watch:
        """See the port."""
        check_prefix(prefix)
        if not self._closed:
            self._check_open()
        return self._hub.watch(prefix)

    async def close(self) -> None:
        """See the port."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hub.close()

    # ------------------------------------------------------------------------- inside

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        if not self._open:
            raise StoreError("the store is not open yet")

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expiring and not self._closed:
            delay = min(max(self._expiring[0][0] - self._clock(), 0.0), _LONGEST_SLEEP)
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        now = self._clock()
        gone = []
        while self._expiring and self._expiring[0][0] <= now:
            _, key, version = heapq.heappop(self._expiring)
            record = self._records.get(key)
            if record is not None and record.version == version:
                del self._records[key]
                gone.append(Change(key, None))
        self._hub.publish(gone)
        self._arm()

    def _forget_rewritten(self) -> None:
        """A key written over and over must not fill the heap with its former expiries."""
        if len(self._expiring) > 2 * len(self._records) + 64:
            self._expiring = [
                (record.expires, key, record.version)
                for key, record in self._records.items()
                if record.expires is not None
            ]
            heapq.heapify(self._expiring)


def from_url(url: str) -> MemoryStore:
    """The entry point. Raises StoreError when the URL says more than ``memory``."""
    if url.rstrip(":/") != "memory":
        raise StoreError("a memory store has no path: write just `memory`")
    return MemoryStore()
