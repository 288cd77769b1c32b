"""A name whose DNS server changes its mind, at every point of a server's life.

Added, checked, connected, called, redirected, and through the forward proxy: whenever the answer
turns, the machine that it turns to must not see so much as a connection. 127.0.0.2 and 127.0.0.3
stand for the public internet.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sidecar.config import Limits, Listen, ProxyLimits, RuntimeServers, ServerConfig
from sidecar.config.secrets import EnvFileSecrets
from sidecar.egress.check import About
from sidecar.egress.dial import ServerDialer
from sidecar.egress.proxy import ForwardProxy
from sidecar.egress.resolve import SystemResolver
from sidecar.model import Era, State, Unavailable
from sidecar.store.memory import MemoryStore
from sidecar.upstream import McpServer
from sidecar.upstream.registry import Denial, Refused, Registry, Rules
from tests.egress.kit import Bench, policy
from tests.egress.net import Dns, Seen, serving
from tests.upstream.kit import Fake, caller, said

GOOD, OTHER, EVIL = "127.0.0.2", "127.0.0.3", "127.0.0.1"
NAME = "flip.example.net"
RULES = f"""
- id: lab
  on: connect
  effect: allow
  when: 'addresses.all(a, a.ip in ["{GOOD}", "{OTHER}"])'
  message: '"stands for the public internet"'
"""
TOKEN = "t0ken"
BASIC = base64.b64encode(f"app:{TOKEN}".encode()).decode()
STEPS = ("add", "connect", "call", "call again", "redirect", "tunnel", "proxied")


class Restless(Fake):
    """Keeps no connection, so that each request has to be dialled."""

    host = GOOD

    async def start(self, port: int | None = None) -> Fake:
        app = web.Application()
        app.router.add_route("*", "/mcp", self.handle)

        async def closing(request: web.Request, response: web.StreamResponse) -> None:
            response.headers["Connection"] = "close"
            response.force_close()

        app.on_response_prepare.append(closing)
        self.server = TestServer(app, port=port, host=self.host)
        await self.server.start_server(access_log=None, shutdown_timeout=0.05)
        return self


class Life:
    """Everything that dials, as the sidecar puts it together."""

    def __init__(self, folder: Path, dns: Dns, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.dns = dns
        resolver = SystemResolver(dns.look_up, keep=0)
        stack.push_async_callback(resolver.close)
        self.bench = Bench(policy(folder, RULES), resolver=resolver)
        self.proxy = ForwardProxy(self.bench.check, ProxyLimits())
        self.there = Restless(eras=("modern",))
        self.front = Seen(OTHER)
        self.evil = Seen(EVIL)
        self.address = ""
        self.registry: Registry

    async def start(self) -> None:
        stack, check = self.stack, self.bench.check
        await self.there.start()
        stack.push_async_callback(self.there.stop)
        self.evil = await stack.enter_async_context(serving(EVIL, port=self.port))

        async def away(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": self.url})

        self.front = await stack.enter_async_context(serving(OTHER, away))
        store = MemoryStore()
        await store.open()
        stack.push_async_callback(store.close)
        self.registry = Registry(
            store,
            shared=False,
            rules=Rules({}, {}, RuntimeServers(), "__", None),
            make=self.make,
            end=lambda server: None,
            placed=lambda: None,
            check=self.check,
        )
        await self.registry.start()
        stack.push_async_callback(self.registry.close)
        self.proxy.update({"app": TOKEN}, ProxyLimits())
        self.address = await self.proxy.start(Listen(EVIL, 0))
        stack.push_async_callback(self.proxy.close)
        assert check is self.bench.check

    @property
    def port(self) -> int:
        assert self.there.server.port is not None
        return self.there.server.port

    @property
    def url(self) -> str:
        return f"http://{NAME}:{self.port}/mcp"

    def make(self, config: ServerConfig) -> McpServer:
        server = McpServer(
            config,
            name="sc",
            bus=self.bench.bus,
            limits=Limits(),
            secrets=EnvFileSecrets(os.environ),
            connector=ServerDialer(self.bench.check, config),
        )
        self.stack.push_async_callback(server.close)
        return server

    async def check(self, config: ServerConfig, by: str) -> Denial | None:
        found = await self.bench.check.url(config.url, "added", About.of(config, by))
        return None if found.ok else Denial(found.decision.rule, found.decision.message)

    # ------------------------------------------------------------------------------ steps

    async def add(self, name: str, url: str) -> McpServer | None:
        with suppress(Refused):
            await self.registry.add(name, {"url": url, "era": "modern"})
        for server, _ in self.registry.running():
            if server.name == name:
                assert isinstance(server, McpServer)
                await server.settled()
                return server
        return None

    async def call(self, server: McpServer | None, n: int) -> bool:
        if server is None:
            return False
        params: dict[str, Any] = {"name": "echo", "arguments": {"n": n}}
        try:
            found = await server.request("tools/call", params, caller("s", era=Era.MODERN))
        except Unavailable:
            return False
        return bool(said(found)["n"] == n)

    async def tunnel(self) -> bool:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(
                f"CONNECT {NAME}:{self.port} HTTP/1.1\r\nHost: x\r\n"
                f"Proxy-Authorization: Basic {BASIC}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()
        return head.startswith(b"HTTP/1.1 200 ")

    async def proxied(self) -> bool:
        proxy = f"http://app:{TOKEN}@{self.address}"
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http,
            http.get(self.url, proxy=proxy) as response,
        ):
            return response.status != 403

    async def live(self) -> dict[str, bool]:
        """All of it once; which steps reached the name."""
        done = {}
        server = await self.add("a", self.url)
        done["add"] = server is not None
        done["connect"] = server is not None and server.status.state is State.READY
        done["call"] = await self.call(server, 1)
        done["call again"] = await self.call(server, 2)
        redirected = await self.add("b", f"http://{OTHER}:{self.front.port}/")
        done["redirect"] = await self.call(redirected, 3)
        done["tunnel"] = await self.tunnel()
        done["proxied"] = await self.proxied()
        return done


@pytest.fixture
async def life(tmp_path: Path) -> AsyncIterator[Life]:
    with Dns() as dns:
        async with AsyncExitStack() as stack:
            made = Life(tmp_path, dns, stack)
            await made.start()
            yield made


async def test_with_one_answer_everything_works(life: Life) -> None:
    life.dns.answers[NAME] = [[GOOD]]
    assert await life.live() == dict.fromkeys(STEPS, True)
    assert life.evil.connections == 0


@pytest.mark.parametrize("turned", [[EVIL], [EVIL, GOOD]], ids=["loopback", "both"])
async def test_whenever_it_turns_the_other_gets_no_connection(
    life: Life, turned: list[str]
) -> None:
    """It turns one look-up later each time, until it turns after everything."""
    reached: list[int] = []
    for good in range(40):
        life.dns.answers[NAME] = [*[[GOOD]] * good, turned]
        done = await life.live()
        reached.append(sum(done.values()))
        assert life.evil.connections == 0, (good, done)
        for name in ("a", "b"):
            with suppress(Exception):
                await life.registry.remove(name)
        if all(done.values()):
            break
    assert reached[0] == 0  # not even added
    assert reached[-1] == len(STEPS)
    assert len(set(reached)) >= 3, reached
    denied = {d.decision.rule for d in life.bench.decided if d.decision.decision == "deny"}
    assert denied == {"egress/loopback"}
