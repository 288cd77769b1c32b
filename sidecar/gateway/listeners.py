"""Who is told of changes, and how often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from sidecar.catalog import Entry, View
from sidecar.events import (
    Bus,
    LegChanged,
    LogMessage,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated,
    ToolsChanged,
)
from sidecar.gateway.roster import Roster
from sidecar.gateway.watches import Watches
from sidecar.mcp.methods import severe_enough
from sidecar.model import Caller, Era, JsonObject, State
from sidecar.ports.gate import Gate

log = logging.getLogger("sidecar.gateway")

# A notification's method and params. Never blocks.
Callback: TypeAlias = Callable[[str, JsonObject], None]

QUIET = 0.05
"""Seconds without a further change after which a burst is told."""
PATIENCE = 0.5
"""Seconds after which a burst that does not end is told all the same."""

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
MESSAGE = "notifications/message"

_Rows: TypeAlias = tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]
_State: TypeAlias = dict[str, _Rows]
_NOTHING: _Rows = ((), (), ())
_UPDATES = 10_000


class Listening(Protocol):
    """One listener, from ``Gateway.listen`` until ``stop``."""

    async def watch(self, uris: Iterable[str]) -> list[str]:
        """Also tell of updates of these resources, for as long as this listener lives.

        For ``subscriptions/listen`` of the stateless era; each URI passes the gate like any
        call. Returns those that are watched now; one that leads nowhere, is denied, or whose
        server cannot watch resources is left out.
        """
        ...

    def stop(self) -> None:
        """Tell nothing any more. Idempotent, never waits."""
        ...


class Listener:
    """Where a caller's notifications go, and what of everything that happens is for it.

    ``baseline`` is what there was when it came, while there is still something untold from
    before; it is told of changes since then.
    """

    def __init__(self, caller: Caller, callback: Callback) -> None:
        self.caller = caller
        self.view = View.of(caller)
        self.baseline: _State | None = None
        self._callback = callback

    def tell(self, method: str, params: JsonObject) -> None:
        """Hand on one notification. A listener's fault is its own."""
        try:
            self._callback(method, params)
        except Exception:
            log.exception("a listener of %s failed", self.caller.principal.name)


class Hub:
    """Turns events of servers into notifications for those who see the server.

    What changed is found by comparing what was last told with what is there when a burst has
    ended; a server that goes and comes back within one has changed nothing.
    """

    def __init__(self, bus: Bus, roster: Roster, watches: Watches, gate: Gate) -> None:
        self._roster = roster
        self._watches = watches
        self._gate = gate
        self._listeners: dict[Listener, None] = {}
        self._told: _State = {}
        self._now: _State | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._latest = 0.0
        self._updates: dict[tuple[str, str, str], JsonObject] = {}
        self._update_timer: asyncio.TimerHandle | None = None
        self._everybody = False
        self._stops = [
            bus.listen(LegChanged, self._leg),
            bus.listen(ToolsChanged, self._changed),
            bus.listen(PromptsChanged, self._changed),
            bus.listen(ResourcesChanged, self._changed),
            bus.listen(ResourceUpdated, self._updated),
            bus.listen(LogMessage, self._message),
        ]

    def add(self, listener: Listener) -> None:
        """From now on ``listener`` is told."""
        if self._timer is not None:
            listener.baseline = self._current()
        self._listeners[listener] = None

    def discard(self, listener: Listener) -> None:
        """``listener`` is told nothing any more."""
        self._listeners.pop(listener, None)

    def close(self) -> None:
        """Tell nobody anything any more."""
        for stop in self._stops:
            stop()
        for timer in (self._timer, self._update_timer):
            if timer is not None:
                timer.cancel()
        self._listeners.clear()

    # ------------------------------------------------------------------------ list_changed

    def _changed(self, event: object) -> None:
        self.changed()

    def _leg(self, event: LegChanged) -> None:
        """A server that is not listed, and that nobody was told of, changes no list by failing
        again: hundreds of dead ones must not have everything compared again and again."""
        known = event.server in self._told or event.server in (self._now or ())
        if known or event.state is State.READY:
            self.changed()

    def changed(self, *, everybody: bool = False) -> None:
        """Something may be other than it was told; look when it has become quiet.

        ``everybody``: what callers are shown of the tools changed, whatever the servers have.
        """
        self._now = None
        self._everybody = self._everybody or everybody
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is None:
            self._latest = now + PATIENCE
        else:
            self._timer.cancel()
        self._timer = loop.call_at(min(now + QUIET, self._latest), self._tell_changes)

    def _current(self) -> _State:
        """What is listed now, the same object until something changes."""
        if self._now is None:
            self._roster.refresh()
            self._now = {
                shelf.config.name: (
                    shelf.rows["tools"],
                    shelf.rows["prompts"],
                    shelf.rows["resources"] + shelf.rows["templates"],
                )
                for shelf in self._roster.catalog.shelves()
                if self._roster.listed(shelf.config.name)
            }
        return self._now

    def _tell_changes(self) -> None:
        self._timer = None
        everybody, self._everybody = self._everybody, False
        self._now = None
        now = self._current()
        before, self._told = self._told, now
        changed = _changes(before, now)
        for listener in list(self._listeners):
            baseline, listener.baseline = listener.baseline, None
            for_it = changed if baseline is None else _changes(baseline, now)
            for method, servers in for_it.items():
                if (everybody and method == TOOLS) or any(map(listener.view.sees, servers)):
                    listener.tell(method, {})

    # ------------------------------------------------------------------ updates, messages

    def _updated(self, event: ResourceUpdated) -> None:
        """Keep the newest update of each resource, and tell it shortly after the first."""
        key = (event.server, event.uri, event.isolation)
        if key not in self._updates:
            if len(self._updates) >= _UPDATES or not self._listeners:
                return
            if self._update_timer is None:
                loop = asyncio.get_running_loop()
                self._update_timer = loop.call_later(QUIET, self._tell_updates)
        self._updates[key] = event.params

    def _tell_updates(self) -> None:
        self._update_timer = None
        updates, self._updates = self._updates, {}
        for listener in list(self._listeners):
            wanted = self._watches.of(listener)
            if not wanted:
                continue
            for (server, uri, isolation), params in updates.items():
                if (
                    isolation in ("", listener.caller.isolation)
                    and listener.view.sees(server)
                    and any(watch.covers(server, uri) for watch in wanted)
                ):
                    listener.tell(UPDATED, params)

    def _message(self, event: LogMessage) -> None:
        """Log messages of no call go to sessions: in the other era they belong to a call."""
        for listener in list(self._listeners):
            caller = listener.caller
            if (
                caller.era is Era.LEGACY
                and event.isolation in ("", caller.isolation)
                and listener.view.sees(event.server)
                and self._wants(caller, event.params.get("level"))
            ):
                self._gate.heard(event.server, MESSAGE, caller)
                listener.tell(MESSAGE, event.params)

    def _wants(self, caller: Caller, level: object) -> bool:
        """A session that set no level gets what the server sends, as it would without us."""
        wanted = self._watches.level(caller.session)
        return wanted is None or severe_enough(level, wanted)


def _changes(before: _State, now: _State) -> dict[str, list[str]]:
    """By notification, the servers of which it is to be told."""
    changed: dict[str, list[str]] = {TOOLS: [], PROMPTS: [], RESOURCES: []}
    for server in before.keys() | now.keys():
        old, new = before.get(server, _NOTHING), now.get(server, _NOTHING)
        for index, servers in enumerate(changed.values()):
            if old[index] != new[index]:
                servers.append(server)
    return changed
