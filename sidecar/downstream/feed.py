"""What a listening client is still to be told. Pure: the clock is handed in.

A legacy session's GET stream and a modern ``subscriptions/listen`` both read from a feed. A burst
of list changes becomes one notification, or two when it goes on after the first was sent; an
update of a resource that is still waiting to be told is told once.
"""

from __future__ import annotations

from collections import deque

from sidecar.model import JsonObject
from sidecar.wire.json import encode

LIST_CHANGES = {
    "notifications/tools/list_changed": "tools",
    "notifications/prompts/list_changed": "prompts",
    "notifications/resources/list_changed": "resources",
}
"""The notifications that say that a list is other than before, and which list."""
RESOURCE_UPDATED = "notifications/resources/updated"

SETTLE = 0.03
"""Seconds that a first change waits for others of its burst."""
APART = 1.0
"""Seconds at least between two notifications about the same list."""
MOST_UPDATES = 1024
"""Resources that may wait to be told; a reader that is further behind is ended."""
MOST_OTHERS = 256
"""Log messages that may wait; the oldest are dropped."""
MOST_BYTES = 4 << 20
"""Bytes of JSON that may wait, of updates and of log messages each."""

Notification = tuple[str, JsonObject]


class Feed:
    """Pending notifications of one reader, in the order in which they fall due."""

    __slots__ = (
        "_due",
        "_others",
        "_others_size",
        "_told",
        "_updates",
        "_updates_size",
        "overflowed",
    )

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._updates: dict[str, JsonObject] = {}
        self._updates_size = 0
        self._others: deque[tuple[str, JsonObject, int]] = deque()
        self._others_size = 0
        self.overflowed = False

    def offer(self, method: str, params: JsonObject, now: float) -> None:
        """Take in one notification. ``now`` is in seconds, on any steady clock."""
        if method in LIST_CHANGES:
            if method not in self._due:
                earliest = self._told.get(method, now - APART) + APART
                self._due[method] = max(now + SETTLE, earliest)
        elif method == RESOURCE_UPDATED:
            self._update(str(params.get("uri")), params)
        else:
            size = len(encode(params))
            self._others.append((method, params, size))
            self._others_size += size
            while len(self._others) > MOST_OTHERS or self._others_size > MOST_BYTES:
                self._others_size -= self._others.popleft()[2]

    def _update(self, uri: str, params: JsonObject) -> None:
        if uri in self._updates:
            return
        self._updates_size += len(encode(params))
        if len(self._updates) >= MOST_UPDATES or self._updates_size > MOST_BYTES:
            self.overflowed = True
            return
        self._updates[uri] = params

    def due(self) -> float | None:
        """When the next notification may be sent (0.0 for at once), ``None`` when there is none."""
        if self._updates or self._others:
            return 0.0
        return min(self._due.values()) if self._due else None

    def take(self, now: float) -> list[Notification]:
        """Every notification that is due, each handed out once."""
        taken: list[Notification] = []
        for method in [method for method, due in self._due.items() if due <= now]:
            del self._due[method]
            self._told[method] = now
            taken.append((method, {}))
        if self._updates:
            taken.extend((RESOURCE_UPDATED, params) for params in self._updates.values())
            self._updates.clear()
            self._updates_size = 0
        if self._others:
            taken.extend((method, params) for method, params, _ in self._others)
            self._others.clear()
            self._others_size = 0
        return taken
