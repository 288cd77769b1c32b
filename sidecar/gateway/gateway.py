"""The gateway: one request in, one answer out, whichever server it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sidecar.config import Config, ServerConfig
from sidecar.events import Bus
from sidecar.gateway.listeners import Callback, Listening
from sidecar.model import Caller, Fields, JsonObject, ServerStatus, Tool
from sidecar.ports.gate import Gate
from sidecar.ports.tracer import PassingTracer, Tracer
from sidecar.ports.upstream import Upstream


class Gateway:
    """Many servers as one, for any number of callers at once.

    Nothing here blocks the loop or knows HTTP. Servers come and go at any time; their owner
    starts and closes them.
    """

    def __init__(
        self, config: Config, bus: Bus, *, gate: Gate | None = None, tracer: Tracer | None = None
    ) -> None:
        """``gate`` defaults to one that admits everything, ``tracer`` to one that keeps nothing."""
        self._tracer = tracer or PassingTracer()

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
        raise NotImplementedError

    async def call(
        self, name: str, arguments: JsonObject, caller: Caller, *, separator: str | None = None
    ) -> Fields:
        """``tools/call`` by name, for REST; ``separator`` is the caller's own between the
        server and the tool. Raises as ``request``."""
        raise NotImplementedError

    async def call_block(
        self, block: JsonObject, caller: Caller, *, separator: str | None = None
    ) -> Fields:
        """``tools/call`` from a model's block: Anthropic ``{type: tool_use, name, input}`` or
        OpenAI ``{type: function, function: {name, arguments}}`` with arguments as a JSON string
        or an object. Raises as ``request``; a block that is neither is -32602."""
        raise NotImplementedError

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
        are missing. With ``server``, that server's tools alone, still under catalog names.
        Raises Unroutable for a server that this caller does not see.
        """
        raise NotImplementedError

    def sees(self, server: str, caller: Caller) -> bool:
        """Whether there is such a server among what the caller's principal may use."""
        raise NotImplementedError

    # ---------------------------------------------------------------- what a connection says

    def capabilities(self, caller: Caller) -> JsonObject:
        """Server capabilities for ``initialize`` and ``server/discover``. Never waits.

        What no visible server has is left out, unless one of them has not told yet.
        """
        raise NotImplementedError

    def instructions(self, caller: Caller) -> str:
        """The visible servers' instructions, each under its name; empty for none. Never waits."""
        raise NotImplementedError

    # ------------------------------------------------------------------------- what is told

    def listen(self, caller: Caller, callback: Callback) -> Listening:
        """Tell this caller what changes in what it sees, until ``stop``.

        Notifications: the three ``list_changed`` (a burst becomes one), ``resources/updated``
        for what its session subscribed to or this listener watches, and in the legacy era
        ``notifications/message`` that belongs to no running call. ``callback`` must not block.
        """
        raise NotImplementedError

    async def close_session(self, session: str) -> None:
        """A downstream session ended: end its subscriptions, its log level, and whatever its
        servers keep for it alone. Idempotent."""
        raise NotImplementedError

    # --------------------------------------------------------------------- which servers

    def attach(self, upstream: Upstream, config: ServerConfig) -> None:
        """Add a server after all others, or replace the one of the same name in its place."""
        raise NotImplementedError

    def detach(self, name: str) -> Upstream | None:
        """Take a server out; its running calls are its owner's to end. Returns it, unclosed."""
        raise NotImplementedError

    def set_servers(self, servers: Sequence[tuple[Upstream, ServerConfig]]) -> list[Upstream]:
        """Replace the whole list, in this order; what stays is not disturbed, listeners are
        told once. Returns what is no longer used, unclosed."""
        raise NotImplementedError

    def servers(self) -> list[ServerStatus]:
        """The status of every server, in order, for the operator: no principal's view."""
        raise NotImplementedError

    def tools(self) -> list[Tool]:
        """Every tool of the catalog, in order, for the operator: no principal's view."""
        raise NotImplementedError

    async def close(self) -> None:
        """End our own tasks and listeners. Servers are their owner's to close. Idempotent."""
        raise NotImplementedError
