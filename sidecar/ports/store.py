"""A small key-value store with compare-and-set. Found by entry point ``sidecar.stores``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """The store cannot be reached or cannot write (disk full, lost, locked, newer schema)."""


class Conflict(StoreError):
    """``expected`` is not the version that is stored; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored value. ``version`` grows with every write of the key and is never used twice.

    ``expires`` is in seconds since the epoch, ``None`` for never.
    """

    key: str
    value: bytes
    version: int
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch saw: ``record`` is ``None`` when the key was deleted or expired."""

    key: str
    record: Record | None


ANY = -1
"""``expected``: write whatever is there."""
ABSENT = 0
"""``expected``: write only if the key does not exist."""


class Store(Protocol):
    """Keys are ``/``-separated text. Every write is durable when it returns."""

    async def open(self) -> None:
        """Make ready, migrating an older schema forward. Raises StoreError on a newer one."""
        ...

    async def get(self, key: str) -> Record | None:
        """The record, or ``None``. An expired record does not exist."""
        ...

    async def put(
        self, key: str, value: bytes, *, expected: int = ANY, expires: float | None = None
    ) -> Record:
        """Write and return the record. Raises Conflict when ``expected`` is not its version."""
        ...

    async def delete(self, key: str, *, expected: int = ANY) -> bool:
        """Delete; whether there was something. Raises Conflict as ``put`` does."""
        ...

    async def list(self, prefix: str) -> list[Record]:
        """Every live record whose key starts with ``prefix``, in key order."""
        ...

    def watch(self, prefix: str) -> AsyncIterator[Change]:
        """Changes from now on, in order for each key. A reader that is too slow gets the newest
        change of each key. Ends when the store closes."""
        ...

    async def close(self) -> None:
        """Idempotent. Watches end."""
        ...
