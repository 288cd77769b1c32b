"""What sessions and listeners asked of servers for longer than one request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sidecar.gateway.chores import Chores
from sidecar.gateway.roster import Roster, Slot
from sidecar.mcp.errors import invalid_params
from sidecar.model import Caller, Unavailable
from sidecar.ports.upstream import Upstream

MOST = 1000
"""Resources that one session or listener may watch."""
FORGETTING = 10.0


@dataclass(slots=True, eq=False)
class Watch:
    """The resources that one session or one listener watches: (server, URI)."""

    caller: Caller
    uris: dict[tuple[str, str], None] = field(default_factory=dict)
    closed: bool = False

    def covers(self, server: str, uri: str) -> bool:
        """Whether an update of ``uri`` concerns it: the URI itself, or one below it (spec,
        resources: an update may name a sub-resource of the one that was subscribed to)."""
        if (server, uri) in self.uris:
            return True
        return any(
            server == owner and uri.startswith(watched) and _below(watched, uri[len(watched)])
            for owner, watched in self.uris
            if len(uri) > len(watched)
        )


def _below(watched: str, after: str) -> bool:
    return watched.endswith("/") or after in "/?#"


class _Listens(Protocol):
    @property
    def caller(self) -> Caller: ...


@dataclass(slots=True, eq=False)
class _Session:
    watch: Watch
    level: str | None = None


class Watches:
    """Subscriptions and log levels, by session and by listener, until they end.

    ``Upstream`` counts; here each subscription is made once and ended once.
    """

    def __init__(self, roster: Roster, chores: Chores) -> None:
        self._roster = roster
        self._chores = chores
        self._sessions: dict[str, _Session] = {}
        self._listeners: dict[object, Watch] = {}

    # ------------------------------------------------------------------------------- whose

    def session(self, caller: Caller) -> Watch:
        """The watch of the caller's session."""
        return self._session(caller).watch

    def _session(self, caller: Caller) -> _Session:
        found = self._sessions.get(caller.session)
        if found is None:
            found = self._sessions[caller.session] = _Session(Watch(_lean(caller)))
        return found

    def listener(self, listener: object, caller: Caller) -> Watch:
        """The watch of one listener's own."""
        found = self._listeners.get(listener)
        if found is None:
            found = self._listeners[listener] = Watch(_lean(caller))
        return found

    def of(self, listener: _Listens) -> Sequence[Watch]:
        """Everything that is watched for this listener: its own, and its session's."""
        own = self._listeners.get(listener)
        session = self._sessions.get(listener.caller.session)
        watches = (own, session.watch if session is not None else None)
        return [watch for watch in watches if watch is not None and watch.uris]

    def level(self, session: str) -> str | None:
        """The lowest level of log messages that the session set, ``None`` if it set none."""
        found = self._sessions.get(session)
        return found.level if found is not None else None

    # ---------------------------------------------------------------------------- watching

    def check(self, watch: Watch, server: str, uri: str) -> None:
        """Raises -32602 when the watch is full."""
        if (server, uri) not in watch.uris and len(watch.uris) >= MOST:
            raise invalid_params(
                f"a client watches at most {MOST} resources here: unsubscribe from some first"
            )

    async def begin(self, watch: Watch, upstream: Upstream, uri: str, caller: Caller) -> None:
        """Subscribe, unless it is watched already. Raises as ``Upstream.subscribe``."""
        key = (upstream.name, uri)
        if key in watch.uris:
            return
        watch.uris[key] = None
        try:
            await upstream.subscribe(uri, caller)
        except BaseException:
            watch.uris.pop(key, None)
            raise
        if watch.closed or key not in watch.uris:
            # It ended meanwhile, and whoever ended it had nothing to end yet.
            self._drop(upstream, uri, watch.caller)

    async def end(self, watch: Watch, uri: str, caller: Caller) -> None:
        """Unsubscribe wherever it is watched; a URI that nobody watches is nothing to end.

        It has ended for the client even where the server cannot be told.
        """
        for server, watched in [key for key in watch.uris if key[1] == uri]:
            del watch.uris[server, watched]
            slot = self._roster.slots.get(server)
            if slot is not None:
                with contextlib.suppress(Unavailable):
                    await slot.upstream.unsubscribe(uri, caller)

    def stop(self, listener: object) -> None:
        """A listener is gone: end what it watched, without waiting."""
        watch = self._listeners.pop(listener, None)
        if watch is not None:
            self._close(watch)

    def _close(self, watch: Watch) -> None:
        watch.closed = True
        for server, uri in watch.uris:
            slot = self._roster.slots.get(server)
            if slot is not None:
                self._drop(slot.upstream, uri, watch.caller)
        watch.uris.clear()

    def _drop(self, upstream: Upstream, uri: str, caller: Caller) -> None:
        self._chores.start(
            f"ending a subscription at {upstream.name}", upstream.unsubscribe(uri, caller)
        )

    # ------------------------------------------------------------------------------ levels

    async def set_level(
        self, level: str, caller: Caller, slots: Sequence[Slot], patience: float
    ) -> None:
        """The session's lowest level, told to each server that logs, as far as it can be told
        within ``patience`` seconds; the rest hear it in their own time."""
        self._session(caller).level = level
        lean = _lean(caller)
        tasks = [
            self._chores.start(
                f"setting the log level of {slot.name}", slot.upstream.set_log_level(level, lean)
            )
            for slot in slots
        ]
        started = [task for task in tasks if task is not None]
        if started:
            await asyncio.wait(started, timeout=patience)

    # -------------------------------------------------------------------- coming and going

    def restore(self, slot: Slot) -> None:
        """A server came, maybe in the place of one with its name: ask it what clients asked of
        that one."""
        watches = [session.watch for session in self._sessions.values()]
        for watch in watches + list(self._listeners.values()):
            for server, uri in watch.uris:
                if server == slot.name:
                    self._chores.start(
                        f"subscribing at {slot.name} again",
                        slot.upstream.subscribe(uri, watch.caller),
                    )
        for session in self._sessions.values():
            if session.level is not None:
                self._chores.start(
                    f"setting the log level of {slot.name}",
                    slot.upstream.set_log_level(session.level, session.watch.caller),
                )

    async def forget(self, isolation: str) -> None:
        """A session ended: end what it watched, and let every server forget it."""
        session = self._sessions.pop(isolation, None)
        if session is not None:
            self._close(session.watch)
        tasks = [
            self._chores.start(f"ending a session at {slot.name}", slot.upstream.forget(isolation))
            for slot in self._roster.slots.values()
        ]
        started = [task for task in tasks if task is not None]
        if started:
            await asyncio.wait(started, timeout=FORGETTING)


def _lean(caller: Caller) -> Caller:
    """The caller without what belongs to one request, for keeping."""
    return Caller(
        caller.principal,
        era=caller.era,
        session=caller.session,
        server=caller.server,
        client=caller.client,
        capabilities=caller.capabilities,
    )
