"""SIGTERM while calls run and streams are open: what is under way ends well, and in time."""

from __future__ import annotations

import asyncio
import signal
import time

import aiohttp

from tests.cases.awkward import Behaviour, serving
from tests.cases.behind import behind
from tests.kit.client import ACCEPT, Answer, Client, Legacy, Modern, eventually
from tests.pod.kit import LONG

CALLS = 200 if LONG else 40
RUN = 2.0
"""Seconds that each of them takes."""


async def ended(response: aiohttp.ClientResponse) -> float:
    """When the stream ended as streams do; raises where the connection was cut instead."""
    async for _ in response.content.iter_any():
        pass
    return time.monotonic()


async def new_call(client: Client) -> Answer | None:
    """``None``: not even a connection is taken."""
    try:
        params = {"name": "up__echo", "arguments": {"message": "new"}}
        return await client.exchange("tools/call", params)
    except aiohttp.ClientError:
        return None


async def test_drain_with_calls_in_flight_and_open_streams(http: aiohttp.ClientSession) -> None:
    grace = 60.0
    async with (
        serving(Behaviour()) as upstream,
        behind({"up": upstream}, drain={"grace": f"{grace:.0f}s"}) as sidecar,
    ):
        modern = Modern(http, sidecar.mcp)
        await modern.until_listed("up__slow")
        sessions = [Legacy(http, sidecar.mcp) for _ in range(8)]
        for session in sessions:
            await session.open()
        streams = [
            await http.get(session.url, headers={**session.headers, "Accept": ACCEPT})
            for session in sessions
        ]
        reading = [asyncio.create_task(ended(stream)) for stream in streams]
        async with modern.listening() as _, modern.listening() as _:
            calls = [
                asyncio.create_task([modern, *sessions][number % 9].text("up__slow", seconds=RUN))
                for number in range(CALLS)
            ]
            await eventually(lambda: len(upstream.server.calls("slow")) >= CALLS // 2, 60)
            began = time.monotonic()
            sidecar.signal(signal.SIGTERM)

            async def readiness() -> int | None:
                try:
                    url = sidecar.health.removesuffix("/") + "/readyz"
                    async with http.get(url) as response:
                        return response.status
                except aiohttp.ClientError:
                    return None

            while (status := await readiness()) == 200:
                assert time.monotonic() - began < 30
                await asyncio.sleep(0.02)
            assert status in (503, None)
            unready = time.monotonic() - began
            answer = await new_call(modern)
            assert answer is None or answer.status == 503
            streams_ended = max(await asyncio.gather(*reading)) - began
            texts = await asyncio.gather(*calls, return_exceptions=True)
            done = time.monotonic() - began
            assert await asyncio.to_thread(sidecar.wait, grace) == 0
            gone = time.monotonic() - began
        refused = [each for each in texts if each != "done"]
        # Those that had not begun when it was told are sent away, and say so; none is cut off.
        assert all("shutting down" in str(each) for each in refused), refused[:3]
        assert len(refused) <= CALLS // 2
        assert gone < grace
        print(
            f"{CALLS} calls of {RUN} s: not ready after {unready:.2f} s, streams ended after "
            f"{streams_ended:.2f} s, the last call after {done:.2f} s, gone after {gone:.2f} s; "
            f"{len(refused)} had not begun"
        )
        # Streams end at once, long before what runs: nobody waits for a stream.
        assert "Traceback" not in sidecar.log()


async def test_what_never_ends_is_ended_within_the_grace(http: aiohttp.ClientSession) -> None:
    """A call that hangs, a reader of the operator's events, and a proxied server's streams."""
    async with (
        serving(Behaviour()) as upstream,
        behind({"up": upstream}, drain={"grace": "2s"}) as sidecar,
    ):
        modern, legacy = Modern(http, sidecar.mcp), Legacy(http, sidecar.mcp)
        await modern.until_listed("up__hang")
        await legacy.open()
        path = sidecar.admin.removeprefix("unix:")
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as operator:
            events = await operator.get("http://localhost/v1/events")
            assert events.status == 200
            async with legacy.listening(), modern.listening():
                hang = [
                    asyncio.create_task(each.exchange("tools/call", {"name": "up__hang"}))
                    for each in (modern, legacy)
                ]
                await eventually(lambda: len(upstream.server.calls("hang")) == 2)
                began = time.monotonic()
                sidecar.signal(signal.SIGTERM)
                answers = await asyncio.gather(*hang)
                told = time.monotonic() - began
                assert await asyncio.to_thread(sidecar.wait, 60) == 0
                gone = time.monotonic() - began
        for answer in answers:
            assert "shutting down" in str(answer.last["error"])
        print(f"grace 2 s: told after {told:.2f} s, gone after {gone:.2f} s")
        assert told > 1.5
        assert gone < 50
