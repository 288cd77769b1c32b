"""The ``mcp`` package's own client, which none of us wrote, over HTTP and over stdio."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from tests.downstream.kit import TOOLS_CHANGED, Rig, running, until

ROOT = str(Path(__file__).resolve().parents[2])
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": ROOT}
MODES = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", "auto": "2026-07-28"}


@asynccontextmanager
async def over_http(mode: str, **more: Any) -> AsyncIterator[tuple[Client, Rig]]:
    async with running() as rig:
        rig.gateway.release.set()
        async with Client(f"{rig.url}/mcp", mode=mode, **more) as client:  # type: ignore[arg-type]
            yield client, rig


@asynccontextmanager
async def over_stdio(mode: str) -> AsyncIterator[Client]:
    child = StdioServerParameters(
        command=sys.executable, args=["-m", "tests.downstream.stdio_child"], env=ENV
    )
    async with Client(child, mode=mode) as client:  # type: ignore[arg-type]
        yield client


async def converse(client: Client, version: str) -> None:
    """What every client does, in either era and over either transport."""
    assert client.protocol_version == version
    # A client that was told the stateless era asks for nothing before its first request.
    if client.server_info is not None:
        assert client.server_info.name == "sidecar"
    listed = await client.list_tools()
    assert "echo" in [tool.name for tool in listed.tools]
    answer = await client.call_tool("echo", {"a": "ü"})
    assert answer.content[0].text == '{"a": "\\u00fc"}'  # type: ignore[union-attr]
    seen: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    await client.call_tool("progress", {}, progress_callback=progress)
    assert seen == [0.0, 1.0, 2.0]
    with pytest.raises(MCPError) as raised:
        await client.call_tool("nothing", {})
    assert raised.value.error.code == -32602
    with pytest.raises(MCPError) as raised:
        await client.call_tool("own_error", {})
    assert (raised.value.error.code, raised.value.error.data) == (-32050, {"why": None})
    many = await asyncio.gather(*(client.call_tool("echo", {"i": i}) for i in range(16)))
    assert [a.content[0].text for a in many] == [  # type: ignore[union-attr]
        f'{{"i": {i}}}' for i in range(16)
    ]


@pytest.mark.parametrize(("mode", "version"), MODES.items())
async def test_over_http(mode: str, version: str) -> None:
    async with over_http(mode) as (client, rig):
        await converse(client, version)
        assert len(rig.listener.sessions()) == (1 if mode == "legacy" else 0)
    assert rig.listener.sessions() == []


@pytest.mark.parametrize(("mode", "version"), MODES.items())
async def test_over_stdio(mode: str, version: str) -> None:
    async with over_stdio(mode) as client:
        await converse(client, version)


async def test_list_changes_reach_a_legacy_client() -> None:
    seen: list[str] = []

    async def handle(message: Any) -> None:
        seen.append(type(message).__name__)

    async with over_http("legacy", message_handler=handle) as (_, rig):
        await until(lambda: next(iter(rig.listener._state.sessions))._streams)
        for _ in range(5):
            rig.gateway.tell(TOOLS_CHANGED)
        await until(lambda: seen)
        await asyncio.sleep(0.1)
        assert seen == ["ToolListChangedNotification"]


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_modern_client_listens(transport: str) -> None:
    if transport == "stdio":
        async with over_stdio("2026-07-28") as client, client.listen(tools_list_changed=True):
            await client.call_tool("echo", {})
        return
    async with over_http("2026-07-28") as (client, rig):
        async with client.listen(tools_list_changed=True) as subscription:
            rig.gateway.tell(TOOLS_CHANGED)
            async with asyncio.timeout(30):
                event = await anext(aiter(subscription))
            assert type(event).__name__ == "ToolsListChanged"
            assert (await client.call_tool("echo", {})).content
        await until(lambda: not rig.gateway.listeners)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_giving_up_reaches_the_gateway(mode: str) -> None:
    async with over_http(mode) as (client, rig):
        rig.gateway.release.clear()
        waiting = asyncio.create_task(client.call_tool("wait", {}))
        await rig.gateway.started.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: rig.gateway.cancelled == ["wait"], 30)
        rig.gateway.release.set()
        assert (await client.call_tool("echo", {})).content
