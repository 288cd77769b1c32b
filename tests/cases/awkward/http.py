"""The awkward server over HTTP: Streamable HTTP of both eras at /mcp, the old transport at /sse.

``/hang`` accepts and never answers, ``/garbage`` answers everything with a web page.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.cases.awkward.behaviour import LEGACY_VERSIONS, Behaviour
from tests.cases.awkward.server import (
    CHANGES,
    META_SUBSCRIPTION,
    META_VERSION,
    Awkward,
    Message,
    Request,
    error,
)

SESSION = "Mcp-Session-Id"
VERSION = "MCP-Protocol-Version"
NAME_OF = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
SSE_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


def event(message: Message) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def decoded(value: str) -> str:
    """A header's value as the modern era writes what is not printable ASCII."""
    encoded = re.fullmatch(r"=\?base64\?(.*)\?=", value)
    return base64.b64decode(encoded[1]).decode() if encoded else value


async def open_stream(http: web.Request, headers: dict[str, str] | None = None) -> Any:
    stream = web.StreamResponse(headers=SSE_HEADERS | (headers or {}))
    await stream.prepare(http)
    return stream


@dataclass
class HttpRequest(Request):
    """A request of a POST; its stream opens with the first notification."""

    http: web.Request | None = None
    stream: web.StreamResponse | None = None
    raw: bytes | None = None

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        assert self.http is not None
        # In the handshake era a client that hung up ends nothing: the work goes on, unheard.
        with contextlib.suppress(ConnectionError):
            if self.stream is None:
                self.stream = await open_stream(self.http)
            await self.stream.write(event({"jsonrpc": "2.0", "method": method, "params": params}))

    async def send_raw(self, raw: str) -> None:
        self.raw = raw.encode()

    async def drop(self) -> None:
        assert self.http is not None
        if self.http.transport is not None:
            self.http.transport.close()


@dataclass
class StreamListener:
    """A GET stream, an old SSE stream, or a modern listen request with its ``wanted`` filter."""

    stream: web.StreamResponse
    session: str | None
    subscription: int | str | None = None
    wanted: dict[str, Any] = field(default_factory=dict)

    @property
    def uris(self) -> tuple[str, ...]:
        return tuple(self.wanted.get("resourceSubscriptions", ()))

    async def send(self, method: str, params: dict[str, Any]) -> None:
        if self.subscription is not None:
            if method in CHANGES and not self.wanted.get(CHANGES[method]):
                return
            params = {**params, "_meta": {META_SUBSCRIPTION: self.subscription}}
        await self.write({"jsonrpc": "2.0", "method": method, "params": params})

    async def write(self, message: Message) -> None:
        # A listener that just left is told nothing more.
        with contextlib.suppress(ConnectionError):
            await self.stream.write(event(message))


class HttpServer:
    """One listening socket in front of an ``Awkward``. It can be stopped and started again."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.server = Awkward(behaviour)
        self.sessions: set[str] = set()
        self.ended: list[str] = []
        """Sessions that the client ended by DELETE."""
        self.closed: list[int | str] = []
        """Ids of legacy requests whose POST was closed before its answer."""
        self.set_cookie = ""
        """A cookie that every answer in JSON sets."""
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def sse_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sse"

    def at(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    async def start(self) -> None:
        """Listens; on the port that it had before, if there was one."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/mcp", self._post)
        app.router.add_get("/mcp", self._get)
        app.router.add_delete("/mcp", self._delete)
        app.router.add_get("/sse", self._sse)
        app.router.add_post("/messages", self._messages)
        app.router.add_route("*", "/hang", self._hang)
        app.router.add_route("*", "/garbage", self._garbage)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for task in (*self._background, *self.server.tasks.values()):
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def forget_sessions(self) -> None:
        """From now on every session there was is unknown."""
        self.sessions.clear()
        self.server.listeners.clear()

    # -------------------------------------------------------------------- Streamable HTTP

    async def _post(self, http: web.Request) -> web.StreamResponse:
        message = json.loads(await http.read())
        if self.server.behaviour.status:
            self.server.record(message, http.headers.get(SESSION), http.headers)
            return web.Response(status=self.server.behaviour.status, text="not today")
        version = http.headers.get(VERSION)
        if version is None or version in LEGACY_VERSIONS:
            return await self._legacy(http, message)
        return await self._modern(http, message)

    async def _legacy(self, http: web.Request, message: Message) -> web.StreamResponse:
        server, session, headers = self.server, http.headers.get(SESSION), {}
        server.record(message, session, http.headers)
        method = message.get("method")
        if method == "initialize" and server.behaviour.sessions:
            session = headers[SESSION] = uuid.uuid4().hex
            self.sessions.add(session)
        elif server.behaviour.sessions and session not in self.sessions:
            return self._lost(message, session)
        if "id" not in message:
            if method == "notifications/cancelled":
                server.cancel(session, message["params"]["requestId"])
            return web.Response(status=202)
        if method is None:
            server.answers.append(message)
            return web.Response(status=202)
        request = HttpRequest(
            message["id"], method, message.get("params") or {}, "legacy", session, http.headers
        )
        request.http = http
        task = asyncio.create_task(server.run(request))
        self._keep(task)
        try:
            answer: Message | None = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                # The client closed the POST: in this era that ends nothing.
                self.closed.append(request.id)
                raise
            answer = None
        return await self._answer(request, answer, headers)

    def _lost(self, message: Message, session: str | None) -> web.Response:
        if session is None:
            return web.Response(status=400, text="Bad Request: Mcp-Session-Id is required")
        request_id, lost = message.get("id"), self.server.behaviour.lost
        if lost == "404":
            return web.Response(status=404, text="Not Found")
        code, text, status = {
            "404-json": (-32001, "Session not found", 404),
            "400": (-32000, "Bad Request: No valid session ID provided", 400),
            "-32001": (-32001, "Session not found", 200),
        }[lost]
        body = {"jsonrpc": "2.0", "id": request_id, **error(code, text)}
        return web.json_response(body, status=status)

    async def _modern(self, http: web.Request, message: Message) -> web.StreamResponse:
        server = self.server
        server.record(message, None, http.headers)
        if "id" not in message:
            return web.Response(status=202)
        method, params = message["method"], message.get("params") or {}
        if "modern" not in server.behaviour.eras:
            # As a server does that has never heard of the era: it wants a session.
            return web.Response(status=400, text="Bad Request: Server not initialized")
        wrong = self._wrong_headers(http, method, params)
        if wrong:
            body = {"jsonrpc": "2.0", "id": message["id"], **error(-32020, wrong)}
            return web.json_response(body, status=400)
        if method == "subscriptions/listen":
            return await self._listen(http, message)
        request = HttpRequest(message["id"], method, params, "modern", None, http.headers)
        request.http = http
        return await self._answer(request, await self._until_cancelled(request), {})

    async def _until_cancelled(self, request: HttpRequest) -> Message | None:
        try:
            return await self.server.run(request)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            return None

    def _wrong_headers(self, http: web.Request, method: str, params: dict[str, Any]) -> str:
        told = params.get("_meta", {}).get(META_VERSION)
        if told != http.headers[VERSION]:
            return f"{VERSION} differs from _meta"
        if http.headers.get("Mcp-Method") != method:
            return "Mcp-Method differs from the body"
        name = params.get(NAME_OF[method]) if method in NAME_OF else None
        if name is not None and decoded(http.headers.get("Mcp-Name", "")) != name:
            return "Mcp-Name differs from the body"
        return ""

    async def _answer(
        self, request: HttpRequest, answer: Message | None, headers: dict[str, str]
    ) -> web.StreamResponse:
        assert request.http is not None
        if request.raw is not None:
            if self.server.behaviour.answers == "sse":
                body, kind = b"data: " + request.raw + b"\n\n", "text/event-stream"
            else:
                body, kind = request.raw, "application/json"
            return web.Response(body=body, headers=headers, content_type=kind)
        if request.stream is None and (answer is None or self.server.behaviour.answers == "sse"):
            request.stream = await open_stream(request.http, headers)
        if request.stream is None:
            if self.set_cookie:
                headers = {**headers, "Set-Cookie": self.set_cookie}
            return web.json_response(answer, headers=headers)
        if answer is not None:
            await request.stream.write(event(answer))
        await request.stream.write_eof()
        return request.stream

    async def _listen(self, http: web.Request, message: Message) -> web.StreamResponse:
        wanted = message["params"].get("notifications", {})
        stream = await open_stream(http)
        listener = StreamListener(stream, None, message["id"], wanted)
        await listener.send("notifications/subscriptions/acknowledged", {"notifications": wanted})
        return await self._hold(listener)

    async def _get(self, http: web.Request) -> web.StreamResponse:
        session = http.headers.get(SESSION)
        if self.server.behaviour.sessions and session not in self.sessions:
            return web.Response(status=404)
        return await self._hold(StreamListener(await open_stream(http), session))

    async def _hold(self, listener: StreamListener) -> web.StreamResponse:
        server = self.server
        server.listeners.append(listener)
        if server.behaviour.ask_on_connect and listener.subscription is None:
            for number, method in enumerate(("roots/list", "awkward/unknown")):
                await listener.write({"jsonrpc": "2.0", "id": f"ask-{number}", "method": method})
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(ValueError):
                server.listeners.remove(listener)
        return listener.stream

    async def _delete(self, http: web.Request) -> web.Response:
        session = http.headers.get(SESSION, "")
        known = session in self.sessions
        self.sessions.discard(session)
        self.ended.append(session)
        return web.Response(status=200 if known else 404)

    # ------------------------------------------------------------------ the old transport

    async def _sse(self, http: web.Request) -> web.StreamResponse:
        session = uuid.uuid4().hex
        stream = await open_stream(http)
        listener = StreamListener(stream, session)
        await stream.write(f"event: endpoint\ndata: /messages?session={session}\n\n".encode())
        return await self._hold(listener)

    async def _messages(self, http: web.Request) -> web.Response:
        session = http.query.get("session", "")
        message = json.loads(await http.read())
        self.server.record(message, session, http.headers)
        listener = next((x for x in self.server.listeners if x.session == session), None)
        if not isinstance(listener, StreamListener):
            return web.Response(status=404)
        if "id" in message and "method" in message:
            request = OldRequest(
                message["id"],
                message["method"],
                message.get("params") or {},
                "legacy",
                session,
                http.headers,
            )
            request.listener = listener
            self._keep(asyncio.create_task(self._answer_old(request, listener)))
        elif message.get("method") == "notifications/cancelled":
            self.server.cancel(session, message["params"]["requestId"])
        elif "method" not in message:
            self.server.answers.append(message)
        return web.Response(status=202)

    async def _answer_old(self, request: Request, listener: StreamListener) -> None:
        await listener.write(await self.server.run(request))

    # ---------------------------------------------------------------------- not MCP at all

    async def _hang(self, http: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets was set")

    async def _garbage(self, http: web.Request) -> web.Response:
        return web.Response(text="<html><body>Welcome!</body></html>", content_type="text/html")

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._background.add(task)
        forget: Callable[[asyncio.Task[Any]], None] = self._background.discard
        task.add_done_callback(forget)


@dataclass
class OldRequest(Request):
    """A request of the old transport, answered on the session's one stream."""

    listener: StreamListener | None = None

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        assert self.listener is not None
        await self.listener.send(method, params)

    async def send_raw(self, raw: str) -> None:
        assert self.listener is not None
        await self.listener.stream.write(f"event: message\ndata: {raw}\n\n".encode())

    async def drop(self) -> None:
        assert self.listener is not None
        transport = self.listener.stream._req.transport if self.listener.stream._req else None
        if transport is not None:
            transport.close()


@contextlib.asynccontextmanager
async def serving(behaviour: Behaviour | None = None) -> AsyncIterator[HttpServer]:
    """A started ``HttpServer`` in the running loop, stopped at the end."""
    server = HttpServer(behaviour)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        server.server.end_children()
