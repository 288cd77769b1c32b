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

# Budgets are what the design promises on a quiet machine; asserts allow a loaded one thrice that.
LISTENING = 0.9
FIRST_LIST = 2.0


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
            assert sidecar.took < 3 * LISTENING
            client = client_of(http, sidecar.mcp)
            began = time.monotonic()
            await client.open()
            opened = time.monotonic() - began
            assert opened < 1
            answer = await client.exchange("tools/list")
            listed = time.monotonic() - began
            print(f"opened in {opened:.3f} s, listed after {listed:.2f} s (budget {FIRST_LIST})")
            assert listed < 3 * FIRST_LIST
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
            assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param({"list_delay": 10}, id="slow list"),
        pytest.param({"initialize_delay": 10, "eras": ("legacy",)}, id="slow initialize"),
        pytest.param({"status": 500}, id="500"),
        pytest.param({"status": 401}, id="401"),
    ],
)
async def test_a_bad_server_beside_a_good_one(
    http: aiohttp.ClientSession, behaviour: dict[str, Any]
) -> None:
    async with (
        serving(Behaviour(**behaviour)) as bad,
        serving(Behaviour(name="good")) as good,
        behind({"bad": bad, "good": good}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        began = time.monotonic()
        await client.open()
        answer = await client.exchange("tools/list")
        assert time.monotonic() - began < 3 * FIRST_LIST
        names = [tool["name"] for tool in answer.result["tools"]]
        assert "good__echo" in names
        assert [name for name in names if name.startswith("bad__")] == []
        assert [x["server"] for x in answer.result["_meta"]["sidecar/unavailable"]] == ["bad"]
        assert await client.text("good__echo", message="on") == "on"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["/nonexistent/program"], id="no such program"),
        pytest.param(["/etc/passwd"], id="not executable"),
        pytest.param(["false"], id="ends at once"),
        pytest.param(["yes", "not json"], id="babbles for ever"),
        pytest.param(["sleep", "60"], id="silent"),
        pytest.param(["sh", "-c", "head -c 100000000 /dev/zero; sleep 60"], id="one endless line"),
    ],
)
async def test_a_bad_command_beside_a_good_one(
    http: aiohttp.ClientSession, tmp_path: Path, command: list[str]
) -> None:
    good = Child(Behaviour(name="good"), tmp_path / "record")
    async with behind({"bad": {"command": command}, "good": good}) as sidecar:
        client = Modern(http, sidecar.mcp)
        began = time.monotonic()
        assert "good__echo" in await client.until_listed("good__echo")
        assert time.monotonic() - began < 3 * FIRST_LIST
        assert await client.text("good__echo", message="on") == "on"
        page = await client.request("tools/list")
        assert [x["server"] for x in page["_meta"]["sidecar/unavailable"]] == ["bad"]


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
        await client.until_listed("bad__echo", within=15)


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
                await client.until_listed("late__echo", within=15)
                await eventually(lambda: heard, 5)
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


@pytest.mark.parametrize("discover", ["answer", "silent", "exit"])
@pytest.mark.parametrize("eras", [("legacy",), ("legacy", "modern"), ("modern",)])
async def test_probing_a_stdio_server_is_safe(
    http: aiohttp.ClientSession, tmp_path: Path, discover: Any, eras: tuple[str, ...]
) -> None:
    """Also one that exits on the probe, or never answers it."""
    if discover != "answer" and "modern" in eras:
        pytest.skip("a modern server answers server/discover")
    child = Child(Behaviour(name="up", discover=discover, eras=eras), tmp_path / "record")
    async with behind({"up": child}) as sidecar:
        for client in (Legacy(http, sidecar.mcp), Modern(http, sidecar.mcp)):
            await client.open()
            await client.until_listed("up__echo", within=20)
            assert await client.text("up__whoami") == "up:whoami"


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
