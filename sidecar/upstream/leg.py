"""What every leg is: one connection to one server in one era."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from sidecar.config import Limits
from sidecar.mcp.headers import ParamHeaders
from sidecar.model import Caller, Era, Fields, JsonObject, Principal
from sidecar.upstream.complaints import Complaints
from sidecar.upstream.faults import HttpStatus
from sidecar.upstream.tasks import Tasks

SELF = Caller(Principal("sidecar", ()))
"""Who asks when the sidecar itself does: handshakes, lists, subscriptions."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a server said of itself when the leg was opened.

    ``stateful`` means that the server keeps state for this connection alone, so that two
    callers must not share it unless the operator says so.
    """

    era: Era
    version: str
    capabilities: JsonObject
    instructions: str = ""
    stateful: bool = False


class Host(Protocol):
    """What a leg needs from the server that owns it. Nothing in here blocks."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def trusted(self) -> bool:
        """Whether what others wrote about a trace (tracestate, baggage) goes to this server."""
        ...

    @property
    def tasks(self) -> Tasks: ...
    @property
    def complaints(self) -> Complaints: ...

    def heard(self, leg: Leg, method: str, params: JsonObject) -> None:
        """A notification that belongs to no running request."""
        ...

    def level_for(self, caller: Caller) -> str | None:
        """The lowest level of log messages that this caller wants, if it said."""
        ...

    @property
    def param_headers(self) -> Mapping[str, ParamHeaders]:
        """For each listed tool that asks for it, which arguments are repeated as headers."""
        ...

    async def relisted(self) -> None:
        """Return when the tools have been listed again, within a bound."""
        ...

    def stale(self, leg: Leg, *, renewed: bool) -> None:
        """Notifications may have been missed: list again; with ``renewed``, subscribe again."""
        ...

    def wants(self, level: object, caller: Caller) -> bool:
        """Whether this caller wants log messages of this level."""
        ...


class Leg(Protocol):
    """One connection to a server. Its owner ends it; callers only ever ``request``."""

    @property
    def hello(self) -> Hello: ...
    @property
    def isolation(self) -> str:
        """Whose alone it is; empty for the shared one."""
        ...

    @property
    def gone(self) -> asyncio.Future[str]:
        """Done with the reason once the leg is of no more use. Never cancelled by readers."""
        ...

    @property
    def over_http(self) -> bool:
        """Whether requests are HTTP requests of their own."""
        ...

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        """As ``ports.upstream.Upstream.request``, without a timeout: the caller sets it."""
        ...

    async def subscribe(self, uri: str) -> None: ...
    async def unsubscribe(self, uri: str) -> None: ...
    async def set_log_level(self, level: str) -> None: ...

    def listen(self) -> None:
        """Begin to receive notifications that belong to no request. Idempotent."""
        ...

    async def end(self) -> None:
        """Close within a bound and leave nothing behind. Idempotent."""
        ...


async def until_gone(leg: Leg, *others: asyncio.Future[object]) -> None:
    """Wait for the first of the others or for the leg's end; nothing is cancelled."""
    waiting: set[asyncio.Future[object]] = {*others, cast("asyncio.Future[object]", leg.gone)}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


def doubt(host: Host, leg: Leg, status: HttpStatus, caller: Caller) -> None:
    """Nothing is at the server's address any more, or only not for this one request.

    What a caller asked for proves nothing, or one odd request after the other would take the
    server from everybody. Listing again does: then it is us who ask.
    """
    if status.status in (404, 405):
        if caller is SELF:
            lose(leg.gone, f"has nothing at this address (HTTP {status.status})")
        else:
            host.stale(leg, renewed=False)


def lose(gone: asyncio.Future[str], why: str) -> None:
    """Mark a leg as lost; the first reason stands."""
    if not gone.done():
        gone.set_result(why)
