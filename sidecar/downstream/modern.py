"""MCP over HTTP without sessions: 2026-07-28. Every request stands for itself."""

from __future__ import annotations

from aiohttp import web
from multidict import istr

from sidecar.downstream import bodies
from sidecar.downstream.accept import accepts
from sidecar.downstream.arguments import ArgumentHeaders
from sidecar.downstream.auth import Grant
from sidecar.downstream.exchange import Exchange
from sidecar.downstream.filters import LISTEN, Filter, acknowledgement, listened, render
from sidecar.downstream.replies import Refusal, empty, refused
from sidecar.downstream.state import State
from sidecar.downstream.stream import Stream
from sidecar.downstream.trace import trace_of
from sidecar.mcp import errors, inbound
from sidecar.mcp.errors import Rejection
from sidecar.mcp.inbound import Inbound
from sidecar.mcp.versions import MODERN_VERSION
from sidecar.model import Caller, Era, JsonObject, Notify, RequestId, no_notify
from sidecar.wire.json import BadJson

_ACCEPT = istr("Accept")


class Modern:
    """POST of the stateless era; there is nothing else."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._arguments = ArgumentHeaders(state.gateway)

    async def post(
        self, request: web.BaseRequest, grant: Grant, body: bytes, server: str | None
    ) -> web.StreamResponse:
        """One message of the client's. Closing the connection cancels what it asked for."""
        wanted = accepts(request.headers.getall(_ACCEPT, ()))
        if not (wanted.json and wanted.sse):
            raise Refusal(406, "send Accept: application/json, text/event-stream")
        try:
            message = inbound.modern(bodies.read(body, self._state.limits), request.headers)
        except BadJson as bad:
            return refused(errors.parse_error(str(bad)), None, 400)
        except Rejection as rejection:
            return refused(rejection, rejection.id, rejection.status)
        message.envelope.ambient(trace_of(request.headers))
        id_ = message.id
        if id_ is None:
            return empty(202)
        if server is not None and not self._state.gateway.sees(
            server, self._caller(grant, server, message, no_notify)
        ):
            raise self._state.unknown_server(id_)
        self._state.admit(id_)
        if message.method == LISTEN:
            return await self._listen(request, grant, server, message, id_)
        exchange = Exchange(self._state.crowd, grant, id_, era=Era.MODERN, sse=True)
        caller = self._caller(grant, server, message, exchange.notify)
        if message.method == "tools/call":
            mismatch = self._arguments.check(request.headers, message.params, caller)
            if mismatch is not None:
                return refused(mismatch, id_, mismatch.status)
        exchange.start(self._state.desk.answer(id_, message.method, message.params, caller))
        return await exchange.respond(request)

    @staticmethod
    def _caller(grant: Grant, server: str | None, message: Inbound, notify: Notify) -> Caller:
        envelope = message.envelope
        return Caller(
            principal=grant.principal,
            era=Era.MODERN,
            server=server,
            client=envelope.client,
            capabilities=envelope.capabilities or {},
            trace=envelope.trace,
            progress=envelope.progress,
            log_level=envelope.log_level,
            notify=notify,
            link=envelope.link,
            request=envelope.request,
            protocol=MODERN_VERSION,
        )

    async def _listen(
        self,
        request: web.BaseRequest,
        grant: Grant,
        server: str | None,
        message: Inbound,
        id_: RequestId,
    ) -> web.StreamResponse:
        """A stream of what was asked for, acknowledged first, ended with a result."""
        state = self._state
        if len(state.listens) >= state.limits.sessions:
            raise Refusal(
                503,
                f"limits.sessions, {state.limits.sessions}, streams are open already",
                {"Retry-After": "5"},
                id=id_,
            )
        try:
            wanted = Filter.of(message.params)
        except Rejection as rejection:
            return refused(rejection, id_, rejection.status)
        watched: frozenset[str] = frozenset()

        def offer(method: str, params: JsonObject) -> None:
            # What comes before the resources are watched is about lists alone.
            if wanted.passes(method, params, watched):
                stream.offer(method, params)

        stream = Stream(request, lambda told: render(told, Era.MODERN, id_))
        caller = self._caller(grant, server, message, no_notify)
        listening = state.gateway.listen(caller, offer)
        state.listens[stream] = grant
        try:
            uris = await listening.watch(wanted.uris) if wanted.uris else []
            watched = frozenset(uris)
            return await stream.run(
                [acknowledgement(id_, wanted.honoured(uris))],
                lambda: listened(id_, state.desk.server_info),
            )
        finally:
            del state.listens[stream]
            listening.stop()
