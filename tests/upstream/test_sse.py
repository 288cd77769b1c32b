"""The old HTTP+SSE transport, configured and found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sidecar.config import Limits
from sidecar.model import Era, State, Unavailable
from tests.upstream.kit import caller, plain, until


class Old:
    """A server of 2024-11-05 at /sse: messages go to an address that the stream names."""

    def __init__(self) -> None:
        self.address = "/messages?session=%d"
        self.streams: dict[str, web.StreamResponse] = {}
        self.seen: list[tuple[str, Any]] = []
        self.count = 0
        self.jobs: list[asyncio.Task[None]] = []
        app = web.Application()
        app.router.add_get("/sse", self.open)
        app.router.add_post("/messages", self.message)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/sse"))

    async def open(self, request: web.Request) -> web.StreamResponse:
        self.count += 1
        session = str(self.count)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        address = self.address % self.count if "%" in self.address else self.address
        await response.write(f"event: endpoint\ndata: {address}\n\n".encode())
        self.streams[session] = response
        try:
            await asyncio.sleep(3600)
        finally:
            self.streams.pop(session, None)
        return response

    async def message(self, request: web.Request) -> web.Response:
        session = request.query["session"]
        if session not in self.streams:
            return web.Response(status=404)
        message = await request.json()
        self.seen.append((session, message))
        self.jobs.append(asyncio.create_task(self.answer(session, message)))
        return web.Response(status=202, text="Accepted")

    async def answer(self, session: str, message: Any) -> None:
        method, id = message.get("method"), message.get("id")
        params = message.get("params") or {}
        result: Any = {}
        if id is None:
            return
        if method == "initialize":
            result = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}
        elif method == "tools/list":
            result = {"tools": [{"name": "echo"}]}
        elif method == "tools/call":
            args = params["arguments"]
            if "sleep" in args:
                await asyncio.sleep(args["sleep"])
            token = (params.get("_meta") or {}).get("progressToken")
            if token is not None:
                await self.send(
                    session,
                    {
                        "jsonrpc": "2.0",
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": 1},
                    },
                )
            result = {"content": [], "session": session, "x": "y" * args.get("size", 0)}
        await self.send(session, {"jsonrpc": "2.0", "id": id, "result": result})

    async def send(self, session: str, message: Any) -> None:
        data = json.dumps(message)
        await self.streams[session].write(f"event: message\ndata: {data}\n\n".encode())


@pytest.fixture
async def old() -> AsyncIterator[Old]:
    server = Old()
    await server.server.start_server(access_log=None, shutdown_timeout=0.05)
    yield server
    for job in server.jobs:
        job.cancel()
    await asyncio.gather(*server.jobs, return_exceptions=True)
    await server.server.close()


async def call(server: Any, who: Any = None, **arguments: Any) -> Any:
    params = {"name": "echo", "arguments": arguments}
    return plain(await server.request("tools/call", params, who or caller("s")))


@pytest.mark.parametrize("transport", ["sse", "http"])
async def test_configured_or_found(make, old, transport) -> None:
    server = make(old.url, transport=transport)
    await server.settled()
    assert (server.status.state, server.status.era) == (State.READY, Era.LEGACY)
    assert [entry.key for entry in server.entries().tools] == ["echo"]
    assert (await call(server))["content"] == []
    methods = [message.get("method") for _, message in old.seen]
    assert methods[:2] == ["initialize", "notifications/initialized"]


async def test_each_caller_has_a_stream_of_its_own(make, old) -> None:
    server = make(old.url, transport="sse")
    await server.settled()
    sessions = [(await call(server, caller(s)))["session"] for s in "xxyx"]
    assert sessions == ["2", "2", "3", "2"]
    await server.forget("x")
    await until(lambda: set(old.streams) == {"1", "3"})
    await server.close()
    await until(lambda: not old.streams)


async def test_progress_and_cancellation(make, old) -> None:
    server = make(old.url, transport="sse", isolation="shared")
    await server.settled()
    got: list[Any] = []
    await call(server, caller("s", progress="t", notify=lambda m, p: got.append(p)))
    assert got == [{"progressToken": "t", "progress": 1}]
    task = asyncio.create_task(call(server, sleep=60))
    await until(lambda: old.seen[-1][1].get("params", {}).get("arguments") == {"sleep": 60})
    task.cancel()
    await asyncio.wait({task})
    await until(lambda: old.seen[-1][1].get("method") == "notifications/cancelled")
    sent = next(m for _, m in old.seen if m.get("params", {}).get("arguments") == {"sleep": 60})
    assert old.seen[-1][1]["params"]["requestId"] == sent["id"]


async def test_the_end_of_the_stream_is_the_end_of_its_calls(make, old, watch) -> None:
    server = make(old.url, transport="sse", isolation="shared")
    await server.settled()
    task = asyncio.create_task(call(server, sleep=60))
    await until(lambda: old.seen[-1][1].get("params", {}).get("arguments") == {"sleep": 60})
    stream = old.streams["1"]
    assert stream._req is not None
    stream._req.transport.abort()
    with pytest.raises(Unavailable) as caught:
        await task
    assert caught.value.ran == "maybe"
    await until(lambda: watch.states().count("ready") == 2)
    assert (await call(server))["session"] == "2"


async def test_an_event_over_the_cap(make, old) -> None:
    server = make(old.url, transport="sse", limits=Limits(event=10_000), isolation="shared")
    await server.settled()
    other = asyncio.create_task(call(server, sleep=0.2))
    with pytest.raises(Unavailable, match=r"limits\.event"):
        await call(server, size=100_000)
    await other
    assert server.status.state is State.READY


@pytest.mark.parametrize(
    "address", ["http://other.example/messages", "//evil.example/x", "http://["]
)
async def test_an_address_elsewhere_is_refused(make, old, address) -> None:
    old.address = address
    server = make(old.url, transport="sse")
    await server.settled()
    assert server.status.state is State.BACKOFF
    assert "another origin" in str(server.status.error)
