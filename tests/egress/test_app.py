"""A whole sidecar: its admin API, a server that is added, a child that uses the proxy."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.app import App, StartError
from sidecar.config import ServerConfig, load
from sidecar.events import Decided
from sidecar.upstream.runtime import Refused
from tests.egress.net import serving
from tests.kit.client import Legacy, eventually
from tests.kit.running import Sidecar, running

FETCHER: dict[str, Any] = {
    "command": [sys.executable, "-m", "tests.egress.fetcher"],
    "env": {"PYTHONPATH": str(Path(__file__).parents[2])},
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def admin(sidecar: Sidecar, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connector = aiohttp.UnixConnector(sidecar.admin.removeprefix("unix:"))
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.request(method, f"http://admin{path}", json=body) as response,
    ):
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def test_what_the_admin_api_tells() -> None:
    config = {"servers": {"own": {"url": "http://127.0.0.1:1/mcp"}}}
    async with running(config) as sidecar:

        async def ask(**body: Any) -> tuple[int, Any]:
            return await admin(sidecar, "POST", "/v1/egress/check", body)

        status, told = await ask(url="https://1.1.1.1/x")
        assert (status, told["decision"], told["rule"]) == (200, "allow", "egress/public")
        assert told["addresses"] == [{"ip": "1.1.1.1", "class": "public"}]
        status, told = await ask(url="http://[::ffff:10.0.0.1]/")
        assert (status, told["decision"], told["rule"]) == (200, "deny", "egress/ipv6")
        status, told = await ask(url="http://127.0.0.1:1/mcp", reason="dial", server="own")
        assert (told["decision"], told["rule"]) == ("allow", "egress/configured")
        status, told = await ask(url="http://127.0.0.1:80/", reason="proxy")
        assert (told["decision"], told["rule"]) == ("deny", "egress/loopback")
        for body in ({}, {"url": 1}, {"url": "x", "reason": "y"}, {"url": "x", "more": 1}):
            status, told = await ask(**body)
            assert (status, told["reason"]) == (422, "bad_input"), body
        status, told = await ask(url="http://x/", server="none")
        assert (status, told["reason"]) == (422, "unknown_server")


async def test_a_server_is_checked_when_it_is_added() -> None:
    """P8: refused before any byte is sent; a rule lets one address in, with its reason."""
    async with serving("127.0.0.1") as evil, running({}) as sidecar:
        for url in (
            "http://169.254.169.254/",
            "http://[::ffff:10.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://0x7f.1/",
            "http://100.64.0.1/",
            "http://2130706433/",
            "http://[fd00:ec2::254]/",
            "http://metadata.google.internal/",
            "http://example.com@10.0.0.1/",
            "http://user:pw@1.1.1.1/",
            "http://1.1.1.1:+80/",
            "http://1.1.1.1:0/",
            "http://1.1.1.1:65536/",
            "http://1.1.1.1\\@10.0.0.1/",
            "file:///etc/passwd",
            "gopher://1.1.1.1/",
            f"http://127.0.0.1:{evil.port}/",
            f"http://localhost:{evil.port}/",
            f"http://0.0.0.0:{evil.port}/",
            f"http://[::ffff:127.0.0.1]:{evil.port}/",
        ):
            status, told = await admin(sidecar, "PUT", "/v1/servers/x", {"url": url})
            assert status == 422, (url, told)
        assert evil.connections == 0
        listed = await admin(sidecar, "GET", "/v1/servers")
        assert listed == (200, {"servers": []})


async def test_a_refusal_says_what_would_allow_it_and_its_record_who_asked(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text("store: memory\nlisten: off\nhealth: {listen: off}\nadmin: {listen: off}\n")
    app = App(load(file, environ={"HOME": str(tmp_path)}))
    records: list[Decided] = []
    app.bus.listen(Decided, records.append)
    try:
        await app.start(listen=False)
        for url, helps in (
            ("http://127.0.0.1:9/mcp", True),
            ("http://localhost/mcp", True),
            ("http://0x7f.1/mcp", False),  # no rule allows what can be read in two ways
        ):
            with pytest.raises(Refused) as caught:
                await app.registry.add("x", {"url": url}, by="uid:alice")
            assert ("allow it with a rule of phase connect" in caught.value.detail) is helps, url
            assert caught.value.reason == records[-1].decision.rule
        with pytest.raises(Refused):
            await app.registry.add("x", {"url": "http://10.0.0.1/mcp"})
        assert [each.principal for each in records] == ["uid:alice"] * 3 + ["sidecar"]
        assert {each.phase for each in records} == {"connect"}
    finally:
        await app.close()


async def test_a_child_is_told_of_the_proxy_and_held_to_the_rules() -> None:
    port = free_port()
    config = {
        "servers": {"web": {**FETCHER, "egress": "proxy"}, "free": FETCHER},
        "egress": {"proxy": {"listen": f"127.0.0.1:{port}"}},
    }
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("web__fetch", "free__env")
        told = dict(line.split("=", 1) for line in (await client.text("web__env")).splitlines())
        assert told["http_proxy"] == told["HTTPS_PROXY"]
        assert told["http_proxy"].startswith("http://web:")
        assert told["http_proxy"].endswith(f"@127.0.0.1:{port}")
        assert (told["NO_PROXY"], told["NODE_USE_ENV_PROXY"]) == ("localhost,127.0.0.1,::1", "1")
        assert "http_proxy=\n" in await client.text("free__env")
        fetched = await client.text("web__fetch", url="http://10.0.0.1/")
        assert fetched == (
            "403 sidecar: denied by rule egress/private: "
            "the address is private: it is in a private network\n"
        )
        fetched = await client.text("web__fetch", url="http://127.1/")
        assert fetched.startswith("400 sidecar: the host ends in a number")
        assert told["http_proxy"].split(":")[2].split("@")[0] not in sidecar.log()


async def test_clients_come_and_go_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("token-one")
    (tmp_path / "two").write_text("token-two")
    port = free_port()

    def config(name: str) -> dict[str, Any]:
        clients = {name: {"token_file": str(tmp_path / name)}}
        return {"egress": {"proxy": {"listen": f"127.0.0.1:{port}", "clients": clients}}}

    async with aiohttp.ClientSession() as http, running(config("one")) as sidecar:

        async def status(name: str) -> int:
            proxy = f"http://{name}:token-{name}@127.0.0.1:{port}"
            async with http.get("http://10.0.0.1/", proxy=proxy) as response:
                return response.status

        assert (await status("one"), await status("two")) == (403, 407)
        sidecar.write({**sidecar.config, **config("two")})
        sidecar.signal(signal.SIGHUP)
        await eventually(lambda: "reloaded: settings: egress" in sidecar.log(), 30)
        assert (await status("one"), await status("two")) == (407, 403)
        # A new token at the same place needs no change of the file.
        (tmp_path / "two").write_text("token-three")
        sidecar.signal(signal.SIGHUP)
        for _ in range(80):
            if await status("two") == 407:
                break
            await asyncio.sleep(0.1)
        assert await status("two") == 407


async def test_a_tunnel_may_end_while_the_sidecar_drains(tmp_path: Path) -> None:
    """Nothing of the proxy is left behind when it stops."""
    (tmp_path / "one").write_text("token-one")
    port = free_port()
    clients = {"one": {"token_file": str(tmp_path / "one")}}
    async with running(
        {"egress": {"proxy": {"listen": f"127.0.0.1:{port}", "clients": clients}}}
    ) as sidecar:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sidecar.signal(signal.SIGTERM)
        assert await asyncio.to_thread(sidecar.wait) == 0
        assert await reader.read() == b""
        writer.close()


async def test_children_have_a_proxy_without_any_listener_of_ours(tmp_path: Path) -> None:
    """`sidecar stdio` alone: two of them must not want the same port."""
    file = tmp_path / "sidecar.yaml"
    file.write_text(
        "store: memory\nlisten: off\nhealth: {listen: off}\nadmin: {listen: off}\n"
        "egress: {proxy: {}}\n"
    )
    apps = [App(load(file, environ={"HOME": str(tmp_path)})) for _ in range(2)]
    try:
        addresses = set()
        for app in apps:
            await app.start(listen=False)
            grant = app.egress.proxy.grant(ServerConfig("x", "stdio", command=("x",)))
            addresses.add(grant.env["HTTPS_PROXY"].partition("@")[2])
        assert len(addresses) == 2
        assert "127.0.0.1:8811" not in addresses
    finally:
        for app in apps:
            await app.close()


async def test_a_faulty_token_or_address_is_told_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_text("t0ken")
    file = tmp_path / "sidecar.yaml"
    file.write_text("store: memory\negress: {proxy: {clients: {a: {token_file: one}}}}\n")
    config = load(file, environ={"HOME": str(tmp_path)})
    (tmp_path / "one").unlink()
    with pytest.raises(StartError, match="one"):
        App(config)
    (tmp_path / "one").write_text("t0ken")
    monkeypatch.setenv("SIDECAR_NODE_IP", "node-7")
    with pytest.raises(StartError, match="SIDECAR_NODE_IP"):
        App(config)
