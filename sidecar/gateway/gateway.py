"""The gateway: one request in, one answer out, whichever server it belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias, cast

from sidecar.catalog import Catalog, Untold, View
from sidecar.catalog.formats import FORMATS, BadBlock, read_block
from sidecar.config import Config, ServerConfig
from sidecar.events import Bus, RequestFinished
from sidecar.gate import OpenGate
from sidecar.gateway.about import capabilities, instructions
from sidecar.gateway.calls import Calls
from sidecar.gateway.capture import Capture
from sidecar.gateway.chores import Chores
from sidecar.gateway.listeners import Callback, Hub, Listener, Listening
from sidecar.gateway.lists import KIND, Lists
from sidecar.gateway.requests import Requests
from sidecar.gateway.roster import Roster
from sidecar.gateway.spans import asked, failed, under
from sidecar.gateway.timed import Timed
from sidecar.gateway.watches import Watches
from sidecar.mcp.errors import Rejection, invalid_params, method_not_found
from sidecar.model import (
    Caller,
    Fields,
    JsonObject,
    RpcError,
    ServerStatus,
    Tool,
    Unavailable,
    Unroutable,
)
from sidecar.ports.gate import Gate
from sidecar.ports.tracer import PassingTracer, Span, Tracer
from sidecar.ports.upstream import Upstream
from sidecar.wire import json
from sidecar.wire.jsonrpc import INVALID_PARAMS

_Handler: TypeAlias = Callable[[JsonObject, Caller], Awaitable[Fields]]


class Gateway:
    """Many servers as one, for any number of callers at once.

    Nothing here blocks the loop or knows HTTP. Servers come and go at any time; their owner
    starts and closes them. Used inside a running loop.
    """

    def __init__(
        self, config: Config, bus: Bus, *, gate: Gate | None = None, tracer: Tracer | None = None
    ) -> None:
        """``gate`` defaults to one that admits everything, ``tracer`` to one that keeps nothing."""
        gate = gate or OpenGate()
        tracer = tracer or PassingTracer()
        self._tracer = tracer
        self._bus = bus
        self._depth = config.limits.depth
        self._chores = Chores()
        self._roster = Roster(Catalog(config.separator), config.list_wait)
        self._watches = Watches(self._roster, self._chores)
        self._gate = gate
        self._hub = Hub(bus, self._roster, self._watches, gate)
        self._lists = Lists(self._roster, gate)
        self._calls = Calls(self._roster, gate, tracer, bus, config.retry)
        self._calls.capture = Capture.of(config)
        self._requests = Requests(self._roster, self._calls, self._watches)
        self._handlers: dict[str, _Handler] = {
            "tools/call": self._requests.call_tool,
            "prompts/get": self._requests.get_prompt,
            "resources/read": self._requests.read_resource,
            "resources/subscribe": self._requests.subscribe,
            "completion/complete": self._requests.complete,
        }
        # What is no call has the one span that it gets here, however it ends.
        no_calls: dict[str, _Handler] = {
            "resources/unsubscribe": self._requests.unsubscribe,
            "logging/setLevel": self._requests.set_level,
            "ping": self._ping,
        }
        no_calls |= {method: partial(self._list, method) for method in KIND}
        self._no_calls = {
            method: self._spanned(method, handler) for method, handler in no_calls.items()
        }

    # ------------------------------------------------------------------------ what is asked

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        """Answer one request of a client.

        ``params`` is what is left after the caller's envelope was taken out of it; it is not
        changed. Methods: ``tools/list``, ``tools/call``, ``prompts/list``, ``prompts/get``,
        ``resources/list``, ``resources/templates/list``, ``resources/read``,
        ``resources/subscribe``, ``resources/unsubscribe``, ``completion/complete``,
        ``logging/setLevel``, ``ping``. What belongs to a connection (``initialize``,
        ``server/discover``, ``subscriptions/listen``, notifications) is not asked here.

        In the result's fields ``_meta`` is a dict (its values may be ``Raw``) or absent. A
        call that policy refuses is a result too (``isError``).

        Raises:
            RpcError: the server's own error; -32601 for another method; -32602 for params
                that have the wrong shape, or a cursor that is none of ours.
            Unroutable: no such name or URI among what this caller sees.
            Unavailable: the server could not answer.
        """
        handler = self._handlers.get(method)
        if handler is not None:
            try:
                return await handler(params, caller)
            except (Unroutable, Untold, Rejection) as failure:
                self._missed(method, caller, failure)
                raise
        handler = self._no_calls.get(method)
        if handler is not None:
            return await handler(params, caller)
        raise method_not_found(method)

    async def _list(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        if caller.server is not None and not self.sees(caller.server, caller):
            raise _no_server(caller.server)
        return await self._lists.page(method, params, caller)

    def _spanned(self, method: str, handler: _Handler) -> _Handler:
        """The same with a span around it, for what is no call."""

        async def handle(params: JsonObject, caller: Caller) -> Fields:
            span = self.span(method, caller)
            try:
                fields = await handler(params, under(caller, span.context))
            except BaseException as failure:
                failed(span, failure)
                raise
            span.end()
            return fields

        return handle

    def span(self, method: str, caller: Caller) -> Span:
        """A span for a request that is answered without any server; ``end`` is owed."""
        span = self._tracer.start(method, "server", caller.trace)
        if span.sampled:
            asked(span, method, caller)
        return Timed(span, method, self._bus) if self._bus.wanted(RequestFinished) else span

    def _missed(
        self, method: str, caller: Caller, failure: Unroutable | Untold | Rejection
    ) -> None:
        """A request that led to no call leaves a span all the same."""
        if not isinstance(failure, Rejection) or failure.code == INVALID_PARAMS:
            failed(self.span(method, caller), failure)

    async def _ping(self, params: JsonObject, caller: Caller) -> Fields:
        return {}

    async def call(
        self, name: str, arguments: JsonObject, caller: Caller, *, separator: str | None = None
    ) -> Fields:
        """``tools/call`` by name, for REST; ``separator`` is the caller's own between the
        server and the tool. Raises as ``request``."""
        params: JsonObject = {"name": name, "arguments": arguments}
        separator = _separator(separator)
        try:
            return await self._requests.call_tool(params, caller, separator)
        except (Unroutable, Untold, Rejection) as failure:
            self._missed("tools/call", caller, failure)
            raise

    async def call_block(
        self, block: JsonObject, caller: Caller, *, separator: str | None = None
    ) -> Fields:
        """``tools/call`` from a model's block: Anthropic ``{type: tool_use, name, input}`` or
        OpenAI ``{type: function, function: {name, arguments}}`` with arguments as a JSON string
        or an object. Raises as ``request``; a block that is neither is -32602."""
        try:
            name, arguments = read_block(block, self._depth)
        except BadBlock as error:
            raise invalid_params(str(error)) from None
        return await self.call(name, arguments, caller, separator=separator)

    async def tools_as(
        self,
        format: Literal["mcp", "anthropic", "openai"],
        caller: Caller,
        *,
        separator: str | None = None,
        server: str | None = None,
    ) -> Fields:
        """Every tool this caller sees, as a model API takes it: ``{"tools": Raw}``.

        Waits as ``tools/list`` does; ``_meta["sidecar/unavailable"]`` names the servers that
        are missing, the first 20 of them. With ``server``, that server's tools alone, still under
        catalog names.
        Raises Unroutable for a server that this caller does not see.
        """
        if format not in FORMATS:
            raise invalid_params(f"format is one of {', '.join(FORMATS)}")
        return await self._lists.tools_as(format, caller, _separator(separator), server)

    def sees(self, server: str, caller: Caller) -> bool:
        """Whether there is such a server among what the caller's principal may use."""
        principal = caller.principal
        return self._roster.sees(View(principal.servers, None, principal.harnesses), server)

    def tool(self, name: str, caller: Caller) -> Tool | None:
        """The tool that this caller reaches under this name, ``None`` for none. Never waits."""
        try:
            return self._roster.tool(name, View.of(caller), None).tool
        except (Unroutable, Untold):
            return None

    # ---------------------------------------------------------------- what a connection says

    def capabilities(self, caller: Caller) -> JsonObject:
        """Server capabilities for ``initialize`` and ``server/discover``. Never waits.

        What no visible server has is left out, unless one of them has not told yet.
        """
        return capabilities(self._roster.shelves(View.of(caller)))

    def instructions(self, caller: Caller) -> str:
        """The visible servers' instructions, each under its name; empty for none. Never waits."""
        view = View.of(caller)
        shelves = self._roster.shelves(view)
        for shelf in shelves:
            if shelf.entries.instructions.strip():
                self._gate.heard(shelf.config.name, "initialize", caller)
        return instructions(shelves, named=view.server is None)

    # ------------------------------------------------------------------------- what is told

    def listen(self, caller: Caller, callback: Callback) -> Listening:
        """Tell this caller what changes in what it sees, until ``stop``.

        Notifications: the three ``list_changed`` (a burst becomes one), ``resources/updated``
        for what its session subscribed to or this listener watches, and in the legacy era
        ``notifications/message`` that belongs to no running call. ``callback`` must not block.
        """
        return _Listening(self._hub, self._watches, self._requests, Listener(caller, callback))

    def tools_changed(self) -> None:
        """What callers are shown of the tools may be other than before (a policy was reloaded):
        every listener is told once."""
        self._hub.changed(everybody=True)

    async def close_session(self, session: str) -> None:
        """A downstream session ended: end its subscriptions, its log level, and whatever its
        servers keep for it alone. Idempotent."""
        await self._watches.forget(session)

    # --------------------------------------------------------------------- which servers

    def attach(self, upstream: Upstream, config: ServerConfig) -> None:
        """Add a server after all others, or replace the one of the same name in its place."""
        servers = [(slot.upstream, slot.config) for slot in self._roster.slots.values()]
        names = [held.name for _, held in servers]
        if config.name in names:
            servers[names.index(config.name)] = (upstream, config)
        else:
            servers.append((upstream, config))
        self.set_servers(servers)

    def detach(self, name: str) -> Upstream | None:
        """Take a server out; its running calls are its owner's to end. Returns it, unclosed."""
        slots = self._roster.slots
        gone = slots.get(name)
        if gone is None:
            return None
        self.set_servers([(s.upstream, s.config) for s in slots.values() if s is not gone])
        return gone.upstream

    def set_servers(self, servers: Sequence[tuple[Upstream, ServerConfig]]) -> list[Upstream]:
        """Replace the whole list, in this order; what stays is not disturbed, listeners are
        told once. Returns what is no longer used, unclosed."""
        before = self._roster.slots
        gone = self._roster.place(servers)
        for name, slot in self._roster.slots.items():
            if before.get(name) is not slot:
                self._watches.restore(slot)
        for name in before.keys() - self._roster.slots.keys():
            self._lists.forget(name)
        self._hub.changed()
        return gone

    def reconfigure(self, config: Config) -> None:
        """Take over ``retry``, ``list_wait``, ``limits`` and what is captured; names and servers
        stay as they are."""
        self._calls.retry = config.retry
        self._calls.capture = Capture.of(config)
        self._roster.list_wait = config.list_wait
        self._depth = config.limits.depth

    def servers(self) -> list[ServerStatus]:
        """The status of every server, in order, for the operator: no principal's view."""
        return [slot.upstream.status for slot in self._roster.slots.values()]

    def tools(self) -> list[Tool]:
        """Every tool of the catalog, in order, for the operator: no principal's view."""
        self._roster.refresh()
        return self._roster.catalog.tools()

    def config_of(self, server: str) -> ServerConfig | None:
        """A server's configuration, the same object until it is configured otherwise."""
        slot = self._roster.slots.get(server)
        return slot.config if slot is not None else None

    def definition(self, server: str, tool: str) -> Tool | None:
        """A server's tool, by its own name, as it is defined now; ``None`` for one unknown."""
        if not self._roster.fresh(server):
            self._roster.refresh()
        shelf = self._roster.catalog.shelf(server)
        entry = shelf.by_key["tools"].get(tool) if shelf is not None else None
        return entry.tool if entry is not None else None

    def schema(self, server: str, tool: str) -> JsonObject | None:
        """The input schema of a server's tool (its own name), as far as it has told. Only looks
        things up: it may be asked in any thread."""
        shelf = self._roster.catalog.shelf(server)
        entry = shelf.by_key["tools"].get(tool) if shelf is not None else None
        if entry is None:
            return None
        try:
            definition = cast("JsonObject", json.decode(entry.source, depth=256))
        except json.BadJson:
            return None
        schema = definition.get("inputSchema")
        return cast("JsonObject", schema) if isinstance(schema, dict) else None

    async def close(self) -> None:
        """End our own tasks and listeners. Servers are their owner's to close. Idempotent."""
        self._hub.close()
        await self._chores.close()
        await self._roster.close()


class _Listening:
    """The ``Listening`` that ``Gateway.listen`` gives."""

    def __init__(self, hub: Hub, watches: Watches, requests: Requests, listener: Listener) -> None:
        self._hub = hub
        self._watches = watches
        self._requests = requests
        self._listener = listener
        self._stopped = False
        hub.add(listener)

    async def watch(self, uris: Iterable[str]) -> list[str]:
        caller = self._listener.caller
        watched: list[str] = []
        for uri in dict.fromkeys(uris):
            if self._stopped:
                break
            watch = self._watches.listener(self._listener, caller)
            try:
                fields = await self._requests.watch(uri, caller, watch)
            except (Unroutable, Unavailable, RpcError):
                continue
            if "isError" not in fields:
                watched.append(uri)
        return watched

    def stop(self) -> None:
        self._stopped = True
        self._hub.discard(self._listener)
        self._watches.stop(self._listener)


def _separator(separator: str | None) -> str | None:
    if separator is not None and not 0 < len(separator) <= 16:
        raise invalid_params("separator is 1 to 16 characters")
    return separator


def _no_server(server: str) -> Unroutable:
    return Unroutable("unknown_server", f"there is no server {server!r} here")
