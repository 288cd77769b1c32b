"""One configured MCP server: kept connected, listed and asked, whatever it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Literal

from sidecar.config import Limits, ServerConfig
from sidecar.events import Bus, LogMessage, ResourceUpdated
from sidecar.mcp.headers import ParamHeaders
from sidecar.mcp.meta import SUBSCRIPTION_ID
from sidecar.mcp.methods import lowest_level, severe_enough
from sidecar.model import (
    Caller,
    Entries,
    Era,
    Fields,
    JsonObject,
    RpcError,
    ServerStatus,
    State,
    Unavailable,
)
from sidecar.ports.connector import Connector
from sidecar.ports.proxy import ChildProxy
from sidecar.ports.secrets import Secrets
from sidecar.upstream.attempts import Attempts
from sidecar.upstream.complaints import Complaints
from sidecar.upstream.faults import Unreachable
from sidecar.upstream.http import HttpClient
from sidecar.upstream.leg import Leg, lose
from sidecar.upstream.lister import Lister
from sidecar.upstream.listing import ALL, List
from sidecar.upstream.opener import Opener
from sidecar.upstream.scopes import MOST_PROCESSES, Scope, Scopes
from sidecar.upstream.supervisor import Supervisor
from sidecar.upstream.tasks import Tasks

CLOSE_GRACE = 1.0
"""Seconds that messages on their way get when the server is closed."""

_CHANGED: Mapping[str, frozenset[List]] = {
    "notifications/tools/list_changed": frozenset({"tools"}),
    "notifications/prompts/list_changed": frozenset({"prompts"}),
    "notifications/resources/list_changed": frozenset({"resources", "templates"}),
}


class _OneEra(Unavailable):
    """The server has no sessions after all: its one era must do for everybody."""


class McpServer:
    """An ``Upstream``. Construct and ``start`` it inside the loop that serves it.

    The supervisor keeps the shared leg, which lists; a caller's requests go over it too, unless
    the server keeps state for a session: then each caller (``Caller.isolation``) has a leg of
    its own. A server of both eras is spoken to in the caller's.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        name: str,
        bus: Bus,
        limits: Limits,
        secrets: Secrets,
        connector: Connector,
        source: Literal["configured", "runtime"] = "configured",
        proxy: ChildProxy | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        """``name`` is the sidecar's own, as events tell it. ``proxy`` is for processes that
        are to use it, ``attempts`` for servers that take turns to be connected."""
        self.config = config
        self.limits = limits
        self.tasks = Tasks()
        self.complaints = Complaints(config.name)
        self._bus = bus
        self._source: Literal["configured", "runtime"] = source
        self._stdio = config.transport == "stdio"
        self._http: HttpClient | None = None
        if not self._stdio:
            self._http = HttpClient(self, config, secrets, connector)
        self._opener = Opener(self, config, secrets, self._http, proxy)
        self._lister = Lister(limits, self.complaints, config.timeout)
        self._own = Scopes(
            config.name,
            self._open_own,
            most=min(MOST_PROCESSES, limits.sessions) if self._stdio else limits.sessions,
            ttl=limits.session_ttl,
            setting=(
                f"a server has at most {MOST_PROCESSES} processes"
                if self._stdio and limits.sessions > MOST_PROCESSES
                else "limits.sessions"
            ),
        )
        self._supervisor = Supervisor(
            config.name,
            sidecar=name,
            bus=bus,
            opener=self._opener,
            lister=self._lister,
            complaints=self.complaints,
            connected=self._connected,
            sweep=self._sweep,
            attempts=attempts,
        )
        self._levels: dict[str, str] = {}
        # Of a modern HTTP server: whether it has sessions, too, and whether they keep state.
        self._dual: bool | None = None
        self._dual_stateful = True
        self._closing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------- as ports.upstream says

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def status(self) -> ServerStatus:
        supervisor = self._supervisor
        leg = supervisor.leg
        ready = supervisor.state is State.READY
        return ServerStatus(
            name=self.config.name,
            source=self._source,
            transport=self.config.transport,
            state=supervisor.state,
            era=leg.hello.era if leg is not None else None,
            tools=len(self._lister.entries.tools) if ready else 0,
            error=supervisor.error,
            retry_in=supervisor.retry_in,
        )

    def entries(self) -> Entries:
        return self._lister.entries

    def start(self) -> None:
        """Begin to connect. Idempotent."""
        self._supervisor.start()

    async def settled(self) -> None:
        await self._supervisor.settled()

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.config.timeout
        if caller.deadline is not None and caller.deadline < until:
            until = caller.deadline
        sent = False
        try:
            async with asyncio.timeout_at(until):
                leg = self._quick(caller)
                scope = self._supervisor.scope
                if leg is None:
                    leg, scope = await self._leg_for(caller)
                if caller.log_level is not None and leg.hello.era is Era.LEGACY:
                    await self._lower(scope, leg, caller.log_level)
                scope.busy += 1
                sent = True
                try:
                    return await leg.request(method, params, caller)
                finally:
                    scope.busy -= 1
                    scope.used = loop.time()
        except Unreachable as error:
            self._unreachable(error)
            raise
        except TimeoutError:
            raise Unavailable(
                self.name,
                "no answer before the caller's deadline"
                if until == caller.deadline
                else f"no answer within {self.config.timeout:g} s (timeout of server {self.name})",
                ran="maybe" if sent else "no",
            ) from None

    async def subscribe(self, uri: str, caller: Caller) -> None:
        try:
            async with asyncio.timeout(self.config.timeout):
                leg, scope = await self._leg_for(caller)
                if not scope.watches.add(uri, caller.isolation):
                    return
                try:
                    await leg.subscribe(uri)
                except BaseException:
                    scope.watches.remove(uri, caller.isolation)
                    raise
        except TimeoutError:
            raise Unavailable(
                self.name, f"no answer within {self.config.timeout:g} s", ran="maybe"
            ) from None

    async def unsubscribe(self, uri: str, caller: Caller) -> None:
        for scope in self._scopes_of(caller.isolation):
            if scope.watches.remove(uri, caller.isolation):
                await self._unsubscribed(scope, [uri])

    async def set_log_level(self, level: str, caller: Caller) -> None:
        self._levels[caller.isolation] = level
        for scope in self._scopes_of(caller.isolation):
            await self._leveled(scope)

    async def forget(self, isolation: str) -> None:
        had_level = self._levels.pop(isolation, None) is not None
        await self._own.end(isolation)
        for scope in self._scopes_of(isolation):
            await self._unsubscribed(scope, scope.watches.forget(isolation))
            if had_level:
                await self._leveled(scope)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self.name}")
        # Whoever gives up waiting does not stop the closing.
        await asyncio.wait({self._closing})

    async def _close(self) -> None:
        try:
            await asyncio.gather(self._supervisor.stop(), self._own.close())
        finally:
            await self.tasks.end(CLOSE_GRACE)
            if self._http is not None:
                await self._http.close()

    def _sweep(self) -> None:
        self.tasks.spawn(self._own.expire(), name=f"{self.name}: idle legs")

    # ------------------------------------------------------------------------ as leg.Host says

    @property
    def trusted(self) -> bool:
        return self.config.trusted

    @property
    def param_headers(self) -> Mapping[str, ParamHeaders]:
        return self._lister.param_headers

    async def relisted(self) -> None:
        await self._supervisor.relisted()

    def heard(self, leg: Leg, method: str, params: JsonObject) -> None:
        changed = _CHANGED.get(method)
        if changed is not None:
            self._supervisor.changed(changed)
        elif method == "notifications/resources/updated":
            uri = params.get("uri")
            if isinstance(uri, str):
                self._bus.publish(
                    ResourceUpdated(
                        server=self.name,
                        uri=uri,
                        params=_without_subscription(params),
                        isolation=leg.isolation,
                    )
                )
        elif method == "notifications/message":
            self._bus.publish(LogMessage(server=self.name, params=params, isolation=leg.isolation))

    def stale(self, leg: Leg, *, renewed: bool) -> None:
        if leg is self._supervisor.scope.leg:
            self._supervisor.changed(ALL)
        if renewed:
            for scope in self._scopes_of(leg.isolation):
                if scope.leg is leg:
                    self._restore_soon(scope)

    def level_for(self, caller: Caller) -> str | None:
        return caller.log_level or self._levels.get(caller.isolation)

    def wants(self, level: object, caller: Caller) -> bool:
        wanted = self.level_for(caller)
        if wanted is None:
            # A legacy client that never said gets what the server sends; a modern one nothing.
            return caller.era is Era.LEGACY
        return severe_enough(level, wanted)

    # ------------------------------------------------------------------------- whose leg

    def _quick(self, caller: Caller) -> Leg | None:
        """The shared leg, if it is there and may be used by this caller."""
        leg = self._supervisor.leg
        if leg is None:
            return None
        if leg.over_http and leg.hello.era is Era.MODERN:
            # It has no sessions that could be told apart.
            one_era = self._dual is False or self.config.era != "auto"
            return leg if one_era or caller.era is Era.MODERN else None
        isolation = self.config.isolation
        if isolation == "shared" or (isolation == "auto" and not leg.hello.stateful):
            return leg
        return None

    async def _leg_for(self, caller: Caller) -> tuple[Leg, Scope]:
        """The leg that this caller's requests go over, and what belongs to it.

        Raises:
            Unavailable: there is none; ``ran`` is ``no``.
        """
        shared = await self._supervisor.awaited()
        if (leg := self._quick(caller)) is not None:
            return leg, self._supervisor.scope
        key = caller.isolation
        alike = self.config.isolation == "shared" or not self._dual_stateful
        if alike and shared.hello.era is Era.MODERN and shared.over_http:
            key = ""
        try:
            scope = await self._own.ready(key)
        except _OneEra:
            return shared, self._supervisor.scope
        leg = scope.usable
        if leg is None:
            raise Unavailable(self.name, "the leg was ended", ran="no")
        return leg, scope

    async def _open_own(self, scope: Scope) -> None:
        """Give a scope its leg: in the era of the shared one, or legacy next to a modern one."""
        shared = self._supervisor.leg
        try:
            if shared is not None and shared.over_http and shared.hello.era is Era.MODERN:
                second = await self._opener.open_legacy(scope.key)
                if second is None:
                    self._dual = False
                    raise _OneEra(self.name, "it has no sessions", ran="no")
                self._dual, self._dual_stateful = True, second.hello.stateful
                scope.leg = second
            else:
                scope.leg = await self._opener.open(scope.key)
        except Unreachable as error:
            self._unreachable(error)
            raise
        await self._restore(scope)

    def _unreachable(self, error: Unreachable) -> None:
        """Whoever noticed it: it is down for everybody."""
        shared = self._supervisor.leg
        if shared is not None:
            lose(shared.gone, error.why)

    def _scopes_of(self, isolation: str) -> Iterator[Scope]:
        """Wherever something of this caller's may be."""
        yield self._supervisor.scope
        for key in {isolation, ""}:
            own = self._own.get(key)
            if own is not None:
                yield own

    # ------------------------------------------------------- what outlives a leg's sessions

    def _connected(self) -> None:
        """The shared leg is new."""
        self._dual, self._dual_stateful = None, True
        self._restore_soon(self._supervisor.scope)

    def _restore_soon(self, scope: Scope) -> None:
        self.tasks.spawn(self._restore(scope), name=f"{self.name}: subscriptions")

    async def _restore(self, scope: Scope) -> None:
        """A leg is new, or its session is: subscribe again and set the level again."""
        scope.level = None
        leg = scope.usable
        if leg is None:
            return
        if isinstance(leg.hello.capabilities.get("logging"), dict):
            await self._leveled(scope)
        for uri in scope.watches.uris():
            try:
                async with asyncio.timeout(self.config.timeout):
                    await leg.subscribe(uri)
            except (RpcError, Unavailable, TimeoutError):
                self.complaints.warn("subscriptions", "does not take a subscription again")

    async def _unsubscribed(self, scope: Scope, uris: list[str]) -> None:
        leg = scope.usable
        if leg is None:
            return
        for uri in uris:
            # If it does not listen, its updates are news to nobody.
            with suppress(RpcError, Unavailable, TimeoutError):
                async with asyncio.timeout(self.config.timeout):
                    await leg.unsubscribe(uri)

    async def _leveled(self, scope: Scope) -> None:
        """Ask the scope's server for the lowest level that any of its callers wants."""
        leg = scope.usable
        if leg is None:
            return
        if scope is self._supervisor.scope or scope.key == "":
            wanted = lowest_level(*self._levels.values())
        else:
            wanted = self._levels.get(scope.key)
        if wanted is not None and wanted != scope.level:
            await self._ask_level(scope, leg, wanted)

    async def _lower(self, scope: Scope, leg: Leg, level: str) -> None:
        """One request wants more log messages than its leg's server was asked for."""
        if scope.level is None or lowest_level(scope.level, level) != scope.level:
            await self._ask_level(scope, leg, level)

    async def _ask_level(self, scope: Scope, leg: Leg, level: str) -> None:
        scope.level = level
        if not isinstance(leg.hello.capabilities.get("logging"), dict):
            return
        # Log messages are a courtesy: nothing else fails for want of them.
        with suppress(RpcError, Unavailable, TimeoutError):
            async with asyncio.timeout(self.config.timeout):
                await leg.set_log_level(level)


def _without_subscription(params: JsonObject) -> JsonObject:
    """Params of a notification without the id of our own subscription."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or SUBSCRIPTION_ID not in meta:
        return params
    left = {key: value for key, value in meta.items() if key != SUBSCRIPTION_ID}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": left} if left else rest
