"""P9b: SIGTERM lets running calls end, takes no new ones, and is over in time."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.stdio import Child
from tests.cases.behind import behind
from tests.kit.client import Answer, Client, Legacy, Modern, eventually
from tests.kit.running import Sidecar


async def readiness(http: aiohttp.ClientSession, sidecar: Sidecar) -> int:
    async with http.get(sidecar.health.removesuffix("/") + "/readyz") as response:
        return response.status


async def refused(client: Client) -> Answer | None:
    """The answer to a new call; ``None`` when not even a connection is taken."""
    params = {"name": "up__echo", "arguments": {"message": "new"}}
    try:
        return await client.exchange("tools/call", params)
    except aiohttp.ClientError:
        return None


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_a_running_call_ends_and_new_ones_are_refused(
    http: aiohttp.ClientSession,
    client_of: type[Legacy] | type[Modern],
    tmp_path: Path,
    way: str,
) -> None:
    child = Child(Behaviour(), tmp_path / "record")
    async with (
        serving() as upstream,
        behind({"up": upstream if way == "http" else child}, drain={"grace": "60s"}) as sidecar,
    ):
        assert await readiness(http, sidecar) == 200
        client = client_of(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__slow")
        call = asyncio.create_task(client.call("up__slow", seconds=3))
        await eventually(lambda: upstream.server.running or child.got("tools/call"))
        began = time.monotonic()
        sidecar.signal(signal.SIGTERM)
        while await readiness(http, sidecar) != 503:
            assert not call.done()
            await asyncio.sleep(0.05)
        answer = await refused(client)
        assert answer is None or answer.status == 503
        assert (await call)["content"][0]["text"] == "done"
        assert await asyncio.to_thread(sidecar.wait, 30) == 0
        # The call had 3 s to run; the grace is not waited out.
        assert time.monotonic() - began < 30


async def test_what_outlasts_the_grace_is_cancelled(http: aiohttp.ClientSession) -> None:
    async with serving() as upstream, behind({"up": upstream}, drain={"grace": "1s"}) as sidecar:
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__hang")
        call = asyncio.create_task(client.exchange("tools/call", {"name": "up__hang"}))
        await eventually(lambda: upstream.server.calls("hang"))
        began = time.monotonic()
        sidecar.signal(signal.SIGTERM)
        status = await asyncio.to_thread(sidecar.wait, 30)
        took = time.monotonic() - began
        print(f"ended {took:.2f} s after SIGTERM (grace 1 s)")
        assert status == 0
        assert 0.8 < took < 20
        await eventually(lambda: upstream.server.cancelled, 30)
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        if isinstance(outcome, Answer):
            assert "result" not in outcome.last


async def test_listeners_do_not_hold_it_up(http: aiohttp.ClientSession) -> None:
    """A GET stream and a listen request are open for ever; they are no calls."""
    async with (
        serving() as upstream,
        behind({"up": upstream}, drain={"grace": "60s"}) as sidecar,
    ):
        legacy, modern = Legacy(http, sidecar.mcp), Modern(http, sidecar.mcp)
        await legacy.open()
        async with legacy.listening(), modern.listening():
            began = time.monotonic()
            sidecar.signal(signal.SIGTERM)
            assert await asyncio.to_thread(sidecar.wait, 30) == 0
            assert time.monotonic() - began < 30


async def test_a_second_signal_does_not_break_it(http: aiohttp.ClientSession) -> None:
    async with serving() as upstream, behind({"up": upstream}, drain={"grace": "5s"}) as sidecar:
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__slow")
        call = asyncio.create_task(client.call("up__slow", seconds=1))
        await eventually(lambda: upstream.server.running)
        sidecar.signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        sidecar.signal(signal.SIGTERM)
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.to_thread(sidecar.wait, 30)
