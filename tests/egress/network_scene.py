"""Played by ``test_network.py`` inside of a network namespace of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.kit.client import Legacy
from tests.kit.running import Sidecar, running

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


async def serve() -> None:
    """The internet: says where it was reached, at two ports, for all of its addresses."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        return web.Response(text=f"at {request.transport.get_extra_info('sockname')[0]}")

    server = web.Server(answer, access_log=None)
    loop = asyncio.get_running_loop()
    for port in (80, 9000):
        await loop.create_server(server, "0.0.0.0", port)
    print("serving", flush=True)
    await asyncio.Event().wait()


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
    print("all as it should be")


async def added(sidecar: Sidecar, url: str) -> int:
    connector = aiohttp.UnixConnector(sidecar.admin.removeprefix("unix:"))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.put("http://admin/v1/servers/x", json={"url": url}) as response,
    ):
        json.loads(await response.text())
        return response.status


def main() -> None:
    """Set the stage, play, and take it down: with the last process its networks are gone."""
    if sys.argv[1] == "serve":
        asyncio.run(serve())
        return
    internet = subprocess.Popen(
        ["unshare", "-n", sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert internet.stdout is not None
        assert internet.stdout.readline() == "serving\n"
        ip("link", "set", "lo", "up")
        ip("link", "add", "here", "type", "veth", "peer", "name", "there")
        ip("link", "set", "there", "netns", str(internet.pid))
        ip("addr", "add", f"{OWN}/24", "dev", "here")
        ip("link", "set", "here", "up")
        for address in (f"{GATEWAY}/24", f"{PUBLIC}/32", f"{OTHER}/32", f"{INSIDE}/32"):
            ip("addr", "add", address, "dev", "there", inside=internet.pid)
        ip("link", "set", "there", "up", inside=internet.pid)
        ip("route", "add", "default", "via", GATEWAY)
        asyncio.run(play(Path(sys.argv[1])))
    finally:
        internet.kill()
        internet.wait()


if __name__ == "__main__":
    main()
