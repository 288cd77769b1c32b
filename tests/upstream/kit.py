"""A scripted MCP server over HTTP in this process, and what is needed to watch an upstream."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from sidecar.events import (
    Bus,
    Event,
    LegChanged,
    LogMessage,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated,
    ToolsChanged,
)
from sidecar.model import Caller, Client, Era, Principal, RpcError

Json = Any
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


def tool(name: str, **more: Json) -> dict[str, Json]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


@dataclass
class Seen:
    """One HTTP request as it came."""

    http: str
    headers: Mapping[str, str]
    body: dict[str, Json]
    session: str | None

    @property
    def method(self) -> str:
        return str(self.body.get("method", ""))

    @property
    def params(self) -> dict[str, Json]:
        return dict(self.body.get("params") or {})

    @property
    def meta(self) -> dict[str, Json]:
        return dict(self.params.get("_meta") or {})


class Stream:
    """An event stream that is opened when it is first written to."""

    def __init__(self, request: web.Request, headers: Mapping[str, str] | None = None) -> None:
        self.request = request
        self.headers = {"Content-Type": "text/event-stream", **(headers or {})}
        self.response: web.StreamResponse | None = None

    async def open(self) -> web.StreamResponse:
        if self.response is None:
            self.response = web.StreamResponse(headers=self.headers)
            await self.response.prepare(self.request)
        return self.response

    async def raw(self, data: bytes) -> None:
        await (await self.open()).write(data)

    async def send(self, message: Json, *, id: str | None = None) -> None:
        head = b"" if id is None else b"id: %s\n" % id.encode()
        await self.raw(head + b"data: " + json.dumps(message).encode() + b"\n\n")

    async def notify(self, method: str, params: Json) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})


Handler = Callable[[Seen, Stream], Awaitable[Json]]


@dataclass
class Fake:
    """An MCP server. ``eras`` are what it speaks; ``stateful`` gives sessions with ids.

    ``on`` maps a method, or a tool's name after ``tools/call ``, to what answers it: a result,
    an ``RpcError`` to raise, or a ``web.StreamResponse`` that is sent as it is.
    """

    eras: tuple[str, ...] = ("legacy",)
    stateful: bool = True
    sse: bool = False
    get: bool = True
    capabilities: dict[str, Json] = field(
        default_factory=lambda: {"tools": {"listChanged": True}, "logging": {}}
    )
    tools: list[Json] = field(default_factory=lambda: [tool("echo"), tool("whoami")])
    on: dict[str, Handler] = field(default_factory=dict)
    lost: Callable[[], web.Response] = lambda: web.json_response(
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}},
        status=404,
    )
    seen: list[Seen] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    streams: list[Stream] = field(default_factory=list)
    listens: list[tuple[Seen, Stream]] = field(default_factory=list)
    most_listens: int = 0
    inflight: int = 0
    most_inflight: int = 0
    server: TestServer = field(init=False)

    # ------------------------------------------------------------------------- life

    async def start(self, port: int | None = None) -> Fake:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/mcp", self.handle)
        self.server = TestServer(app, port=port)
        await self.server.start_server(access_log=None, shutdown_timeout=0.05)
        return self

    async def stop(self) -> None:
        await self.server.close()

    @property
    def url(self) -> str:
        return str(self.server.make_url("/mcp"))

    # ---------------------------------------------------------------------- looking back

    def methods(self) -> list[str]:
        return [seen.method or seen.http for seen in self.seen]

    def of(self, method: str) -> list[Seen]:
        return [seen for seen in self.seen if (seen.method or seen.http) == method]

    # ------------------------------------------------------------------------ answering

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text) if text else {}
        seen = Seen(request.method, request.headers, body, request.headers.get("Mcp-Session-Id"))
        self.seen.append(seen)
        version = request.headers.get("MCP-Protocol-Version")
        if request.method == "POST" and seen.method in self.on and seen.method in _EARLY:
            return await self._answer(seen, request, {})
        if version == MODERN:
            if "modern" not in self.eras:
                return _error(seen, -32601, "Method not found", 200)
            return await self._modern(seen, request)
        if "legacy" not in self.eras:
            data = {"supported": [MODERN], "requested": "2025-11-25"}
            return _error(seen, -32022, "Unsupported protocol version", 400, data)
        return await self._legacy(seen, request)

    async def _modern(self, seen: Seen, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.Response(status=405)
        if seen.method == "subscriptions/listen" and seen.method not in self.on:
            return await self._listen(seen, request)
        return await self._answer(seen, request, {})

    async def _listen(self, seen: Seen, request: web.Request) -> web.StreamResponse:
        stream = Stream(request)
        self.listens.append((seen, stream))
        self.most_listens = max(self.most_listens, len(self.listens))
        await stream.notify(
            "notifications/subscriptions/acknowledged",
            {
                "_meta": {META + "subscriptionId": seen.body["id"]},
                "notifications": seen.params["notifications"],
            },
        )
        try:
            await asyncio.sleep(3600)
        finally:
            self.listens.remove((seen, stream))
        return await stream.open()

    async def _legacy(self, seen: Seen, request: web.Request) -> web.StreamResponse:
        headers = {}
        if seen.method == "initialize":
            if self.stateful:
                headers["Mcp-Session-Id"] = uuid.uuid4().hex
                self.sessions.add(headers["Mcp-Session-Id"])
        elif self.stateful and seen.session not in self.sessions:
            return self.lost()
        if request.method == "DELETE":
            self.sessions.discard(seen.session or "")
            return web.Response()
        if request.method == "GET":
            return await self._events(request)
        if "id" not in seen.body or "method" not in seen.body:
            return web.Response(status=202)
        return await self._answer(seen, request, headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if not self.get:
            return web.Response(status=405)
        stream = Stream(request)
        await stream.raw(b": hello\n\n")
        self.streams.append(stream)
        try:
            await asyncio.sleep(3600)
        finally:
            self.streams.remove(stream)
        return await stream.open()

    async def _answer(
        self, seen: Seen, request: web.Request, headers: dict[str, str]
    ) -> web.StreamResponse:
        stream = Stream(request, headers)
        handler = self.on.get(seen.method) or self.on.get(
            f"{seen.method} {seen.params.get('name')}"
        )
        self.inflight += 1
        self.most_inflight = max(self.most_inflight, self.inflight)
        try:
            result = await handler(seen, stream) if handler else self._usual(seen)
        except RpcError as error:
            found = {"code": error.code, "message": error.message}
            if error.data is not None:
                found["data"] = error.data
            answer = {"jsonrpc": "2.0", "id": seen.body["id"], "error": found}
        else:
            if isinstance(result, web.StreamResponse):
                return result
            answer = {"jsonrpc": "2.0", "id": seen.body["id"], "result": result}
        finally:
            self.inflight -= 1
        if stream.response is not None or self.sse:
            await stream.send(answer)
            return await stream.open()
        return web.json_response(answer, headers=headers)

    def _usual(self, seen: Seen) -> Json:
        method, params = seen.method, seen.params
        if method == "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": self.capabilities,
                "serverInfo": {"name": "fake", "version": "1"},
                "instructions": "legacy instructions",
            }
        if method == "server/discover":
            return {
                "supportedVersions": [MODERN],
                "capabilities": self.capabilities,
                "instructions": "modern instructions",
                "ttlMs": 0,
                "cacheScope": "private",
            }
        if method == "tools/list":
            return {"tools": self.tools}
        if method == "tools/call":
            text = json.dumps({"session": seen.session, **params.get("arguments", {})})
            return {"content": [{"type": "text", "text": text}]}
        if method in ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            return {}
        raise RpcError(-32601, "Method not found")

    async def broadcast(self, method: str, params: Json) -> None:
        """Notify on every standing stream."""
        for stream in self.streams:
            await stream.notify(method, params)
        for listen, stream in self.listens:
            meta = {META + "subscriptionId": listen.body["id"]}
            await stream.notify(method, {**params, "_meta": meta})


_EARLY = ("initialize", "server/discover")


def _error(seen: Seen, code: int, message: str, status: int, data: Json = None) -> web.Response:
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return web.json_response(
        {"jsonrpc": "2.0", "id": seen.body.get("id"), "error": error}, status=status
    )


class Watch:
    """Everything that was published, in order."""

    def __init__(self, bus: Bus) -> None:
        self.events: list[Event] = []
        for kind in (
            LegChanged,
            ToolsChanged,
            PromptsChanged,
            ResourcesChanged,
            ResourceUpdated,
            LogMessage,
        ):
            bus.listen(kind, self.events.append)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]

    def states(self) -> list[str]:
        return [str(event.state) for event in self.of(LegChanged)]

    def counts(self) -> list[int]:
        return [event.count for event in self.of(ToolsChanged)]


def caller(session: str = "", *, era: Era = Era.LEGACY, **more: Any) -> Caller:
    return Caller(Principal("me"), era=era, session=session, client=Client("test", "1"), **more)


def plain(fields: Mapping[str, object]) -> dict[str, Json]:
    """Fields as plain JSON."""
    return {
        key: msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
        for key, value in fields.items()
    }


def said(fields: Mapping[str, object]) -> Json:
    """The JSON in a result's first text."""
    return json.loads(plain(fields)["content"][0]["text"])


async def until(condition: Callable[[], object], within: float = 30.0) -> None:
    """Wait until the condition holds; fail after so many seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
