"""C23: a server that forgets its sessions, or dies, costs as little as it can."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.stdio import Child
from tests.cases.behind import Stage, behind, stage
from tests.kit import processes
from tests.kit.client import Legacy, Modern, RpcFailed, eventually

LOST: list[Any] = ["404", "404-json", "400", "-32001"]


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Stage]:
    """A stateful server for each way of forgetting, shared and not."""
    behaviours = {}
    options = {}
    for number, lost in enumerate(LOST):
        for isolation in ("shared", "session"):
            name = f"{isolation}{number}"
            behaviours[name] = Behaviour(eras=("legacy",), lost=lost)
            options[name] = {"isolation": isolation}
    with stage(behaviours, options) as made:
        yield made


@pytest.mark.parametrize("number", range(len(LOST)), ids=LOST)
async def test_a_forgotten_session_is_opened_again_once(
    http: aiohttp.ClientSession,
    client_of: type[Legacy] | type[Modern],
    forgetful: Stage,
    number: int,
) -> None:
    """Three callers at once share one ``initialize``, and each is answered."""
    name = f"shared{number}"
    upstream = forgetful.upstreams[name]
    client = client_of(http, forgetful.sidecar.mcp)
    await client.open()
    first = int(await client.text(f"{name}__count"))
    upstream.forget_sessions()
    upstream.server.counters.clear()
    forgetful.clear()
    # `count` is neither read-only nor idempotent: it surely did not run, so it may be sent.
    answers = await asyncio.gather(*(client.text(f"{name}__count") for _ in range(3)))
    assert first >= 1
    assert sorted(answers) == ["1", "2", "3"]
    assert len(upstream.server.of("initialize")) == 1


@pytest.mark.parametrize("number", range(len(LOST)), ids=LOST)
async def test_each_session_of_a_stateful_server_comes_back(
    http: aiohttp.ClientSession, forgetful: Stage, number: int
) -> None:
    name = f"session{number}"
    clients = [Legacy(http, forgetful.sidecar.mcp) for _ in range(2)]
    for client in clients:
        await client.open()
        assert await client.text(f"{name}__count") == "1"
    for _ in range(2):
        forgetful.upstreams[name].forget_sessions()
        for client in clients:
            # Its own new session: the count begins anew, and nobody shares it.
            assert [await client.text(f"{name}__count") for _ in range(2)] == ["1", "2"]


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_a_call_that_may_have_run_is_not_sent_again(
    http: aiohttp.ClientSession,
    client_of: type[Legacy] | type[Modern],
    tmp_path: Path,
    way: str,
) -> None:
    """``die`` writes: its caller is told that it may have run, and it ran once."""
    child = Child(Behaviour(), tmp_path / "record")
    async with serving() as upstream, behind({"up": upstream if way == "http" else child}) as car:
        client = client_of(http, car.mcp)
        await client.open()
        await client.until_listed("up__die")
        with pytest.raises(RpcFailed) as failed:
            await client.call("up__die")
        assert failed.value.code == -32603
        data = failed.value.error["data"]
        assert (data["server"], data["ran"]) == ("up", "maybe")
        if way == "http":
            assert len(upstream.server.calls("die")) == 1
        else:
            sent = [m for m in child.got("tools/call") if m["params"]["name"] == "die"]
            assert len(sent) == 1


@pytest.mark.parametrize("hint", ["readOnlyHint", "idempotentHint"])
@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_a_call_that_may_run_twice_is_sent_again(
    http: aiohttp.ClientSession, tmp_path: Path, way: str, hint: str
) -> None:
    behaviour = Behaviour(annotate={"die": {hint: True}})
    child = Child(behaviour, tmp_path / "record")
    async with (
        serving(behaviour) as upstream,
        behind({"up": upstream if way == "http" else child}) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__die")
        assert await client.text("up__die", once=str(tmp_path / "died")) == "survived"


async def test_tries_are_bounded(http: aiohttp.ClientSession) -> None:
    behaviour = Behaviour(annotate={"die": {"readOnlyHint": True}})
    async with (
        serving(behaviour) as upstream,
        behind({"up": upstream}, retry={"attempts": 3, "base": "10ms"}) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__die")
        with pytest.raises(RpcFailed) as failed:
            await client.call("up__die")
        assert failed.value.error["data"]["reason"] == "unavailable"
        assert len(upstream.server.calls("die")) == 3


async def test_a_process_that_died_between_calls_is_started_again(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], tmp_path: Path
) -> None:
    child = Child(Behaviour(), tmp_path / "record")
    async with behind({"up": child}) as sidecar:
        client = client_of(http, sidecar.mcp)
        await client.open()
        first = await client.text("up__pid")
        await client.text("up__stop")
        assert await asyncio.to_thread(processes.left_of, [int(first)], 5) == []
        assert await client.until_answered("up__pid") != first
        await client.until_listed("up__echo")


async def test_a_server_killed_in_mid_call_costs_only_that_call(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Calls to others go on meanwhile, and the other calls of the dead one fail at once."""
    child = Child(Behaviour(), tmp_path / "record")
    async with serving() as fine, behind({"up": child, "fine": fine}) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__slow", "fine__slow")
        doomed = asyncio.create_task(client.call("up__hang"))
        others = [asyncio.create_task(client.call("fine__slow", seconds=0.5)) for _ in range(4)]
        await eventually(lambda: fine.server.running == 4 and child.got("tools/call"))
        await client.call("up__stop")
        with pytest.raises(RpcFailed) as failed:
            await asyncio.wait_for(doomed, 30)
        assert failed.value.error["data"]["ran"] == "maybe"
        for result in await asyncio.gather(*others):
            assert result["content"][0]["text"] == "done"
        await client.until_listed("up__echo", within=30)
        assert await client.text("up__echo", message="back") == "back"


STATUSES = [500, 502, 503, 401, 403, 429, 302, 204]


@pytest.fixture(scope="module")
def failing() -> Iterator[Stage]:
    with stage({f"s{status}": Behaviour() for status in STATUSES}, retry={"attempts": 1}) as made:
        yield made


@pytest.mark.parametrize("status", STATUSES)
async def test_a_status_that_is_no_answer_is_unavailable(
    http: aiohttp.ClientSession, failing: Stage, status: int
) -> None:
    """Never an empty success, and never the body of somebody's error page."""
    name = f"s{status}"
    client = Modern(http, failing.sidecar.mcp)
    failing[name].behaviour.status = status
    with pytest.raises(RpcFailed) as failed:
        await asyncio.wait_for(client.call(f"{name}__count"), 30)
    assert failed.value.code == -32603
    assert failed.value.error["data"]["server"] == name
    assert "not today" not in str(failed.value.error)
    failing[name].behaviour.status = 0
    assert await client.until_answered(f"{name}__pid")


async def test_a_server_that_never_answers_is_given_up(http: aiohttp.ClientSession) -> None:
    async with (
        serving() as upstream,
        behind({"up": {"url": upstream.url, "timeout": "500ms"}}) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__hang")
        with pytest.raises(RpcFailed) as failed:
            await asyncio.wait_for(client.call("up__hang"), 30)
        assert failed.value.error["data"]["ran"] == "maybe"
        await eventually(lambda: upstream.server.cancelled, 30, "the server is told to stop")
