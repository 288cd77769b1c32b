"""C24, and what the first issue shows: ten servers, half of them no good, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.http import HttpServer
from tests.cases.awkward.stdio import Child
from tests.cases.behind import Server, behind, dead, dead_port, entry
from tests.kit.client import Legacy, Modern, eventually

# What the design promises on a quiet machine, and is printed: how fast it is, `make bench` tells.
# Asserted is that nobody waits for the servers that are no good, which would be for PATIENCE.
LISTENING = 0.9
FIRST_LIST = 2.0
PATIENCE = 60.0


@contextlib.asynccontextmanager
async def living(count: int) -> AsyncIterator[list[HttpServer]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(serving(Behaviour(name=f"live{n}")))
            for n in range(count)
        ]


async def test_ten_servers_five_of_them_no_good(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern]
) -> None:
    """Listening soon, every live server's tools in the first list, the others tried again."""
    async with living(5) as live:
        servers: dict[str, Server] = {
            "dead0": dead(),
            "live0": live[0],
            "hanging": {"url": live[0].at("hang")},
            "live1": live[1],
            "dead1": dead(),
            "garbage": {"url": live[0].at("garbage")},
            "live2": live[2],
            "dead2": dead(),
            "live3": live[3],
            "live4": live[4],
        }
        async with behind(servers) as sidecar:
            print(f"listening after {sidecar.took:.2f} s (budget {LISTENING})")
            assert sidecar.took < PATIENCE / 2
            client = client_of(http, sidecar.mcp)
            began = time.monotonic()
            await client.open()
            opened = time.monotonic() - began
            assert opened < PATIENCE / 2
            answer = await client.exchange("tools/list")
            listed = time.monotonic() - began
            print(f"opened in {opened:.3f} s, listed after {listed:.2f} s (budget {FIRST_LIST})")
            assert listed < PATIENCE / 2
            names = [tool["name"] for tool in answer.result["tools"]]
            assert {f"live{n}__echo" for n in range(5)} <= set(names)
            down = {item["server"]: item for item in answer.result["_meta"]["sidecar/unavailable"]}
            assert set(down) == {"dead0", "dead1", "dead2", "hanging", "garbage"}
            assert all(item["state"] in ("connecting", "backoff") for item in down.values())
            # Nobody waits for them: neither a call, nor a second list.
            began = time.monotonic()
            texts = await asyncio.gather(
                *(client.text(f"live{n}__echo", message=str(n)) for n in range(5))
            )
            assert texts == [str(n) for n in range(5)]
            assert time.monotonic() - began < PATIENCE / 2


BAD_SERVERS = {
    "slow_list": Behaviour(list_delay=PATIENCE),
    "slow_initialize": Behaviour(initialize_delay=PATIENCE, eras=("legacy",)),
    "s500": Behaviour(status=500),
    "s401": Behaviour(status=401),
    "s302": Behaviour(status=302),
}
BAD_COMMANDS = {
    "no_program": ["/nonexistent/program"],
    "not_executable": ["/etc/passwd"],
    "ends_at_once": ["false"],
    "babbles": ["yes", "not json"],
    "silent": ["sleep", "60"],
    "endless_line": ["sh", "-c", "head -c 100000000 /dev/zero; sleep 60"],
}


async def test_bad_servers_beside_a_good_one(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], tmp_path: Path
) -> None:
    """Eleven of them, each bad in another way; the good one is a stdio server."""
    good = Child(Behaviour(name="good"), tmp_path / "record")
    async with contextlib.AsyncExitStack() as stack:
        servers: dict[str, Server] = {
            name: await stack.enter_async_context(serving(behaviour))
            for name, behaviour in BAD_SERVERS.items()
        }
        servers |= {name: {"command": command} for name, command in BAD_COMMANDS.items()}
        bad = set(servers)
        async with behind({**servers, "good": good}) as sidecar:
            client = client_of(http, sidecar.mcp)
            began = time.monotonic()
            await client.open()
            answer = await client.exchange("tools/list")
            assert time.monotonic() - began < PATIENCE / 2
            missing = {item["server"] for item in answer.result["_meta"]["sidecar/unavailable"]}
            # The good one may be late on a loaded machine, but then it is told as missing.
            assert missing - {"good"} == bad
            await client.until_listed("good__echo", within=30)
            assert await client.text("good__echo", message="on") == "on"
            assert [n for n in await client.names() if not n.startswith("good__")] == []


async def test_a_list_that_fails_is_read_again(http: aiohttp.ClientSession) -> None:
    async with (
        serving(Behaviour(list_error=True)) as bad,
        serving(Behaviour(name="good")) as good,
        behind({"bad": bad, "good": good}) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        names = await client.until_listed("good__echo")
        assert [name for name in names if name.startswith("bad__")] == []
        assert "server bad: tools/list failed" in sidecar.log()
        bad.server.behaviour.list_error = False
        await client.until_listed("bad__echo", within=30)


async def test_a_dead_server_is_found_when_it_comes(http: aiohttp.ClientSession) -> None:
    """Within its back-off, and listeners are told."""
    late = HttpServer(Behaviour(name="late"))
    late.port = dead_port()
    async with (
        serving(Behaviour(name="good")) as good,
        behind({"late": entry(late), "good": good}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("good__echo")
        try:
            async with client.listening() as heard:
                await late.start()
                await client.until_listed("late__echo", within=30)
                await eventually(lambda: heard, 30)
            assert await client.text("late__whoami") == "late:whoami"
            page = await client.request("tools/list")
            assert page.get("_meta", {}).get("sidecar/unavailable", []) == []
        finally:
            await late.stop()


async def test_a_listed_tool_of_a_dead_server_says_unavailable(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern]
) -> None:
    """Not "unknown tool": the agent has seen it, and it will be back."""
    async with (
        serving(Behaviour(name="up")) as upstream,
        behind({"up": upstream}, retry={"attempts": 1}, list_wait="200ms") as sidecar,
    ):
        client = client_of(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__count")
        await upstream.stop()
        answer = await client.exchange("tools/call", {"name": "up__count", "arguments": {}})
        assert answer.error["code"] == -32603
        assert answer.error["data"]["reason"] == "unavailable"
        assert answer.error["data"]["server"] == "up"
        await client.until_gone("up__count")
        answer = await client.exchange("tools/call", {"name": "up__count", "arguments": {}})
        assert answer.error["code"] == -32603
        assert answer.error["data"]["ran"] == "no"
        assert answer.error["data"]["retry_in"] >= 0


PROBED: dict[str, Behaviour] = {
    "both": Behaviour(),
    "modern": Behaviour(eras=("modern",)),
    "legacy": Behaviour(eras=("legacy",)),
    "legacy_silent": Behaviour(eras=("legacy",), discover="silent"),
    "legacy_exits": Behaviour(eras=("legacy",), discover="exit"),
}


async def test_probing_a_stdio_server_is_safe(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Also one that exits on the probe, or never answers it."""
    children: dict[str, Server] = {
        name: Child(behaviour, tmp_path / name) for name, behaviour in PROBED.items()
    }
    async with behind(children) as sidecar:
        for client in (Legacy(http, sidecar.mcp), Modern(http, sidecar.mcp)):
            await client.open()
            await client.until_listed(*(f"{name}__echo" for name in PROBED), within=30)
            for name in PROBED:
                assert await client.text(f"{name}__whoami") == "awkward:whoami"


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_requests_of_a_server_are_answered(
    http: aiohttp.ClientSession, tmp_path: Path, way: str
) -> None:
    """``roots/list`` gets an empty list, what nobody knows gets -32601, and neither stalls it."""
    behaviour = Behaviour(name="up", eras=("legacy",), ask_on_connect=True)
    child = Child(behaviour, tmp_path / "record")
    async with (
        serving(behaviour) as upstream,
        behind({"up": upstream if way == "http" else child}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__echo")

        def answers() -> dict[Any, dict[str, Any]]:
            if way == "http":
                return {message["id"]: message for message in upstream.server.answers}
            return {m["id"]: m for m in child.got() if "method" not in m}

        await eventually(lambda: len(answers()) == 2)
        assert answers()["ask-0"]["result"] == {"roots": []}
        assert answers()["ask-1"]["error"]["code"] == -32601
