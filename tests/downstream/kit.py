"""A scripted gateway, a listener around it, and clients that send what they are told to."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from sidecar.config.types import Limits, Listen
from sidecar.downstream import AgentListener, Authenticator
from sidecar.events import Bus
from sidecar.mcp.errors import method_not_found
from sidecar.model import (
    Caller,
    Fields,
    Hints,
    JsonObject,
    RpcError,
    Tool,
    TraceContext,
    Unavailable,
    Unroutable,
)
from sidecar.ports.tracer import PassingSpan
from sidecar.wire.sse import SseEvent, SseParser

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
BOTH = "application/json, text/event-stream"
JSON_HEADERS = {"Accept": BOTH, "Content-Type": "application/json"}
TOOLS_CHANGED = "notifications/tools/list_changed"

Behaviour = Callable[[JsonObject, Caller], Awaitable[Fields]]


@dataclass
class Listener:
    """What ``ScriptedGateway.listen`` hands out."""

    gateway: ScriptedGateway
    caller: Caller
    callback: Callable[[str, JsonObject], None]
    watched: list[str] = field(default_factory=list)
    stopped: bool = False

    async def watch(self, uris: Iterable[str]) -> list[str]:
        found = [uri for uri in uris if not uri.startswith("nowhere:")]
        self.watched += found
        return found

    def stop(self) -> None:
        self.stopped = True
        if self in self.gateway.listeners:
            self.gateway.listeners.remove(self)


class ScriptedGateway:
    """Does what its tools say, and remembers what reached it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, JsonObject, Caller]] = []
        self.spans: deque[tuple[str, TraceContext]] = deque(maxlen=16)
        self.listeners: list[Listener] = []
        self.closed: list[str] = []
        self.cancelled: list[str] = []
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.at_once = 0
        self.most_at_once = 0
        self.instructions_text = "be kind"
        self.tools: dict[str, Behaviour] = {
            "echo": self._echo,
            "wait": self._wait,
            "progress": self._progress,
            "log": self._log,
            "broken": self._broken,
            "down": self._down,
            "own_error": self._own_error,
            "flood": self._flood,
            "big": self._big,
            "deny": self._deny,
        }

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        self.seen.append((method, params, caller))
        if method == "tools/call":
            return await self._tool(str(params.get("name")), params, caller)
        if method == "tools/list":
            return {
                "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
            }
        if method == "resources/read" and params.get("uri") == "file:///none":
            raise RpcError(-32602, "resource not found", {"uri": params["uri"]})
        if method in ("resources/subscribe", "resources/unsubscribe", "logging/setLevel"):
            return {}
        if method == "prompts/list":
            return {"prompts": []}
        raise method_not_found(method)

    async def _tool(self, name: str, params: JsonObject, caller: Caller) -> Fields:
        behaviour = self.tools.get(name)
        if behaviour is None:
            raise Unroutable("unknown_tool", f"there is no tool of this name: {name}")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.started.set()
        try:
            return await behaviour(params, caller)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.at_once -= 1

    async def call(
        self, name: str, arguments: JsonObject, caller: Caller, *, separator: str | None = None
    ) -> Fields:
        params: JsonObject = {"name": name, "arguments": arguments, "separator": separator}
        self.seen.append(("call", params, caller))
        return await self._tool(name, params, caller)

    async def call_block(
        self, block: JsonObject, caller: Caller, *, separator: str | None = None
    ) -> Fields:
        self.seen.append(("call_block", block, caller))
        return await self._tool(str(block.get("name")), block, caller)

    async def tools_as(
        self, format: str, caller: Caller, *, separator: str | None, server: str | None
    ) -> Fields:
        self.seen.append(
            ("tools_as", {"format": format, "separator": separator, "server": server}, caller)
        )
        if server == "none":
            raise Unroutable("unknown_server", "there is no server of this name")
        return {"tools": [{"name": "echo"}]}

    def sees(self, server: str, caller: Caller) -> bool:
        return server in ("one", "two") and server not in caller.principal.harnesses

    def tool(self, name: str, caller: Caller) -> Tool | None:
        schema = {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
        definition = json.dumps({"name": name, "inputSchema": schema if name == "echo" else {}})
        body = definition.encode()
        if name not in self.tools:
            return None
        return Tool(name, "one", name, {}, Hints(), False, False, True, name, body, body)

    def span(self, method: str, caller: Caller) -> PassingSpan:
        self.spans.append((method, caller.trace))
        return PassingSpan(caller.trace)

    def capabilities(self, caller: Caller) -> JsonObject:
        return {"tools": {"listChanged": True}}

    def instructions(self, caller: Caller) -> str:
        return self.instructions_text

    def listen(self, caller: Caller, callback: Callable[[str, JsonObject], None]) -> Listener:
        listener = Listener(self, caller, callback)
        self.listeners.append(listener)
        return listener

    async def close_session(self, session: str) -> None:
        self.closed.append(session)

    def tell(self, method: str, params: JsonObject | None = None) -> None:
        for listener in tuple(self.listeners):
            listener.callback(method, params or {})

    # ------------------------------------------------------------------------- tools

    async def _echo(self, params: JsonObject, caller: Caller) -> Fields:
        return {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]}

    async def _wait(self, params: JsonObject, caller: Caller) -> Fields:
        await self.release.wait()
        return {"content": [{"type": "text", "text": "waited"}]}

    async def _progress(self, params: JsonObject, caller: Caller) -> Fields:
        for i in range(3):
            if caller.progress is not None:
                caller.notify(
                    "notifications/progress", {"progressToken": caller.progress, "progress": i}
                )
            await asyncio.sleep(0)
        await self.release.wait()
        return {"content": []}

    async def _log(self, params: JsonObject, caller: Caller) -> Fields:
        caller.notify("notifications/message", {"level": "info", "data": caller.log_level})
        return {"content": []}

    async def _broken(self, params: JsonObject, caller: Caller) -> Fields:
        raise KeyError("a secret argument value")

    async def _down(self, params: JsonObject, caller: Caller) -> Fields:
        raise Unavailable("one", "it does not answer", ran="no", retry_in=2.5)

    async def _own_error(self, params: JsonObject, caller: Caller) -> Fields:
        raise RpcError(-32050, "its own", {"why": None})

    async def _flood(self, params: JsonObject, caller: Caller) -> Fields:
        for i in range(5000):
            caller.notify(
                "notifications/progress",
                {"progressToken": 1, "progress": i, "message": "x" * 1000},
            )
        await self.release.wait()
        return {"content": []}

    async def _big(self, params: JsonObject, caller: Caller) -> Fields:
        return {"content": [{"type": "text", "text": "x" * (3 << 20)}]}

    async def _deny(self, params: JsonObject, caller: Caller) -> Fields:
        key = str((params.get("arguments") or {}).get("key", "denied"))  # type: ignore[attr-defined]
        return {"content": [], "isError": True, "_meta": {f"sidecar/{key}": {"rule": "r"}}}


@dataclass
class Rig:
    """A running listener and what stands around it."""

    gateway: ScriptedGateway
    listener: AgentListener
    auth: Authenticator
    bus: Bus
    host: str
    port: int
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def post(
        self, message: object, path: str = "/mcp", headers: Mapping[str, str] | None = None
    ) -> Reply:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        async with self.http.post(
            self.url + path, data=data, headers={**JSON_HEADERS, **(headers or {})}
        ) as answer:
            return Reply(answer.status, dict(answer.headers), await answer.read())

    async def initialize(
        self, path: str = "/mcp", headers: Mapping[str, str] | None = None, **params: object
    ) -> dict[str, str]:
        """Open a session; returns the headers that go with everything after it."""
        reply = await self.post(initialize(**params), path, headers)
        assert reply.status == 200, reply.body
        return {**(headers or {}), "Mcp-Session-Id": reply.headers["Mcp-Session-Id"]}

    async def modern(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        path: str = "/mcp",
        id: int | str = 1,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        message = modern(method, params, id)
        return await self.post(message, path, {**routing(message), **(headers or {})})

    @asynccontextmanager
    async def tap(
        self, method: str, message: object = None, path: str = "/mcp", **headers: str
    ) -> AsyncIterator[Tap]:
        """Send a request and read its stream as it comes; leaving closes the connection."""
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        data = None if message is None else json.dumps(message).encode()
        async with self.http.request(
            method, self.url + path, data=data, headers={**JSON_HEADERS, **names}
        ) as answer:
            assert answer.status == 200, await answer.read()
            assert answer.content_type == "text/event-stream"
            yield Tap(answer)
            answer.close()

    async def raw(self, data: bytes, *, timeout: float = 30.0) -> bytes:
        """Send bytes on a connection of their own, return everything until it is closed."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(timeout):
            found = await reader.read()
        writer.close()
        return found


class Tap:
    """An event stream that is read as it comes."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self._parser = SseParser(1 << 24)
        self._ready: list[Any] = []

    async def next(self, timeout: float = 30.0) -> Any:
        """The next message; ``None`` once the stream has ended."""
        async with asyncio.timeout(timeout):
            while not self._ready:
                data = await self.answer.content.readany()
                if not data:
                    return None
                found = self._parser.feed(data)
                self._ready += [json.loads(e.data) for e in found if isinstance(e, SseEvent)]
        return self._ready.pop(0)

    async def quiet(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        try:
            await self.next(seconds)
        except TimeoutError:
            return True
        return False


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        return events(self.body)


def events(body: bytes) -> list[Any]:
    """The messages of an event stream."""
    found = []
    for block in body.decode().split("\n\n"):
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if data:
            found.append(json.loads("\n".join(data)))
    return found


def initialize(id: object = 0, **params: object) -> JsonObject:
    return {
        "jsonrpc": "2.0",
        "id": id,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
            **params,
        },
    }


def request(method: str, params: object = None, id: object = 1) -> JsonObject:
    message: JsonObject = {"jsonrpc": "2.0", "id": id, "method": method}
    return message if params is None else {**message, "params": params}


def call(name: str, id: object = 1, **more: object) -> JsonObject:
    return request("tools/call", {"name": name, "arguments": {}, **more}, id)


def modern(method: str, params: JsonObject | None = None, id: object = 1) -> JsonObject:
    params = dict(params or {})
    params["_meta"] = {**META, **params.get("_meta", {})}  # type: ignore[dict-item]
    return request(method, params, id)


def routing(message: JsonObject) -> dict[str, str]:
    params: Any = message["params"]
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": str(message["method"])}
    name = params.get("uri") if message["method"] == "resources/read" else params.get("name")
    return {**headers, "Mcp-Name": name} if name is not None else headers


@asynccontextmanager
async def running(
    *,
    auth: Authenticator | None = None,
    limits: Limits | None = None,
    listen: Listen | None = None,
    **more: Any,
) -> AsyncIterator[Rig]:
    gateway, auth, bus = ScriptedGateway(), auth or Authenticator(), Bus()
    listener = AgentListener(
        gateway,  # type: ignore[arg-type]  # scripted
        auth,
        bus,
        name="sidecar",
        version="0",
        limits=limits,
        **more,
    )
    address = await listener.start(listen or Listen("127.0.0.1", 0))
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0, force_close=False)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        try:
            yield Rig(gateway, listener, auth, bus, address.host, address.port, http)
        finally:
            gateway.release.set()
            await listener.close()


async def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  whatever it is, it has no event
            await asyncio.sleep(0.005)
