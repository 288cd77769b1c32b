"""Callers at work while everything fails: each gets its own answer or an honest error."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from sidecar.model import Era, RpcError, State, Unavailable
from tests.upstream.kit import Seen, Stream, caller, plain, until

ROUNDS, CALLERS = 25, 12


async def work(server: Any, who: int, outcomes: Counter[str], *, eras: bool) -> None:
    rng = random.Random(who)
    for n in range(ROUNDS):
        era = rng.choice(list(Era)) if eras else Era.LEGACY
        mine = f"{who}/{n}"
        heard: list[Any] = []
        me = caller(f"s{who % 5}", era=era, progress=mine, notify=lambda m, p, h=heard: h.append(p))
        params = {"name": "echo", "arguments": {"message": mine}}
        task = asyncio.create_task(server.request("tools/call", params, me))
        if rng.random() < 0.15:
            await asyncio.sleep(rng.random() * 0.02)
            task.cancel()
        try:
            fields = plain(await task)
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1
        except Unavailable as error:
            outcomes[f"unavailable, ran {error.ran}"] += 1
            await asyncio.sleep(0.02)
            # Most wait until it is back, however long that takes here; some go on knocking.
            if rng.random() < 0.7:
                await until(lambda: server.status.state is State.READY)
        except RpcError as error:
            outcomes[f"error {error.code}"] += 1
        else:
            assert mine in json.dumps(fields)
            assert fields["content"][0]["text"] in (mine, json.dumps(mine))
            outcomes["answered"] += 1
        assert {params["progressToken"] for params in heard} <= {mine}


@pytest.mark.parametrize("eras", [("legacy",), ("modern",), ("legacy", "modern")])
async def test_http(make, fake, eras) -> None:
    up = await fake(eras=eras)
    rng = random.Random(7)

    async def echo(seen: Seen, stream: Stream) -> Any:
        fate = rng.random()
        message = seen.params["arguments"]["message"]
        token = seen.meta.get("progressToken")
        if fate < 0.05:
            stream.request.transport.abort()
            return web.Response()
        if fate < 0.1:
            return web.Response(status=rng.choice([500, 502, 503, 429]))
        if fate < 0.15:
            return web.Response(text="<html>", content_type="text/html")
        if fate < 0.2:
            raise RpcError(-32050, "its own")
        if fate < 0.5:
            await stream.notify("notifications/progress", {"progressToken": token, "progress": 1})
        await asyncio.sleep(rng.random() * 0.02)
        return {"content": [{"type": "text", "text": message}]}

    up.on["tools/call echo"] = echo
    server = make(up.url)
    await server.settled()
    outcomes: Counter[str] = Counter()
    working = asyncio.gather(*(work(server, who, outcomes, eras=True) for who in range(CALLERS)))
    while not working.done():
        await asyncio.sleep(0.05)
        if rng.random() < 0.3:
            up.sessions.clear()
        for stream in [*up.streams, *(stream for _, stream in up.listens)]:
            if rng.random() < 0.2:
                stream.request.transport.abort()
    await working
    assert sum(outcomes.values()) == ROUNDS * CALLERS
    assert outcomes["answered"] > ROUNDS * CALLERS / 3, outcomes
    assert outcomes["error -32050"] > 0
    assert set(outcomes) <= {
        "answered",
        "cancelled",
        "unavailable, ran no",
        "unavailable, ran maybe",
        "error -32050",
    }
    await until(lambda: up.inflight == 0)
    await server.close()
    await until(lambda: not up.streams and not up.listens)


@pytest.mark.parametrize("speaks", ["legacy", "modern"])
async def test_stdio(make, scripted, speaks) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    outcomes: Counter[str] = Counter()
    working = asyncio.gather(*(work(server, who, outcomes, eras=True) for who in range(CALLERS)))
    kills = 0
    while not working.done():
        await asyncio.sleep(0.1)
        leg = server._supervisor.leg
        if kills < 3 and leg is not None and outcomes["answered"] >= 40 * kills:
            os.kill(leg._child.pid, signal.SIGKILL)
            kills += 1
    await working
    assert sum(outcomes.values()) == ROUNDS * CALLERS
    assert outcomes["answered"] > ROUNDS * CALLERS / 3, outcomes
    assert set(outcomes) <= {
        "answered",
        "cancelled",
        "unavailable, ran no",
        "unavailable, ran maybe",
    }
