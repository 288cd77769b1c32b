"""A copy in memory of a small part of the store, kept in step with what others write."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from sidecar.ports.store import Change, Record, Store, StoreError

log = logging.getLogger("sidecar.gate")

PATIENCE = 2.0
"""Seconds that the store gets for one operation before it counts as lost."""
_FIRST, _LONGEST = 0.2, 10.0


class Mirror:
    """Tells of every record below ``prefix``: those there at ``start``, then every change.

    A store that is lost is asked again, less and less often; what was told stays true until
    it is back.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        changed: Callable[[Record], None],
        gone: Callable[[str], None],
    ) -> None:
        """``changed`` and ``gone`` (with a key) are called in the loop and must not block."""
        self._store = store
        self._prefix = prefix
        self._changed = changed
        self._gone = gone
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what there is. Raises StoreError, also when the store does not answer in time."""
        changes = self._store.watch(self._prefix)
        await self._read()
        self._task = asyncio.create_task(self._follow(changes), name=f"store {self._prefix}")

    async def close(self) -> None:
        """Stop. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE * 5):
                records = await self._store.list(self._prefix)
        except TimeoutError:
            raise StoreError("the store does not answer") from None
        for record in records:
            self._changed(record)

    async def _follow(self, changes: AsyncIterator[Change]) -> None:
        wait = _FIRST
        while True:
            try:
                async for change in changes:
                    self._tell(change)
                    wait = _FIRST
                # It ends when the store closes; a store that was lost may be back later.
            except StoreError as error:
                log.warning("the store is lost (%s); deciding goes on from memory", error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST)
            with contextlib.suppress(StoreError):
                changes = self._store.watch(self._prefix)
                await self._read()

    def _tell(self, change: Change) -> None:
        if change.record is None:
            self._gone(change.key)
        else:
            self._changed(change.record)
