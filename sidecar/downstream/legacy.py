"""MCP over HTTP with sessions: the revisions up to 2025-11-25."""

from __future__ import annotations

import asyncio

from aiohttp import web
from multidict import istr

from sidecar.downstream import bodies
from sidecar.downstream.accept import Accepts, accepts
from sidecar.downstream.auth import Grant
from sidecar.downstream.exchange import SSE_HEADERS, Exchange
from sidecar.downstream.filters import render
from sidecar.downstream.replies import Refusal, empty, json_reply, refused
from sidecar.downstream.session import Opening
from sidecar.downstream.sessions import HttpSession
from sidecar.downstream.state import State
from sidecar.downstream.stream import Stream
from sidecar.downstream.trace import trace_of
from sidecar.mcp import errors, headers, inbound
from sidecar.mcp.errors import Rejection
from sidecar.mcp.headers import SESSION_HEADER
from sidecar.mcp.inbound import Inbound, Reply
from sidecar.model import Era, no_notify
from sidecar.wire import jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.sse import encode_event

LINGER = 0.3
"""Seconds that a request outlives its connection: closing it is no cancellation in this era, and
the client may be about to send one that says why."""

_ACCEPT = istr("Accept")
_SESSION = istr(SESSION_HEADER)


class Legacy:
    """POST, GET and DELETE of the sessions' era."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def post(
        self, request: web.BaseRequest, grant: Grant, body: bytes, server: str | None
    ) -> web.StreamResponse:
        """One message of the client's."""
        wanted = accepts(request.headers.getall(_ACCEPT, ()))
        if not (wanted.json or wanted.sse):
            raise Refusal(406, "send Accept: application/json, text/event-stream")
        try:
            message = inbound.legacy(bodies.read(body, self._state.limits))
        except BadJson as bad:
            return refused(errors.parse_error(str(bad)), None, 400)
        except Rejection as rejection:
            return refused(rejection, rejection.id, 400)
        if isinstance(message, Reply):
            self._session(request, grant, server).answered(message)
            return empty(202)
        message.envelope.ambient(trace_of(request.headers))
        if message.method == "initialize" and message.id is not None:
            return self._initialize(request, grant, server, message, wanted)
        session = self._session(request, grant, server, message)
        rejection_ = headers.check(request.headers, message.method, message.params)
        if rejection_ is not None:
            return refused(rejection_, message.id, 400)
        if message.id is None:
            session.notified(message.method, message.params)
            return empty(202)
        return await self._answer(request, session, message, wanted)

    async def _answer(
        self, request: web.BaseRequest, session: HttpSession, message: Inbound, wanted: Accepts
    ) -> web.StreamResponse:
        state = self._state
        id_ = message.id
        assert id_ is not None
        state.admit(id_)
        try:
            exchange = Exchange(
                state.crowd, session.grant, id_, session.calls, era=Era.LEGACY, sse=wanted.sse
            )
        except Rejection as rejection:
            return refused(rejection, id_, 400)
        ask = exchange.asking(session.asks)
        caller = session.caller(message.envelope, exchange.notify, ask)
        exchange.start(state.desk.answer(id_, message.method, message.params, caller, session))
        try:
            return await exchange.respond(request, linger=LINGER, json=wanted.json)
        finally:
            session.used = asyncio.get_running_loop().time()

    def _initialize(
        self,
        request: web.BaseRequest,
        grant: Grant,
        server: str | None,
        message: Inbound,
        wanted: Accepts,
    ) -> web.StreamResponse:
        state = self._state
        mismatch = headers.check(request.headers, message.method, message.params)
        if mismatch is not None:
            return refused(mismatch, message.id, 400)
        try:
            opening = Opening.of(message.params)
        except Rejection as rejection:
            return refused(rejection, message.id, 200)
        state.admit(message.id)
        # Whatever session the client shows: it wants a new one.
        session = state.open(grant, server, opening)
        caller = session.caller(message.envelope, no_notify)
        if server is not None and not state.gateway.sees(server, caller):
            state.sessions.end(session, "no such server")
            raise state.unknown_server(message.id)
        assert message.id is not None
        result = jsonrpc.result(message.id, state.desk.initialize(opening.version, caller))
        if wanted.json:
            return json_reply(result, 200, {SESSION_HEADER: session.id})
        return web.Response(
            body=encode_event(result), headers={**SSE_HEADERS, SESSION_HEADER: session.id}
        )

    async def get(
        self, request: web.BaseRequest, grant: Grant, body: bytes, server: str | None
    ) -> web.StreamResponse:
        """A stream of what the server says of its own accord. Nothing is replayed on it."""
        lines = request.headers.getall(_ACCEPT, ())
        if lines and not accepts(lines).sse:
            raise Refusal(406, "send Accept: text/event-stream")
        session = self._session(request, grant, server)
        if self._state.draining:
            self._state.admit(None)
        stream = Stream(request, lambda told: render(told, Era.LEGACY))
        session.attach(stream)
        try:
            return await stream.run()
        finally:
            session.detach(stream)
            session.used = asyncio.get_running_loop().time()

    async def delete(
        self, request: web.BaseRequest, grant: Grant, body: bytes, server: str | None
    ) -> web.StreamResponse:
        """The client is done with its session."""
        self._state.sessions.end(self._session(request, grant, server), "deleted by the client")
        return empty(200)

    def _session(
        self,
        request: web.BaseRequest,
        grant: Grant,
        server: str | None,
        message: Inbound | None = None,
    ) -> HttpSession:
        id_ = message.id if message is not None else None
        lines = request.headers.getall(_SESSION, ())
        if len(lines) != 1:
            raise Refusal(
                400,
                f"send initialize first, and its {SESSION_HEADER} with everything after it"
                if not lines
                else f"{SESSION_HEADER} came more than once",
                id=id_,
            )
        now = asyncio.get_running_loop().time()
        session = self._state.sessions.find(lines[0], grant, server, now)
        if session is None:
            raise Refusal(404, "there is no such session (any more): initialize again", id=id_)
        return session
