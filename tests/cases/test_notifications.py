"""C10, C11: progress and list_changed reach those who want them, as it happens, and nobody else."""

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
from tests.kit.client import Answer, Client, Legacy, Modern, eventually

CHANGED = "notifications/tools/list_changed"


@pytest.fixture(scope="module")
def scene() -> Iterator[Stage]:
    """A server of each era."""
    with stage({era: Behaviour(name=era, eras=(era,)) for era in ("legacy", "modern")}) as made:
        yield made


@pytest.fixture
async def client(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], scene: Stage
) -> Legacy | Modern:
    """A client in each era."""
    opened = client_of(http, scene.sidecar.mcp)
    await opened.open()
    return opened


def steps(answer: Answer) -> list[tuple[Any, Any]]:
    """Token and step of each progress notification, in order."""
    told = [m for m in answer.notifications if m["method"] == "notifications/progress"]
    return [(m["params"]["progressToken"], m["params"]["progress"]) for m in told]


async def progress(
    client: Client, token: Any = None, server: str = "up", **arguments: Any
) -> Answer:
    params: dict[str, Any] = {"name": f"{server}__progress", "arguments": arguments}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return await client.exchange("tools/call", params)


# ------------------------------------------------------------------------------ C10 progress


async def at_once(client: Client, token: Any, server: str) -> Answer:
    """Three steps, not buffered: the first comes while most of the call is still to be waited for.

    Again with longer gaps where the machine is so busy that we read late.
    """
    for gap in (0.2, 0.2, 1.0, 3.0):
        answer = await progress(client, token, server, steps=3, gap=gap)
        if answer.at[-1] - answer.at[0] > 1.5 * gap:
            return answer
    raise AssertionError(f"all of it came together: {answer.at}")


@pytest.mark.parametrize("upstream_era", ["legacy", "modern"])
@pytest.mark.parametrize("token", ["tok-1", 7, 0, "", "ü\u2028", 2**53 + 1])
async def test_progress_has_the_callers_token_and_comes_at_once(
    client: Legacy | Modern, upstream_era: str, token: Any
) -> None:
    # How soon it comes says nothing more with each kind of token.
    answer = await at_once(client, token, upstream_era) if token == 7 else None
    answer = answer or await progress(client, token, upstream_era, steps=3, gap=0)
    assert steps(answer) == [(token, 1), (token, 2), (token, 3)]
    assert answer.messages[-1]["result"]["content"][0]["text"] == "token given"


@pytest.mark.parametrize("upstream_era", ["legacy", "modern"])
async def test_no_token_goes_up_when_the_caller_sent_none(
    client: Legacy | Modern, upstream_era: str
) -> None:
    answer = await progress(client, None, upstream_era, gap=0.01)
    assert answer.notifications == []
    assert answer.result["content"][0]["text"] == "token none"
    assert answer.headers["Content-Type"].startswith("application/json")


@pytest.mark.parametrize("stdio", [False, True], ids=["http", "stdio"])
async def test_equal_tokens_do_not_cross(
    http: aiohttp.ClientSession, tmp_path: Path, stdio: bool
) -> None:
    """Two clients of two eras and two calls of one client, all with one token."""
    child = Child(Behaviour(), tmp_path / "record")
    async with serving() as upstream, behind({"up": child if stdio else upstream}) as sidecar:
        clients: list[Client] = [Legacy(http, sidecar.mcp), Modern(http, sidecar.mcp)]
        await clients[0].open()  # type: ignore[attr-defined]
        await clients[0].until_listed("up__progress")
        wanted = [(clients[0], 2), (clients[1], 3), (clients[0], 4), (clients[1], 5)]
        answers = await asyncio.gather(
            *(progress(client, "same", steps=count, gap=0.05) for client, count in wanted)
        )
        for (_, count), answer in zip(wanted, answers, strict=True):
            assert steps(answer) == [("same", n) for n in range(1, count + 1)]


async def test_progress_over_stdio_comes_at_once(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], tmp_path: Path
) -> None:
    async with behind({"up": Child(Behaviour(), tmp_path / "record")}) as sidecar:
        client = client_of(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__progress")
        answer = await at_once(client, "t", "up")
        assert steps(answer) == [("t", 1), ("t", 2), ("t", 3)]


async def test_a_thousand_steps_keep_their_order(client: Legacy | Modern) -> None:
    """What a slow reader cannot take may be dropped, but never out of order nor the answer."""
    answer = await progress(client, "t", "modern", steps=1000, gap=0)
    told = [step for _, step in steps(answer)]
    assert told == sorted(told) and told[-1] == 1000
    assert answer.result["content"][0]["text"] == "token given"


# -------------------------------------------------------------------------- C11 list_changed


@pytest.mark.parametrize("upstream_era", ["legacy", "modern"])
async def test_a_burst_is_told_once_or_twice_to_each_listener(
    http: aiohttp.ClientSession, upstream_era: str
) -> None:
    async with (
        serving(Behaviour(name="up", eras=(upstream_era,), only=("change", "echo"))) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        listening, deaf = Legacy(http, sidecar.mcp), Legacy(http, sidecar.mcp)
        modern = Modern(http, sidecar.mcp)
        for session in (listening, deaf):
            await session.open()
            await session.until_listed("up__echo")
        await eventually(lambda: upstream.server.listeners, what="the leg listens")
        async with listening.listening() as first, modern.listening() as second:
            await deaf.call("up__change", name="brand_new", times=5, within=0.1)
            heard = (first, second)
            await eventually(lambda: all(CHANGED in [m["method"] for m in h] for h in heard))
            for client in (listening, deaf, modern):
                await client.until_listed("up__brand_new", within=30)
            assert await deaf.text("up__brand_new") == "up:brand_new"
            await asyncio.sleep(0.5)
            for messages in heard:
                assert 1 <= [m["method"] for m in messages].count(CHANGED) <= 2


@pytest.mark.parametrize("wanted", ["toolsListChanged", "promptsListChanged"])
async def test_a_modern_listener_hears_what_it_asked_for(
    http: aiohttp.ClientSession, wanted: str
) -> None:
    async with (
        serving(Behaviour(name="up", only=("change",))) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__change")
        await eventually(lambda: upstream.server.listeners, what="the leg listens")
        async with (
            client.listening(**{wanted: True}) as picky,
            client.listening() as every,
        ):
            await client.call("up__change", name="more")
            await eventually(lambda: every and (picky or wanted != "toolsListChanged"))
            await asyncio.sleep(0.3)
            assert [m["method"] for m in picky] == (
                [CHANGED] if wanted == "toolsListChanged" else []
            )


async def test_a_change_over_stdio_is_told(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with behind({"up": Child(Behaviour(), tmp_path / "record")}) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__change")
        async with client.listening() as heard:
            await client.call("up__change", name="more", times=5)
            await eventually(lambda: [m for m in heard if m["method"] == CHANGED])
            await client.until_listed("up__more", within=30)


async def test_a_list_in_mid_load_is_not_kept(http: aiohttp.ClientSession) -> None:
    """A change that is announced while the list is being read is not lost."""
    async with (
        serving(Behaviour(name="up", only=("echo",), list_delay=0.3)) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__echo")
        await eventually(lambda: upstream.server.listeners, what="the leg listens")
        lists = len(upstream.server.of("tools/list"))
        await upstream.server.announce(CHANGED)
        await eventually(lambda: len(upstream.server.of("tools/list")) > lists)
        await asyncio.sleep(0.35)
        lists = len(upstream.server.of("tools/list"))
        await upstream.server.announce(CHANGED)
        await eventually(lambda: len(upstream.server.of("tools/list")) > lists)
        upstream.server.behaviour.tools.append(
            {"name": "in_between", "inputSchema": {"type": "object"}}
        )
        await upstream.server.announce(CHANGED)
        await client.until_listed("up__in_between", within=30)


async def test_a_server_that_goes_and_comes_is_told(http: aiohttp.ClientSession) -> None:
    async with (
        serving(Behaviour(name="up", only=("echo",))) as upstream,
        serving(Behaviour(name="fine", only=("echo",))) as fine,
        behind({"up": upstream, "fine": fine}, list_wait="200ms") as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__echo", "fine__echo")
        async with client.listening() as heard:
            await upstream.stop()
            await eventually(lambda: heard, 30, "list_changed after the server went")
            await client.until_gone("up__echo")
            assert await client.text("fine__echo", message="on") == "on"
            heard.clear()
            await upstream.start()
            await client.until_listed("up__echo", within=30)
            await eventually(lambda: heard, 30, "list_changed after the server came back")
