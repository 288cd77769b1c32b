"""Raw MCP clients over HTTP: plain JSON in and out, so that tests see what is on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

JsonObject = dict[str, Any]

MODERN = "2026-07-28"
LATEST_LEGACY = "2025-11-25"
META = "io.modelcontextprotocol/"
NAME_OF = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
ACCEPT = "application/json, text/event-stream"
TIMEOUT = aiohttp.ClientTimeout(total=60)


class RpcFailed(Exception):
    """An answer that is an error; ``error`` is its object, ``status`` the HTTP status."""

    def __init__(self, error: JsonObject, status: int) -> None:
        super().__init__(f"{error} (HTTP {status})")
        self.error = error
        self.status = status
        self.code = error.get("code")


@dataclass
class Answer:
    """A POST's whole answer. ``at`` are the seconds from sending, one for each of ``messages``."""

    status: int
    headers: Mapping[str, str]
    messages: list[JsonObject] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    body: bytes = b""

    @property
    def last(self) -> JsonObject:
        assert self.messages, f"HTTP {self.status} without a message: {self.body[:300]!r}"
        return self.messages[-1]

    @property
    def notifications(self) -> list[JsonObject]:
        return [message for message in self.messages if "id" not in message]

    @property
    def result(self) -> JsonObject:
        """The result, or ``RpcFailed``."""
        if "error" in self.last:
            raise RpcFailed(self.last["error"], self.status)
        result: JsonObject = self.last["result"]
        return result

    @property
    def error(self) -> JsonObject:
        error: JsonObject = self.last["error"]
        return error


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[JsonObject]:
    """The messages of an event stream, each as soon as it is whole."""
    data: list[bytes] = []
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line.strip() and data:
                joined, data = b"\n".join(data), []
                if joined:
                    yield json.loads(joined)


class Client:
    """What both eras share. Requests may run side by side."""

    era = ""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None
    ) -> None:
        self.http = http
        self.url = url
        self.headers = {"Content-Type": "application/json", "Accept": ACCEPT, **(headers or {})}
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def body(self, method: str, params: JsonObject | None) -> JsonObject:
        body: JsonObject = {"jsonrpc": "2.0", "method": method}
        return body if params is None else body | {"params": params}

    def headers_for(self, method: str, params: JsonObject) -> dict[str, str]:
        return self.headers

    async def send(
        self,
        message: JsonObject | bytes,
        headers: dict[str, str],
        heard: Callable[[JsonObject], None] | None = None,
    ) -> Answer:
        """POSTs a message and reads its answer to the end."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        began = time.monotonic()
        async with self.http.post(self.url, data=data, headers=headers) as response:
            answer = Answer(response.status, response.headers)
            if response.content_type == "text/event-stream":
                async for received in events(response):
                    answer.messages.append(received)
                    answer.at.append(time.monotonic() - began)
                    if heard is not None:
                        heard(received)
                return answer
            answer.body = await response.read()
            with contextlib.suppress(ValueError):
                decoded = json.loads(answer.body)
                if isinstance(decoded, dict):
                    answer.messages.append(decoded)
                    answer.at.append(time.monotonic() - began)
            return answer

    async def exchange(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        request_id: int | str | None = None,
        headers: dict[str, str] | None = None,
        heard: Callable[[JsonObject], None] | None = None,
    ) -> Answer:
        """Sends a request, and gives the whole answer, whatever it is."""
        body = self.body(method, params)
        body["id"] = self.next_id() if request_id is None else request_id
        sent = {**self.headers_for(method, params or {}), **(headers or {})}
        return await self.send(body, sent, heard)

    async def request(self, method: str, params: JsonObject | None = None) -> JsonObject:
        """The result of a request, or ``RpcFailed``."""
        return (await self.exchange(method, params)).result

    async def call(self, name: str, /, **arguments: Any) -> JsonObject:
        """The result of a tool."""
        return await self.request("tools/call", {"name": name, "arguments": arguments})

    async def text(self, name: str, /, **arguments: Any) -> str:
        """The text of a tool's first content block; the tool must not have failed."""
        result = await self.call(name, **arguments)
        assert not result.get("isError"), result
        text: str = result["content"][0]["text"]
        return text

    async def all(self, method: str, key: str) -> list[JsonObject]:
        """Every entry of every page of a list."""
        found: list[JsonObject] = []
        cursor = None
        for _ in range(200):
            page = await self.request(method, {"cursor": cursor} if cursor else {})
            found += page[key]
            cursor = page.get("nextCursor")
            if cursor is None:
                return found
        raise AssertionError("more than 200 pages")

    async def tools(self) -> list[JsonObject]:
        return await self.all("tools/list", "tools")

    async def names(self) -> list[str]:
        return [tool["name"] for tool in await self.tools()]

    async def until_listed(self, *names: str, within: float = 30.0) -> list[str]:
        """Lists again and again until all of ``names`` are there."""
        end = time.monotonic() + within
        while not set(names) <= set(found := await self.names()):
            missing = set(names) - set(found)
            assert time.monotonic() < end, f"{missing} never appeared among {found}"
            await asyncio.sleep(0.05)
        return found

    async def until_answered(self, name: str, within: float = 40.0) -> str:
        """The text of a tool whose server may be on its way back: until then every answer is an
        error that says so, never an empty success."""
        end = time.monotonic() + within
        while True:
            try:
                return await self.text(name)
            except RpcFailed as failed:
                assert failed.code == -32603, failed
                assert time.monotonic() < end, f"never back: {failed}"
            await asyncio.sleep(0.05)

    async def until_gone(self, name: str, within: float = 30.0) -> None:
        """Lists again and again until ``name`` is not there."""
        end = time.monotonic() + within
        while name in await self.names():
            assert time.monotonic() < end, f"{name} is still listed"
            await asyncio.sleep(0.05)


class Legacy(Client):
    """A session of the handshake era."""

    era = "legacy"

    async def open(
        self, version: str = LATEST_LEGACY, capabilities: JsonObject | None = None
    ) -> JsonObject:
        """``initialize`` and ``notifications/initialized``; the answer is the first's result."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "tests", "version": "1"},
        }
        answer = await self.exchange("initialize", params)
        result = answer.result
        if "Mcp-Session-Id" in answer.headers:
            self.headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
        self.headers["MCP-Protocol-Version"] = result["protocolVersion"]
        await self.notify("notifications/initialized")
        return result

    @property
    def session(self) -> str:
        return self.headers["Mcp-Session-Id"]

    async def notify(self, method: str, params: JsonObject | None = None) -> Answer:
        return await self.send(self.body(method, params), self.headers)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[list[JsonObject]]:
        """The session's GET stream; the list grows as messages arrive."""
        heard: list[JsonObject] = []
        response = await self.http.get(self.url, headers=self.headers)
        assert response.status == 200, response.status

        async def read() -> None:
            async for message in events(response):
                heard.append(message)

        task = asyncio.create_task(read())
        try:
            yield heard
        finally:
            task.cancel()
            response.close()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> int:
        async with self.http.delete(self.url, headers=self.headers) as response:
            return response.status


class Modern(Client):
    """Requests of the stateless era, each with its envelope and its headers."""

    era = "modern"

    def __init__(
        self, http: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(http, url, headers)
        self.capabilities: JsonObject = {}

    def envelope(self) -> JsonObject:
        return {
            f"{META}protocolVersion": MODERN,
            f"{META}clientInfo": {"name": "tests", "version": "1"},
            f"{META}clientCapabilities": self.capabilities,
        }

    def body(self, method: str, params: JsonObject | None) -> JsonObject:
        sent = dict(params or {})
        sent["_meta"] = {**self.envelope(), **sent.get("_meta", {})}
        return {"jsonrpc": "2.0", "method": method, "params": sent}

    def headers_for(self, method: str, params: JsonObject) -> dict[str, str]:
        headers = {**self.headers, "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        if method in NAME_OF and NAME_OF[method] in params:
            headers["Mcp-Name"] = params[NAME_OF[method]]
        return headers

    async def open(self) -> JsonObject:
        """``server/discover``, which this era does not need."""
        return await self.request("server/discover")

    @contextlib.asynccontextmanager
    async def listening(self, **wanted: Any) -> AsyncIterator[list[JsonObject]]:
        """``subscriptions/listen``; by default for every list_changed there is."""
        everything = {
            "toolsListChanged": True,
            "promptsListChanged": True,
            "resourcesListChanged": True,
        }
        heard: list[JsonObject] = []
        arrived = asyncio.Event()

        def hear(message: JsonObject) -> None:
            heard.append(message)
            arrived.set()

        params = {"notifications": wanted or everything}
        task = asyncio.create_task(self.exchange("subscriptions/listen", params, heard=hear))
        try:
            await asyncio.wait_for(arrived.wait(), 30)
            acknowledged = heard.pop(0)
            assert acknowledged["method"] == "notifications/subscriptions/acknowledged", (
                acknowledged
            )
            yield heard
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


CLIENTS: dict[str, type[Legacy] | type[Modern]] = {"legacy": Legacy, "modern": Modern}


async def eventually(check: Callable[[], Any], within: float = 30.0, what: str = "") -> Any:
    """The first true value of ``check``, asked again and again."""
    end = time.monotonic() + within
    while not (value := check()):
        assert time.monotonic() < end, f"not within {within} s: {what or check}"
        await asyncio.sleep(0.01)
    return value
