"""The load: one MCP client that wastes nothing, and slices of calls with it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

ACCEPT = "application/json, text/event-stream"
LEGACY = "2025-06-18"
MODERN = "2026-07-28"
TIMEOUT = aiohttp.ClientTimeout(total=60)

encode = msgspec.json.encode
decode = msgspec.json.Decoder().decode


class CallFailed(Exception):
    """An answer that is no result."""


class Session:
    """One MCP session, or in the modern era one client's requests."""

    def __init__(self, http: aiohttp.ClientSession, url: str, era: str = "legacy") -> None:
        self._http = http
        self._url = url
        self._modern = era == "modern"
        self._ids = 0
        self._headers = {"Content-Type": "application/json", "Accept": ACCEPT}
        self._meta: dict[str, Any] = {}
        if self._modern:
            self._headers["MCP-Protocol-Version"] = MODERN
            key = "io.modelcontextprotocol/"
            self._meta = {f"{key}protocolVersion": MODERN, f"{key}clientCapabilities": {}}

    async def open(self) -> None:
        if self._modern:
            return
        client = {"name": "bench", "version": "1"}
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client}
        result = await self.request("initialize", params)
        self._headers["MCP-Protocol-Version"] = result["protocolVersion"]
        body = encode({"jsonrpc": "2.0", "method": "notifications/initialized"})
        async with self._http.post(self._url, data=body, headers=self._headers) as response:
            await response.read()

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result; anything else is ``CallFailed``."""
        self._ids += 1
        headers = self._headers
        if self._modern:
            params = {**params, "_meta": self._meta}
            headers = {**headers, "Mcp-Method": method}
            if method == "tools/call":
                headers["Mcp-Name"] = params["name"]
        body = encode({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        async with self._http.post(self._url, data=body, headers=headers) as response:
            if session := response.headers.get("Mcp-Session-Id"):
                self._headers["Mcp-Session-Id"] = session
            raw = await response.read()
            message = decode(raw) if response.content_type == "application/json" else self._of(raw)
        if "result" not in message:
            raise CallFailed(str(message)[:300])
        result: dict[str, Any] = message["result"]
        return result

    def _of(self, raw: bytes) -> dict[str, Any]:
        """The answer in an event stream."""
        for line in raw.split(b"\n"):
            if line.startswith(b"data:") and b'"id"' in line:
                message: dict[str, Any] = decode(line[5:])
                if message.get("id") == self._ids or "result" in message:
                    return message
        raise CallFailed(f"no answer in {raw[:200]!r}")

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await self.request("tools/call", {"name": name, "arguments": arguments})
        if result.get("isError"):
            raise CallFailed(str(result)[:300])
        return result

    async def tools(self) -> list[str]:
        names: list[str] = []
        cursor = None
        for _ in range(1000):
            page = await self.request("tools/list", {"cursor": cursor} if cursor else {})
            names += [tool["name"] for tool in page["tools"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return names

    async def close(self) -> None:
        if not self._modern:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._http.delete(self._url, headers=self._headers):
                    pass


@dataclass
class Slice:
    """What one slice of load saw. Times in seconds."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    cpu: float = 0.0
    """CPU seconds that the target's processes used meanwhile."""

    @property
    def calls(self) -> int:
        return len(self.latencies)

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    def quantile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@contextlib.asynccontextmanager
async def http_client() -> Any:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as http:
        yield http


async def run_slice(
    url: str, era: str, tool: str, arguments: dict[str, Any], *, at_once: int, seconds: float
) -> Slice:
    """Calls in one session, ``at_once`` of them in flight, for so many seconds."""
    async with http_client() as http:
        session = Session(http, url, era)
        await session.open()
        # Connections and caches are warm before the clock runs.
        await asyncio.gather(*(session.call(tool, arguments) for _ in range(at_once)))
        measured = Slice(seconds)
        began = time.perf_counter()
        end = began + seconds

        async def work() -> None:
            while (sent := time.perf_counter()) < end:
                try:
                    await session.call(tool, arguments)
                    measured.latencies.append(time.perf_counter() - sent)
                except (aiohttp.ClientError, CallFailed, TimeoutError) as failed:
                    measured.errors.append(repr(failed)[:200])
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(work() for _ in range(at_once)))
        measured.seconds = time.perf_counter() - began
        await session.close()
        return measured
