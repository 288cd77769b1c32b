"""Played by ``test_network.py`` inside of a network namespace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.egress.net import Dns
from tests.kit.client import Legacy
from tests.kit.running import Sidecar, running
from tests.upstream.kit import Fake

PUBLIC, OTHER, INSIDE, GATEWAY, OWN = (
    "93.184.216.34",
    "8.8.8.8",
    "10.9.9.9",
    "203.0.113.1",
    "203.0.113.2",
)
RULES = f"""
apiVersion: sidecar/v1
kind: Policy
name: op
rules:
  - id: all-of-the-lab
    on: connect
    effect: allow
    when: 'addresses.exists(a, a.ip in ["{GATEWAY}", "{OWN}", "127.0.0.1"])'
    message: '"a rule that allows too much"'
"""


def ip(*arguments: str, inside: int | None = None) -> None:
    enter = ["nsenter", "-t", str(inside), "-n"] if inside is not None else []
    subprocess.run([*enter, "ip", *arguments], check=True)


FLIP = "flip.example.net"
FREEBIND = 15
"""IP_FREEBIND: the addresses come once this process is there."""


async def serve(folder: Path) -> None:
    """The internet: says where it was reached, at two ports; and a DNS server that rebinds."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        return web.Response(text=f"at {request.transport.get_extra_info('sockname')[0]}")

    async def slash(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": "/tenant"})

    async def tenant(request: web.Request) -> web.StreamResponse:
        mine = request.headers.get("X-Tenant") == "t"
        return await mcp.handle(request) if mine else web.Response(status=401)

    async def away(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"http://{FLIP}/mcp"})

    async def reached(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (folder / "inside").open("a") as file:
            file.write(f"a connection: {await reader.read(1000)!r}\n")
        writer.close()

    mcp = Fake(eras=("modern",))
    app = web.Application()
    for path, handler in (("/mcp", mcp.handle), ("/slash", slash), ("/tenant", tenant)):
        app.router.add_route("*", path, handler)
    app.router.add_route("*", "/away", away)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for port in (80, 9000):
        for address in (PUBLIC, OTHER, GATEWAY):
            await web.SockSite(runner, free(address, port)).start()
        await asyncio.start_server(reached, sock=free(INSIDE, port))
    with Dns("0.0.0.0", 53) as dns:
        dns.answers[FLIP] = [[PUBLIC], [INSIDE]]
        print("serving", flush=True)
        await asyncio.Event().wait()


def free(address: str, port: int) -> socket.socket:
    """A socket at an address that may come later."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_IP, FREEBIND, 1)
    sock.bind((address, port))
    return sock


async def play(folder: Path) -> None:
    """Everything that is to be seen."""
    (folder / "rules.yaml").write_text(RULES)
    (folder / "token").write_text("t0ken")
    config: dict[str, Any] = {
        "policies": [str(folder / "rules.yaml")],
        "servers": {
            "web": {
                "command": [sys.executable, "-m", "tests.egress.fetcher"],
                "env": {"PYTHONPATH": str(Path.cwd())},
                "egress": "proxy",
            }
        },
        "egress": {"proxy": {"clients": {"app": {"token_file": str(folder / "token")}}}},
    }
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("web__fetch")

        async def fetch(url: str) -> str:
            return await client.text("web__fetch", url=url)

        # Its name is public while it is added, connected and called.
        flip = f"http://{FLIP}/mcp"
        began = asyncio.get_running_loop().time()
        assert await added(sidecar, flip, "flip") == 201
        assert await added(sidecar, f"http://{PUBLIC}:80/slash", "slash") == 201
        await client.until_listed("flip__echo", "slash__echo")
        assert '"n": 1' in await client.text("flip__echo", n=1)
        assert '"n": 2' in await client.text("slash__echo", n=2)

        assert await fetch(f"http://{PUBLIC}/") == f"200 at {PUBLIC}"
        assert await fetch(f"http://{OTHER}/x") == f"200 at {OTHER}"
        for url, told in (
            (f"http://{PUBLIC}:9000/", "egress/port"),
            (f"http://{INSIDE}/", "egress/private"),
            # A rule allows these; the proxy does not.
            (f"http://{GATEWAY}/", "never dials the node"),
            (f"http://{OWN}:8808/mcp", "never dials this machine"),
            ("http://2130706433/", "plain spelling"),
        ):
            said = await fetch(url)
            assert told in said, (url, said)
        proxy = "http://app:t0ken@127.0.0.1:8811"
        async with http.get(f"http://{PUBLIC}/", proxy=proxy) as response:
            assert await response.text() == f"at {PUBLIC}"
        # The rule about servers that are added: the verdict, and the operator's allowance.
        assert await added(sidecar, f"http://{PUBLIC}:9000/mcp") == 201
        assert await added(sidecar, f"http://{GATEWAY}:9000/mcp") == 200
        assert await added(sidecar, f"http://{INSIDE}:9000/mcp") == 422
        # By now it is somebody else's: an answer of DNS is used again for 10 s.
        await asyncio.sleep(max(0.0, began + 10.5 - asyncio.get_running_loop().time()))
        assert "egress/private" in await fetch(f"http://{FLIP}/")
        with contextlib.suppress(aiohttp.ClientHttpProxyError):
            async with http.get(f"https://{FLIP}/", proxy=proxy):
                raise AssertionError("there was a tunnel")
        assert await added(sidecar, flip, "flop") == 422
        assert await added(sidecar, f"http://{OTHER}/away", "away") == 201
        assert "egress/private" in await error_of(sidecar, "away")
        # Connections that are kept stay with the address that was checked.
        assert '"n": 3' in await client.text("flip__echo", n=3)
    assert not (folder / "inside").exists(), (folder / "inside").read_text()
    print("all as it should be")


async def error_of(sidecar: Sidecar, name: str) -> str:
    """Why a server is not connected, once it says."""
    connector = aiohttp.UnixConnector(sidecar.admin.removeprefix("unix:"))
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.timeout(20):
        while True:
            async with http.get("http://admin/v1/servers") as response:
                servers = (await response.json())["servers"]
            found = next(each.get("error") for each in servers if each["name"] == name)
            if found:
                return str(found)
            await asyncio.sleep(0.1)


async def added(sidecar: Sidecar, url: str, name: str = "x") -> int:
    connector = aiohttp.UnixConnector(sidecar.admin.removeprefix("unix:"))
    options = {"url": url, "headers": {"x-tenant": "t"}}
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.put(f"http://admin/v1/servers/{name}", json=options) as response,
    ):
        json.loads(await response.text())
        return response.status


def main() -> None:
    """Set the stage, play, and take it down: with the last process its networks are gone."""
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["serve"]:
        asyncio.run(serve(folder))
        return
    internet = subprocess.Popen(
        ["unshare", "-n", sys.executable, __file__, str(folder), "serve"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert internet.stdout is not None
        line = internet.stdout.readline()
        assert line == "serving\n", line
        # Of this scene's own, since the mounts are.
        (folder / "resolv.conf").write_text(f"nameserver {GATEWAY}\n")
        subprocess.run(["mount", "--bind", folder / "resolv.conf", "/etc/resolv.conf"], check=True)
        ip("link", "set", "lo", "up")
        ip("link", "add", "here", "type", "veth", "peer", "name", "there")
        ip("link", "set", "there", "netns", str(internet.pid))
        ip("addr", "add", f"{OWN}/24", "dev", "here")
        ip("link", "set", "here", "up")
        for address in (f"{GATEWAY}/24", f"{PUBLIC}/32", f"{OTHER}/32", f"{INSIDE}/32"):
            ip("addr", "add", address, "dev", "there", inside=internet.pid)
        ip("link", "set", "there", "up", inside=internet.pid)
        ip("route", "add", "default", "via", GATEWAY)
        asyncio.run(play(folder))
    finally:
        internet.kill()
        internet.wait()


if __name__ == "__main__":
    main()
