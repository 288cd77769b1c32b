"""Servers that redirect: within their origin as ever, elsewhere checked and without credentials."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sidecar.config import Limits, SecretRef, ServerConfig
from sidecar.config.secrets import EnvFileSecrets
from sidecar.egress.dial import ServerDialer
from sidecar.model import Era, State
from sidecar.upstream import McpServer
from tests.egress.kit import Bench, policy
from tests.egress.net import serving
from tests.upstream.kit import Fake, Seen, Stream, caller, said, until
from tests.upstream.test_sse import Old

ELSEWHERE = "127.0.0.2"
RULES = f"""
- id: lab
  on: connect
  effect: allow
  when: 'reason == "redirect" && addresses.all(a, a.ip == "{ELSEWHERE}")'
  message: '"stands for the public internet"'
"""
HEADERS = {"authorization": SecretRef(literal="Bearer s3cret"), "X-Key": SecretRef(literal="k")}
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
Handler = Callable[[web.Request], Any]


def to(location: str, status: int = 307) -> Handler:
    async def away(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": location})

    return away


class Moved(Fake):
    """Serves at /mcp, and redirects from other paths as ``away`` says."""

    away: dict[str, Handler]
    host = "127.0.0.1"

    async def start(self, port: int | None = None) -> Fake:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/mcp", self.handle)
        for path, handler in self.away.items():
            app.router.add_route("*", path, handler)
        self.server = TestServer(app, port=port, host=self.host)
        await self.server.start_server(access_log=None, shutdown_timeout=0.05)
        return self

    def at(self, path: str) -> str:
        return str(self.server.make_url(path))


class Lab:
    """Servers behind the egress check."""

    def __init__(self, bench: Bench, stack: AsyncExitStack) -> None:
        self.bench = bench
        self._stack = stack

    async def moved(self, away: dict[str, Handler] | None = None, **more: Any) -> Moved:
        host = more.pop("host", "127.0.0.1")
        server = Moved(**more)
        server.away, server.host = away or {}, host
        await server.start()
        self._stack.push_async_callback(server.stop)
        return server

    def dialled(self, url: str, **more: Any) -> McpServer:
        config = ServerConfig("up", more.pop("transport", "http"), url=url, headers=HEADERS, **more)
        server = McpServer(
            config,
            name="sc",
            bus=self.bench.bus,
            limits=Limits(),
            secrets=EnvFileSecrets(os.environ),
            connector=ServerDialer(self.bench.check, config),
        )
        self._stack.push_async_callback(server.close)
        server.start()
        return server


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(Bench(policy(tmp_path, RULES)), stack)


async def call(server: McpServer, era: str = "legacy", name: str = "echo", **given: Any) -> Any:
    params = {"name": name, "arguments": given}
    return await server.request("tools/call", params, caller("s", era=Era(era)))


@ERAS
@pytest.mark.parametrize("status", [307, 308])
async def test_within_its_origin_a_server_is_asked_as_ever(
    lab: Lab, era: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    up = await lab.moved({"/mcp/": to("/old?key=1", status), "/old": to("/mcp")}, eras=(era,))
    server = lab.dialled(up.at("/mcp/"))
    await server.settled()
    assert (server.status.state, server.status.error) == (State.READY, None)
    large = "x" * (2 << 20)  # a body that has to be sent anew at each hop
    assert said(await call(server, era, message=large))["message"] == large
    assert {seen.headers.get("Authorization") for seen in up.seen} == {"Bearer s3cret"}
    told = [r.getMessage() for r in caplog.records if "redirects to" in r.getMessage()]
    assert told == [
        f"server up: redirects to {up.url}; with that as its url, each request would take one "
        "trip less"
    ]


@ERAS
async def test_elsewhere_it_gets_no_configured_header_but_its_own_session(
    lab: Lab, era: str
) -> None:
    there = await lab.moved(host=ELSEWHERE, eras=(era,), sse=True)
    asked: list[web.Request] = []

    async def away(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(status=308, headers={"Location": there.url})

    front = await lab.moved({"/front": away})
    server = lab.dialled(front.at("/front"))
    await server.settled()
    assert (server.status.state, server.status.error) == (State.READY, None)
    for message in ("one", "two"):
        assert said(await call(server, era, message=message))["message"] == message
    assert {request.headers["X-Key"] for request in asked} == {"k"}
    for seen in there.seen:
        assert not {"Authorization", "X-Key"} & seen.headers.keys()
        assert seen.headers["Host"] == f"{ELSEWHERE}:{there.server.port}"
    if era == "legacy":
        calls = there.of("tools/call")
        assert len(calls) == 2
        assert all(seen.session in there.sessions for seen in calls)
    hops = [each for each in lab.bench.decided if each.decision.rule == "op/lab"]
    assert len(hops) >= len(there.seen) - 1  # each hop is decided; one may still be on its way


@ERAS
async def test_elsewhere_the_verdict_counts_for_a_configured_server_too(lab: Lab, era: str) -> None:
    async with serving("127.0.0.1") as inside:
        up = await lab.moved({"/x": to(f"http://127.0.0.1:{inside.port}/latest?token=t")})
        server = lab.dialled(up.at("/x"), era=era)
        await server.settled()
        assert server.status.state is State.BACKOFF
        assert server.status.error == (
            f"redirects to http://127.0.0.1:{inside.port}/latest, which may not be dialled: "
            "denied by rule egress/loopback: the address is loopback: it is this machine itself"
        )
        assert inside.connections == 0


@pytest.mark.parametrize(
    ("status", "location", "why"),
    [
        (302, "/mcp", "a redirect with HTTP 302 does not say that POST is sent on"),
        (303, "/mcp", "a redirect with HTTP 303 does not say that POST is sent on"),
        (307, "/x", "there are more than 5 in a row"),
        (307, "http://u:p@127.0.0.1/", "the URL has a user name or password in it"),
        (307, "file:///etc/passwd", "the URL does not begin with http"),
        (304, "/mcp", "its status is no plain redirect"),
    ],
)
async def test_what_is_not_followed_says_why(
    lab: Lab, status: int, location: str, why: str
) -> None:
    up = await lab.moved({"/x": to(location, status)})
    server = lab.dialled(up.at("/x"), era="modern")
    await server.settled()
    error = str(server.status.error)
    assert why in error
    assert error.endswith("set url of server up to the final address")
    assert "u:p@" not in error
    assert up.seen == []


async def test_a_connection_elsewhere_closes_with_the_server(lab: Lab) -> None:
    there = await lab.moved(host=ELSEWHERE, eras=("modern",))
    front = await lab.moved({"/front": to(there.url)})
    running: list[Stream] = []

    async def hang(seen: Seen, stream: Stream) -> Any:
        await stream.open()
        running.append(stream)
        await asyncio.sleep(60)

    there.on["tools/call echo"] = hang
    server = lab.dialled(front.at("/front"))
    await server.settled()
    asked = asyncio.create_task(call(server, "modern"))
    await until(lambda: running, within=30)
    assert running[0].request.transport is not None
    await server.close()
    await until(lambda: running[0].request.transport is None, within=30)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


async def test_the_old_transport_moves_within_its_origin_alone(lab: Lab) -> None:
    old = Old()
    moved = web.Application()
    moved.router.add_get("/sse", to("/a/sse"))
    sub = web.Application()
    old.address = "messages?session=%d"  # beside where the stream is in the end
    sub.router.add_get("/sse", old.open)
    sub.router.add_post("/messages", old.message)
    moved.add_subapp("/a", sub)
    async with TestServer(moved) as front:
        server = lab.dialled(str(front.make_url("/sse")), transport="sse")
        await until(lambda: server.status.state is State.READY, within=30)
        assert old.seen
        away = await lab.moved({"/out": to(f"http://{ELSEWHERE}:{front.port}/sse")})
        other = lab.dialled(away.at("/out"), transport="sse")
        await other.settled()
        assert "it leads to another origin" in str(other.status.error)
        await server.close()
