"""Watches: who is told of which change."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Iterable

from sidecar.ports.store import Change, StoreError

WAITING_LIMIT = 65_536
"""Keys with a change that a reader has not taken; beyond that its watch ends with an error."""


class Watch:
    """The changes of keys with one prefix. One reader; it stops when it is dropped or closed."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._waiting: OrderedDict[str, Change] = OrderedDict()
        self._wake = asyncio.Event()
        self._closed = False
        self._overrun = False

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Change:
        while True:
            if self._overrun:
                raise StoreError(
                    f"the reader of {self.prefix!r} is more than {WAITING_LIMIT} keys behind; "
                    "watch and list anew"
                )
            if self._waiting:
                return self._waiting.popitem(last=False)[1]
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()

    @property
    def closed(self) -> bool:
        """Whether no more will come."""
        return self._closed

    async def aclose(self) -> None:
        """Stop; what is waiting is dropped."""
        self._waiting.clear()
        self.finish()

    def finish(self) -> None:
        """No more will come; what is waiting can still be read."""
        self._closed = True
        self._wake.set()

    def offer(self, change: Change) -> None:
        """Take a change when its key has the prefix; the newest of a key replaces the last."""
        if self._closed or self._overrun or not change.key.startswith(self.prefix):
            return
        self._waiting[change.key] = change
        self._waiting.move_to_end(change.key)
        if len(self._waiting) > WAITING_LIMIT:
            self._waiting.clear()
            self._overrun = True
        self._wake.set()


class Hub:
    """All watches of one store. A watch that nobody holds any more is forgotten."""

    def __init__(self) -> None:
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._closed = False

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, prefix: str) -> Watch:
        """A new one, of changes from now on; at its end already when the hub is closed."""
        watch = Watch(prefix)
        if self._closed:
            watch.finish()
        else:
            self._watches.add(watch)
        return watch

    def add(self, watch: Watch) -> None:
        """Take in a watch that was made elsewhere; it is told what is published from now on."""
        if self._closed:
            watch.finish()
        else:
            self._watches.add(watch)

    def prefixes(self) -> set[str]:
        """What is watched."""
        return {watch.prefix for watch in self._watches}

    def publish(self, changes: Iterable[Change]) -> None:
        """Tell every watch."""
        watches = list(self._watches)
        if watches:
            for change in changes:
                for watch in watches:
                    watch.offer(change)

    def close(self) -> None:
        """Every watch ends."""
        self._closed = True
        for watch in list(self._watches):
            watch.finish()
