"""The upstream of the benchmark: as fast as one can be here, so that the gateways are measured.

aiohttp, uvloop and msgspec, no SDK. Both eras over HTTP, and the same tools over stdio:

    python -m bench.upstream --port 9100
    python -m bench.upstream --stdio

``/mcp`` has the tools ``echo(message)``, ``sleep(ms)`` and ``big(mib)``; ``/many/N`` is a server
of a hundred tools, another for each N. ``GET /stats`` tells how much arrived and how many calls
ran at once; ``?reset`` begins anew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec
import uvloop
from aiohttp import web

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
SERVER_INFO = {"name": "bench", "version": "1"}
CAPABILITIES = {"tools": {"listChanged": True}}
LINE_LIMIT = 1 << 26
# Answers larger than this go out in chunks.
WHOLE = 1 << 20
CHUNK = 1 << 16

encode = msgspec.json.encode
decode = msgspec.json.Decoder().decode
Message = dict[str, Any]


def tool(name: str, **properties: str) -> Message:
    return {
        "name": name,
        "description": f"The tool {name} of the benchmark",
        "annotations": {"readOnlyHint": True},
        "inputSchema": {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
        },
    }


TOOLS = [tool("echo", message="string"), tool("sleep", ms="number"), tool("big", mib="number")]
MANY = [tool(f"tool_{n:02}", path="string", limit="integer", query="string") for n in range(100)]


class Stats:
    """What arrived since the last reset."""

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}
        self.sessions = 0
        self.running = 0
        self.most_at_once = 0

    def count(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1


stats = Stats()


async def call(params: Mapping[str, Any]) -> Message | None:
    arguments = params.get("arguments") or {}
    stats.running += 1
    stats.most_at_once = max(stats.most_at_once, stats.running)
    try:
        match params.get("name"):
            case "sleep":
                await asyncio.sleep(arguments["ms"] / 1000)
                text = "slept"
            case "big":
                text = "x" * (int(arguments["mib"]) << 20)
            case str() as name if name == "echo" or name.startswith("tool_"):
                text = arguments.get("message", "")
            case _:
                return None
        return {"content": [{"type": "text", "text": text}], "isError": False}
    finally:
        stats.running -= 1


async def result_of(message: Message, tools: list[Message], modern: bool) -> Message | None:
    method, params = message["method"], message.get("params") or {}
    stats.count(method)
    result: Message | None = None
    match method:
        case "tools/call":
            result = await call(params)
        case "tools/list":
            result = {"tools": tools}
        case "initialize":
            asked = params.get("protocolVersion")
            version = asked if asked in LEGACY else LEGACY[-1]
            result = {"protocolVersion": version, "serverInfo": SERVER_INFO}
            result["capabilities"] = CAPABILITIES
        case "server/discover":
            versions = [MODERN, *LEGACY]
            result = {"supportedVersions": versions, "capabilities": CAPABILITIES}
        case "ping":
            result = {}
    if modern and result is not None:
        result["resultType"] = "complete"
        if method != "tools/call":
            result |= {"ttlMs": 0, "cacheScope": "private"}
    return result


async def answer(message: Message, tools: list[Message], modern: bool) -> bytes:
    result = await result_of(message, tools, modern)
    if result is None:
        error = {"code": -32601, "message": "method not found"}
        return encode({"jsonrpc": "2.0", "id": message["id"], "error": error})
    return encode({"jsonrpc": "2.0", "id": message["id"], "result": result})


# ------------------------------------------------------------------------------------- HTTP


async def listen(request: web.Request, message: Message) -> web.StreamResponse:
    """``subscriptions/listen``: acknowledged, and then nothing ever comes."""
    meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
    params = {"notifications": message["params"].get("notifications", {}), "_meta": meta}
    method = "notifications/subscriptions/acknowledged"
    first = encode({"jsonrpc": "2.0", "method": method, "params": params})
    return await hold(request, b"data: " + first + b"\n\n")


async def hold(request: web.Request, first: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        while True:
            await response.write(first)
            first = b": still here\n\n"
            await asyncio.sleep(15)
    return response


async def in_chunks(request: web.Request, body: bytes) -> web.StreamResponse:
    """Without a length beforehand, so that only reading tells how much it is."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    # Whoever has enough hangs up.
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(body), CHUNK):
            await response.write(body[start : start + CHUNK])
    return response


async def post(request: web.Request) -> web.StreamResponse:
    message = decode(await request.read())
    if "id" not in message or "method" not in message:
        return web.Response(status=202)
    modern = request.headers.get("MCP-Protocol-Version") == MODERN
    if modern and message["method"] == "subscriptions/listen":
        return await listen(request, message)
    tools = MANY if "many" in request.match_info else TOOLS
    headers = {}
    if message["method"] == "initialize":
        stats.sessions += 1
        headers["Mcp-Session-Id"] = uuid.uuid4().hex
    body = await answer(message, tools, modern)
    if len(body) > WHOLE:
        return await in_chunks(request, body)
    status = 404 if modern and b'"error"' in body[:60] else 200
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def get(request: web.Request) -> web.StreamResponse:
    """A stream on which nothing ever comes."""
    return await hold(request, b": hello\n\n")


async def delete(request: web.Request) -> web.Response:
    stats.sessions -= 1
    return web.Response(status=204)


async def tell(request: web.Request) -> web.Response:
    told = {
        "requests": stats.requests,
        "sessions": stats.sessions,
        "most_at_once": stats.most_at_once,
    }
    response = web.json_response(told)
    if "reset" in request.query:
        stats.requests, stats.most_at_once = {}, 0
    return response


def serve_http(port: int) -> None:
    app = web.Application()
    for path in ("/mcp", "/many/{many}"):
        app.router.add_post(path, post)
        app.router.add_get(path, get)
        app.router.add_delete(path, delete)
    app.router.add_get("/stats", tell)
    loop = uvloop.new_event_loop()
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, loop=loop)


# ------------------------------------------------------------------------------------ stdio


async def serve_stdio() -> None:
    reader = asyncio.StreamReader(limit=LINE_LIMIT)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    out = sys.stdout.buffer
    tasks: set[asyncio.Task[None]] = set()

    async def one(message: Message) -> None:
        modern = "io.modelcontextprotocol/protocolVersion" in (
            message.get("params", {}).get("_meta") or {}
        )
        out.write(await answer(message, TOOLS, modern) + b"\n")
        out.flush()

    while line := await reader.readline():
        message = decode(line)
        if "id" in message and "method" in message:
            task = asyncio.create_task(one(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The upstream of the benchmark.")
    parser.add_argument("--port", type=int)
    parser.add_argument("--stdio", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_stdio())
    else:
        serve_http(options.port)
