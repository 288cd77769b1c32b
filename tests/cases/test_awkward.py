"""The awkward server does what the cases rely on, asked without a sidecar in between."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.stdio import ROOT, Child
from tests.kit.client import Legacy, Modern, RpcFailed, eventually


async def test_both_eras_list_call_and_report(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern]
) -> None:
    async with serving(Behaviour(name="one")) as upstream:
        client = client_of(http, upstream.url)
        assert (await client.open())["capabilities"]["tools"] == {"listChanged": True}
        assert "echo" in await client.names()
        assert await client.text("echo", message="hi") == "hi"
        assert await client.text("whoami") == "one:whoami"
        with pytest.raises(RpcFailed) as failed:
            await client.call("fail_rpc")
        assert failed.value.error["data"] == {"why": "because"}


async def test_progress_comes_while_the_call_runs(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern]
) -> None:
    async with serving() as upstream:
        client = client_of(http, upstream.url)
        await client.open()
        params = {"name": "progress", "arguments": {}, "_meta": {"progressToken": "t"}}
        answer = await client.exchange("tools/call", params)
        assert [m["params"]["progress"] for m in answer.notifications] == [1, 2, 3]
        assert answer.at[-1] - answer.at[0] > 0.1


async def test_announcements_reach_listeners_of_both_eras(http: aiohttp.ClientSession) -> None:
    async with serving() as upstream:
        old, new = Legacy(http, upstream.url), Modern(http, upstream.url)
        await old.open()
        async with old.listening() as first, new.listening() as second:
            await eventually(lambda: len(upstream.server.listeners) == 2)
            await new.call("change", name="more")
            await eventually(lambda: first and second)
        assert first[0]["method"] == second[0]["method"] == "notifications/tools/list_changed"


async def test_a_forgotten_session_is_refused(http: aiohttp.ClientSession) -> None:
    async with serving() as upstream:
        client = Legacy(http, upstream.url)
        await client.open()
        upstream.forget_sessions()
        assert (await client.exchange("tools/list")).status == 404


async def test_a_closed_post_cancels_in_the_modern_era_only(http: aiohttp.ClientSession) -> None:
    async with serving() as upstream:
        old, new = Legacy(http, upstream.url), Modern(http, upstream.url)
        await old.open()
        for client in (old, new):
            task = asyncio.create_task(client.call("slow", seconds=5))
            await eventually(lambda: upstream.server.running)
            task.cancel()
            if client is old:
                await eventually(lambda: upstream.closed)
                assert not upstream.server.cancelled
                await client.notify("notifications/cancelled", {"requestId": upstream.closed[0]})
            await eventually(lambda: upstream.server.cancelled)
            assert upstream.server.running == 0
            upstream.server.cancelled.clear()


async def test_stdio_answers_and_records(tmp_path: Path) -> None:
    child = Child(Behaviour(name="piped"), tmp_path / "record")
    process = await asyncio.create_subprocess_exec(
        *child.config()["command"], cwd=ROOT, stdin=-1, stdout=-1, stderr=sys.stderr
    )
    assert process.stdin and process.stdout
    for number, (method, params) in enumerate(
        [("initialize", {"protocolVersion": "2025-11-25"}), ("tools/call", {"name": "whoami"})]
    ):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        assert answer["id"] == number
    assert answer["result"]["content"][0]["text"] == "piped:whoami"
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert child.started() == [process.pid]
    assert [m["method"] for m in child.got()] == ["initialize", "tools/call"]
