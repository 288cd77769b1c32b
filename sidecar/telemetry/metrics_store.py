"""A store that is measured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

from sidecar.ports.store import ANY, Change, Conflict, Record, Store
from sidecar.telemetry.metrics import Histogram

T = TypeVar("T")


class MeasuredStore:
    """See :class:`sidecar.ports.store.Store`. ``running`` are operations that are not done."""

    def __init__(self, store: Store, durations: Histogram) -> None:
        self._store = store
        self._durations = durations
        self.running = 0

    async def _measured(self, operation: str, work: Awaitable[T]) -> T:
        began = time.perf_counter()
        error = ""
        self.running += 1
        try:
            return await work
        except Conflict:
            # Another one was quicker: that is an answer.
            raise
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            self.running -= 1
            self._durations.record((operation, error), time.perf_counter() - began)

    async def open(self) -> None:
        """See the port."""
        await self._measured("open", self._store.open())

    async def get(self, key: str) -> Record | None:
        """See the port."""
        return await self._measured("get", self._store.get(key))

    async def put(
        self, key: str, value: bytes, *, expected: int = ANY, expires: float | None = None
    ) -> Record:
        """See the port."""
        work = self._store.put(key, value, expected=expected, expires=expires)
        return await self._measured("put", work)

    async def delete(self, key: str, *, expected: int = ANY) -> bool:
        """See the port."""
        return await self._measured("delete", self._store.delete(key, expected=expected))

    async def list(self, prefix: str) -> list[Record]:
        """See the port."""
        return await self._measured("list", self._store.list(prefix))

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        """See the port."""
        return self._store.watch(prefix)

    async def close(self) -> None:
        """See the port."""
        await self._store.close()
