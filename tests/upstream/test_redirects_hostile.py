"""Redirects by which a server means harm: nothing of ours goes where it may not.

127.0.0.2 and 127.0.0.3 stand for the public internet, 127.0.0.1 for this machine.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from sidecar.config import Limits, SecretRef, ServerConfig
from sidecar.config.secrets import EnvFileSecrets
from sidecar.egress.dial import ServerDialer, Tls
from sidecar.egress.resolve import SystemResolver
from sidecar.model import Era, State, Unavailable
from sidecar.upstream import McpServer, redirects
from tests.egress.kit import Bench, policy
from tests.egress.net import Dns, Seen, serving
from tests.upstream.kit import caller, said, until
from tests.upstream.test_redirects import Handler, Moved, to

OWN, GOOD, OTHER, EVIL = "127.0.0.3", "127.0.0.2", "127.0.0.3", "127.0.0.1"
RULES = f"""
- id: lab
  on: connect
  effect: allow
  when: 'addresses.all(a, a.ip in ["{GOOD}", "{OTHER}"])'
  message: '"stands for the public internet"'
"""
SECRET = {"authorization": SecretRef(literal="Bearer s3cret"), "X-Key": SecretRef(literal="k")}


class Lab:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.bench = Bench(policy(folder, RULES))

    async def moved(self, away: dict[str, Handler] | None = None, **more: Any) -> Moved:
        host = more.pop("host", OWN)
        server = Moved(**more)
        server.away, server.host = away or {}, host
        await server.start()
        self.stack.push_async_callback(server.stop)
        return server

    async def serve(self, host: str = EVIL, *more: Any, **keys: Any) -> Seen:
        return await self.stack.enter_async_context(serving(host, *more, **keys))

    def dialled(self, url: str, *, tls: Tls = True, **more: Any) -> McpServer:
        config = ServerConfig("up", "http", url=url, headers=SECRET, **more)
        server = McpServer(
            config,
            name="sc",
            bus=self.bench.bus,
            limits=Limits(),
            secrets=EnvFileSecrets(os.environ),
            connector=ServerDialer(self.bench.check, config, ssl=tls),
        )
        self.stack.push_async_callback(server.close)
        server.start()
        return server

    @property
    def rules(self) -> list[str]:
        return [each.decision.rule for each in self.bench.decided]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(tmp_path, stack)


async def call(server: McpServer, era: str = "legacy", **given: Any) -> Any:
    params: dict[str, Any] = {"name": "echo", "arguments": given}
    return await server.request("tools/call", params, caller("s", era=Era(era)))


def clean(seen: Any) -> None:
    """A stranger got nothing that authenticates."""
    forbidden = {"Authorization", "X-Key", "Cookie", "Proxy-Authorization", "Referer"}
    assert not forbidden & {name.title() for name in seen}, dict(seen)
    assert "s3cret" not in str(dict(seen))


# ------------------------------------------------------------------------------ sessions


async def test_a_session_is_not_told_to_an_origin_that_did_not_begin_it(lab: Lab) -> None:
    there = await lab.moved(host=GOOD)
    own = await lab.moved()

    async def away(seen: Any, stream: Any) -> web.Response:
        return web.Response(status=307, headers={"Location": there.url, "Set-Cookie": "a=b"})

    own.on["tools/call echo"] = away
    server = lab.dialled(own.at("/mcp"))
    await server.settled()
    assert (server.status.state, server.status.error) == (State.READY, None)
    with pytest.raises(Unavailable) as caught:
        await call(server)
    assert caught.value.why == (
        f"redirects to {there.url} (HTTP 307), which is not followed: the session was begun at "
        "another origin; set url of server up to the final address"
    )
    assert caught.value.ran == "no"
    assert there.seen == []
    # A new session was tried, once.
    assert len(own.of("tools/call")) == 2


async def test_a_server_that_moves_gets_a_new_session_and_not_the_former(lab: Lab) -> None:
    there = await lab.moved(host=GOOD)
    moved = False

    async def front(request: web.Request) -> web.StreamResponse:
        if moved:
            planted = {"Set-Cookie": "a=b", "Mcp-Session-Id": "planted"}
            return web.Response(status=308, headers={"Location": there.url, **planted})
        return await own.handle(request)

    own = await lab.moved({"/front": front})
    server = lab.dialled(own.at("/front"))
    await server.settled()
    assert said(await call(server, n=1))["n"] == 1
    moved = True
    assert said(await call(server, n=2))["n"] == 2
    former = {seen.session for seen in own.seen if seen.session}
    assert former
    for seen in there.seen:
        clean(seen.headers)
        assert seen.session not in former | {"planted"}
    assert {seen.session for seen in there.of("tools/call")} <= there.sessions


async def test_so_many_sessions_elsewhere_are_remembered(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is forgotten is begun anew, and nobody notices."""
    monkeypatch.setattr(redirects, "MOST_SESSIONS", 1)
    there = await lab.moved(host=GOOD)
    front = await lab.moved({"/x": to(there.url)})
    server = lab.dialled(front.at("/x"), isolation="session")
    await server.settled()
    for n in range(3):
        for session in ("s", "t"):
            params: dict[str, Any] = {"name": "echo", "arguments": {"n": n}}
            found = await server.request("tools/call", params, caller(session))
            assert said(found)["n"] == n
    assert len(there.of("tools/call")) == 6
    assert 4 <= len(there.of("initialize")) <= 9


# ------------------------------------------------------------------------------- origins


async def test_led_away_and_back_it_gets_nothing_either(lab: Lab) -> None:
    own = await lab.moved(eras=("modern",), host=OTHER)
    there = await lab.moved({"/back": to(own.at("/mcp"))}, host=GOOD)
    own.away["/front"] = to(there.at("/back"), 308)
    front = await lab.moved({"/front": to(there.at("/back"))}, host=OTHER)
    front.away["/mcp2"] = to("/front")
    server = lab.dialled(front.at("/front"), era="modern")
    await server.settled()
    assert server.status.state is State.READY
    for seen in own.seen:
        clean(seen.headers)
    assert own.seen


async def test_another_port_or_scheme_is_another_origin(lab: Lab) -> None:
    ca = trustme.CA()
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    there = await lab.serve(GOOD, cert=ca.issue_cert(GOOD))
    front = await lab.moved({"/x": to(f"https://{GOOD}:{there.port}/mcp")}, host=GOOD)
    server = lab.dialled(front.at("/x"), tls=trusting, era="modern")
    await server.settled()
    assert there.requests
    for _, path, headers, body in there.requests:
        assert path == "/mcp"
        assert body
        clean(headers)


async def test_no_way_leads_from_https_to_http(lab: Lab) -> None:
    ca = trustme.CA()
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    plain = await lab.serve(GOOD)

    async def down(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"http://{GOOD}:{plain.port}/mcp"})

    front = await lab.serve(GOOD, down, cert=ca.issue_cert(GOOD))
    server = lab.dialled(f"https://{GOOD}:{front.port}/x", tls=trusting)
    await server.settled()
    assert "a redirect from https to http" in str(server.status.error)
    assert (len(front.requests) > 0, plain.connections) == (True, 0)


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_post_that_would_become_a_get_goes_nowhere(lab: Lab, status: int) -> None:
    there = await lab.serve(GOOD)
    front = await lab.moved({"/x": to(f"http://{GOOD}:{there.port}/", status)})
    server = lab.dialled(front.at("/x"))
    await server.settled()
    assert f"HTTP {status} does not say that POST is sent on" in str(server.status.error)
    assert there.connections == 0


# ------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize("more", [{}, {"runtime": True}, {"runtime": True, "checked": False}])
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"]
)
async def test_nobody_leads_us_inside(lab: Lab, host: str, more: dict[str, Any]) -> None:
    """Not even where servers are added without a check of their own addresses."""
    lab.bench.resolver.table["localhost"] = [EVIL]
    inside = await lab.serve(EVIL)
    front = await lab.moved({"/x": to(f"http://{host}:{inside.port}/latest/meta-data/")})
    server = lab.dialled(front.at("/x"), **more)
    await server.settled()
    assert "which may not be dialled" in str(server.status.error) or "not followed" in str(
        server.status.error
    )
    assert inside.connections == 0


async def test_a_name_that_rebinds_between_check_and_dial(lab: Lab) -> None:
    with Dns() as dns:
        resolver = SystemResolver(dns.look_up, keep=0)
        lab.stack.push_async_callback(resolver.close)
        lab.bench = Bench(policy(lab.folder, RULES), resolver=resolver)
        there = await lab.moved(host=GOOD, eras=("modern",))
        port = there.server.port
        assert port is not None
        inside = await lab.serve(EVIL, port=port)
        dns.answers["flip.example.net"] = [[GOOD]]
        front = await lab.moved({"/x": to(f"http://flip.example.net:{port}/mcp")})
        server = lab.dialled(front.at("/x"), era="modern", runtime=True)
        await server.settled()
        assert server.status.state is State.READY
        dns.answers["flip.example.net"] = [[GOOD], [EVIL]]
        before = len(dns.asked)
        assert said(await call(server, "modern", n=1))["n"] == 1
        assert len(dns.asked) == before + 1  # what was checked is what was dialled
        with pytest.raises(Unavailable) as caught:
            await call(server, "modern", n=2)
        assert "egress/loopback" in caught.value.why
        assert inside.connections == 0


async def test_a_server_that_is_removed_in_mid_check_is_not_dialled(lab: Lab) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    class Slow:
        async def addresses(self, host: str) -> Sequence[str]:
            asked.set()
            await go.wait()
            return [GOOD]

    lab.bench = Bench(policy(lab.folder, RULES), resolver=Slow())
    own = await lab.moved(eras=("modern",))
    there = await lab.serve(GOOD)

    async def away(seen: Any, stream: Any) -> web.Response:
        location = f"http://slow.example.net:{there.port}/"
        return web.Response(status=307, headers={"Location": location})

    own.on["tools/call echo"] = away
    server = lab.dialled(own.at("/mcp"), era="modern")
    await server.settled()
    running = asyncio.create_task(call(server, "modern"))
    await asyncio.wait_for(asked.wait(), 30)
    await server.close()
    go.set()
    (failed,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(failed, Unavailable | asyncio.CancelledError)
    assert there.connections == 0


# ------------------------------------------------------------------------- what is no answer


@asynccontextmanager
async def raw(answer: Callable[[], AsyncIterator[bytes]]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that answers whatever comes with these bytes; what it was asked."""
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            async for part in answer():
                writer.write(part)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, OWN, 0)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()


def parts(head: bytes, body: Callable[[], AsyncIterator[bytes]] | None = None) -> Any:
    async def answer() -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 307 Away\r\n" + head + b"\r\n"
        if body is not None:
            async for each in body():
                yield each

    return answer


async def much() -> AsyncIterator[bytes]:
    for _ in range(5000):
        yield b"x" * 65536


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"Location: http://127.0.0.2/" + b"x" * (5 << 20) + b"\r\n", "is no HTTP"),
        (b"Location: http://127.0.0.2:1/" + b"x" * 8100 + b"\r\n", None),
        (b"Location: http://127.0.0.2:1/\r\n  X-Folded: a\r\n", None),
        (b"Location: http://127.0.0.2:1/\0\r\n", "is no HTTP"),
        (b"Location: http://127.0.0.2:1/\rX-Key: a\r\n", "is no HTTP"),
        (b"Location: http://127.0.0.2:1/%0d%0aX-Injected:%20a\r\n", None),
        (b"Location: http://a.example/\r\nLocation: http://127.0.0.1/\r\n", "more than one Loc"),
        (b"Location: \xff\xfe\r\n", "cannot be read"),
        (b"Location:\r\n", "more than 5 in a row"),
        (b"Location: #here\r\n", "more than 5 in a row"),
        (b"", "without a Location"),
        (b"Location: //127.0.0.1/\r\n", "egress/loopback"),
        (b"Location: ///127.0.0.1/\r\n", "the URL has no host"),
        (b"Location: /\\127.0.0.1/\r\n", "a backslash"),
        (b"Location: http:127.0.0.1/\r\n", "does not begin with http"),
        (b"Location: http://127.0.0.2@127.0.0.1/\r\n", "user name"),
        (b"Location: gopher://127.0.0.1/\r\n", "does not begin with http"),
        (b"Location: http://127.0.0.2:0/\r\n", "the port is not a number"),
        (b"Location: http://127.0.0.2:99999/\r\n", "the port is not a number"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else "",
)
async def test_locations(lab: Lab, head: bytes, told: str | None) -> None:
    """Each costs one error, that says why, and holds neither a secret nor a control character."""
    async with raw(parts(b"Connection: close\r\nContent-Length: 0\r\n" + head)) as (port, heads):
        server = lab.dialled(f"http://{OWN}:{port}/mcp", era="modern")
        async with asyncio.timeout(20):
            await server.settled()
        error = str(server.status.error)
        assert told is None or told in error, error
        assert server.status.state is not State.READY
        assert len(error) < 500
        assert error.isprintable()
        assert "s3cret" not in error
        assert len(heads) <= 12
        for each in heads:
            assert b"X-Injected" not in each


async def test_a_redirects_endless_body_is_not_read(lab: Lab) -> None:
    there = await lab.moved(host=GOOD, eras=("modern",))
    head = f"Location: {there.url}\r\nContent-Length: 999999999999\r\n".encode()
    async with raw(parts(head, much)) as (port, _):
        server = lab.dialled(f"http://{OWN}:{port}/mcp", era="modern")
        async with asyncio.timeout(20):
            await server.settled()
        assert server.status.state is State.READY
        await until(lambda: there.of("server/discover"), within=30)


async def test_a_chain_ends_and_each_hop_is_checked(lab: Lab) -> None:
    hops = 0

    async def on(request: web.Request) -> web.Response:
        nonlocal hops
        hops += 1
        clean(request.headers)
        return web.Response(status=307, headers={"Location": f"/hop?{hops}"})

    there = await lab.moved({"/hop": on}, host=GOOD)
    front = await lab.moved({"/x": to(there.at("/hop"))})
    server = lab.dialled(front.at("/x"), era="modern")
    await server.settled()
    assert "more than 5 in a row" in str(server.status.error)
    assert hops == 5
    assert lab.rules.count("op/lab") == 6  # the server itself is dialled, too
