"""Legs that belong to one caller alone: opened when first needed, bounded, ended when idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sidecar.model import Unavailable
from sidecar.upstream.leg import Leg
from sidecar.upstream.tasks import cancelled
from sidecar.upstream.watches import Watches

log = logging.getLogger("sidecar.upstream")

MOST_PROCESSES = 64
"""Processes that one server may have for its callers, if each has one of its own."""


@dataclass(slots=True, eq=False)
class Scope:
    """What one caller, or all of them together (``key`` empty), have of a server.

    ``level`` is the log level that the leg's server was last asked for, ``busy`` how many
    requests run, ``used`` when the last one ended (seconds on the loop's clock).
    """

    key: str
    leg: Leg | None = None
    watches: Watches = field(default_factory=Watches)
    level: str | None = None
    busy: int = 0
    used: float = 0.0
    opening: asyncio.Task[None] | None = None
    failure: Unavailable | None = None

    @property
    def usable(self) -> Leg | None:
        """The leg, if it is of use."""
        leg = self.leg
        return None if leg is None or leg.gone.done() else leg


Open = Callable[[Scope], Awaitable[None]]
"""Gives the scope a leg. Raises Unavailable."""


class Scopes:
    """The scopes of one server's callers. Ends every leg that it was given."""

    def __init__(self, server: str, open: Open, *, most: int, ttl: float, setting: str) -> None:
        """``setting`` is where ``most`` comes from, for the message when it is reached."""
        self._server = server
        self._open = open
        self._most = most
        self._ttl = ttl
        self._setting = setting
        self._scopes: dict[str, Scope] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._scopes)

    def get(self, key: str) -> Scope | None:
        """The scope, if it is there; nothing is opened."""
        return self._scopes.get(key)

    def all(self) -> tuple[Scope, ...]:
        return tuple(self._scopes.values())

    async def ready(self, key: str) -> Scope:
        """The caller's scope with a leg that is of use; one attempt for all who wait.

        Raises:
            Unavailable: it cannot be opened, or there are too many.
        """
        scope = self._scopes.get(key)
        if scope is None:
            if len(self._scopes) >= self._most:
                await self._make_room()
            if self._closed:
                raise self._unavailable("the server is being closed")
            scope = self._scopes.setdefault(key, Scope(key))
        scope.busy += 1
        try:
            if scope.usable is None:
                if scope.opening is None:
                    scope.opening = asyncio.create_task(
                        self._opened(scope), name=f"{self._server}: a leg of one caller"
                    )
                # Waited for, not awaited: its cancellation is not ours, nor ours its.
                await asyncio.wait({scope.opening})
            if scope.usable is None:
                raise scope.failure or self._unavailable("the leg was ended")
        finally:
            scope.busy -= 1
        return scope

    async def end(self, key: str) -> None:
        """End what this caller had."""
        scope = self._scopes.pop(key, None)
        if scope is not None:
            await _end(scope)

    async def expire(self) -> None:
        """End what nobody has used for the time to live, and what is of no use any more."""
        now = asyncio.get_running_loop().time()
        old = [
            scope
            for scope in self._scopes.values()
            if not scope.busy
            and scope.opening is None
            and not scope.watches.uris()
            and now - scope.used >= self._ttl
        ]
        for scope in old:
            self._scopes.pop(scope.key, None)
        await _end_all(old)

    async def close(self) -> None:
        """End all of them."""
        self._closed = True
        scopes, self._scopes = list(self._scopes.values()), {}
        await _end_all(scopes)

    # ------------------------------------------------------------------------------- inside

    async def _opened(self, scope: Scope) -> None:
        scope.failure = None
        try:
            if scope.leg is not None:
                await scope.leg.end()
                scope.leg = None
            await self._open(scope)
        except Unavailable as error:
            scope.failure = error
            if self._scopes.get(scope.key) is scope and not scope.watches.uris():
                del self._scopes[scope.key]
        finally:
            scope.used = asyncio.get_running_loop().time()
            scope.opening = None

    async def _make_room(self) -> None:
        """End the one that was not used for longest. Raises Unavailable when all are in use."""
        idle = [s for s in self._scopes.values() if not s.busy and s.opening is None]
        if not idle:
            raise self._unavailable(
                f"{self._most} callers use it at once, each with a leg of their own, and more "
                f"are not allowed ({self._setting})"
            )
        oldest = min(idle, key=lambda scope: scope.used)
        self._scopes.pop(oldest.key, None)
        await _end(oldest)

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(self._server, why, ran="no")


async def _end(scope: Scope) -> None:
    if scope.opening is not None:
        await cancelled(scope.opening)
    leg, scope.leg = scope.leg, None
    if leg is not None:
        await leg.end()


async def _end_all(scopes: list[Scope]) -> None:
    # Together: each has its own bound, and a hundred of them must not add up.
    for fault in await asyncio.gather(*map(_end, scopes), return_exceptions=True):
        if isinstance(fault, Exception):
            log.error("a leg did not end well", exc_info=fault)
