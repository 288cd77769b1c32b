"""C12, C15, C16, C17, C18: calls run side by side, end when they should, and do not mix."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.http import HttpServer
from tests.cases.awkward.stdio import Child
from tests.cases.behind import Stage, behind, stage, threaded
from tests.kit.client import Client, Legacy, Modern, eventually

# ------------------------------------------------------------------------- C12 parallel calls


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One server for each way of being connected."""
    old = HttpServer(Behaviour())
    child = Child(Behaviour(), tmp_path_factory.mktemp("ways") / "record")
    with (
        threaded(old),
        stage(
            {"json": Behaviour(), "sse": Behaviour(answers="sse")},
            others={"stdio": child, "old": {"url": old.sse_url, "transport": "sse"}},
        ) as made,
    ):
        yield made


@pytest.mark.parametrize("way", ["json", "sse", "stdio", "old"])
async def test_calls_of_one_session_run_side_by_side(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], ways: Stage, way: str
) -> None:
    """Eight of 300 ms: the upstream sees eight at once, and a fast one is not held up.

    They are longer on a machine that is too slow to begin eight in that time.
    """
    client = client_of(http, ways.sidecar.mcp)
    await client.open()
    await client.until_listed(f"{way}__slow", f"{way}__echo")
    for seconds in (0.3, 1.5, 6.0):
        began = time.monotonic()
        name = f"{way}__slow"
        slow = [asyncio.create_task(client.call(name, seconds=seconds)) for _ in range(8)]
        await asyncio.sleep(0.05)
        fast = time.monotonic()
        assert await client.text(f"{way}__echo", message="fast") == "fast"
        fast = time.monotonic() - fast
        held_up = any(call.done() for call in slow)
        results = await asyncio.gather(*slow)
        took = time.monotonic() - began
        print(f"8 x {seconds} s: {took:.3f} s, one fast call {fast * 1e3:.0f} ms")
        most = max(result["structuredContent"]["at_once"] for result in results)
        if most == 8 and not held_up:
            break
    assert (most, held_up) == (8, False)


# --------------------------------------------------------------------------------- C15 cancel


def legacy_upstream() -> Behaviour:
    return Behaviour(eras=("legacy",))


async def test_a_cancel_reaches_a_legacy_server_with_its_own_id(
    http: aiohttp.ClientSession,
) -> None:
    async with (
        serving(legacy_upstream()) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        params = {"name": "up__slow", "arguments": {"seconds": 60}}
        call = asyncio.create_task(client.exchange("tools/call", params, request_id="client-id"))
        await eventually(lambda: upstream.server.running)
        sent = upstream.server.calls("slow")[0]
        async with aiohttp.ClientSession() as other:
            elsewhere = Legacy(other, sidecar.mcp, client.headers)
            cancelled = time.monotonic()
            await elsewhere.notify("notifications/cancelled", {"requestId": "client-id"})
        got = await eventually(lambda: upstream.server.of("notifications/cancelled"), 30)
        took = got[0].at - cancelled
        print(f"cancel arrived after {took * 1e3:.0f} ms (budget 100)")
        assert got[0].params["requestId"] == sent.id
        assert sent.id != "client-id"
        await eventually(lambda: upstream.server.running == 0)
        # Whatever the POST gets, it is not a result.
        answer = await asyncio.wait_for(call, 30)
        assert all("result" not in message for message in answer.messages)


async def test_a_cancel_reaches_a_stdio_server(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], tmp_path: Path
) -> None:
    child = Child(Behaviour(), tmp_path / "record")
    async with behind({"up": child}) as sidecar:
        client = client_of(http, sidecar.mcp)
        await client.open()
        await client.until_listed("up__slow")
        params = {"name": "up__slow", "arguments": {"seconds": 60}}
        call = asyncio.create_task(client.exchange("tools/call", params, request_id=77))
        sent = (await eventually(lambda: child.got("tools/call"), 30))[0]
        if isinstance(client, Legacy):
            await client.notify("notifications/cancelled", {"requestId": 77})
        else:
            call.cancel()
        assert await eventually(child.cancelled, 30) == [sent["id"]]
        assert child.got("notifications/cancelled")[0]["params"]["requestId"] == sent["id"]
        await asyncio.gather(call, return_exceptions=True)
        assert await client.text("up__echo", message="on") == "on"


async def test_a_cancel_closes_the_request_to_a_modern_server(
    http: aiohttp.ClientSession,
) -> None:
    async with (
        serving(Behaviour(eras=("modern",))) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        params = {"name": "up__slow", "arguments": {"seconds": 60}}
        call = asyncio.create_task(client.exchange("tools/call", params, request_id=5))
        await eventually(lambda: upstream.server.running)
        await client.notify("notifications/cancelled", {"requestId": 5})
        await eventually(lambda: upstream.server.cancelled, 30)
        assert upstream.server.of("notifications/cancelled") == []
        await asyncio.wait_for(call, 30)


async def test_nobody_cancels_the_call_of_another(http: aiohttp.ClientSession) -> None:
    """Neither another session's equal id, nor an unknown id, nor a posted modern notification."""
    async with (
        serving(legacy_upstream()) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        mine, other = Legacy(http, sidecar.mcp), Legacy(http, sidecar.mcp)
        await mine.open()
        await other.open()
        params = {"name": "up__slow", "arguments": {"seconds": 1.0}}
        call = asyncio.create_task(mine.exchange("tools/call", params, request_id=9))
        await eventually(lambda: upstream.server.running)
        await other.notify("notifications/cancelled", {"requestId": 9})
        await mine.notify("notifications/cancelled", {"requestId": "9"})
        await mine.notify("notifications/cancelled", {"requestId": None})
        await mine.notify("notifications/cancelled", {})
        modern = Modern(http, sidecar.mcp)
        body = modern.body("notifications/cancelled", {"requestId": 9})
        await modern.send(body, modern.headers_for("notifications/cancelled", {}))
        assert (await call).result["content"][0]["text"] == "done"
        assert upstream.server.of("notifications/cancelled") == []


# ----------------------------------------------------------------------------- C16 disconnect


@pytest.fixture(scope="module")
def scene() -> Iterator[Stage]:
    """A server of each era, and stateful ones of each isolation."""
    behaviours = {era: Behaviour(eras=(era,)) for era in ("legacy", "modern")}
    options = {}
    for isolation in ("auto", "session", "shared"):
        behaviours[isolation] = legacy_upstream()
        options[isolation] = {"isolation": isolation}
    behaviours["stateless"] = Behaviour(eras=("legacy",), sessions=False)
    with stage(behaviours, options) as made:
        yield made


@pytest.mark.parametrize("upstream_era", ["legacy", "modern"])
@pytest.mark.parametrize("streaming", [False, True], ids=["waiting", "streaming"])
async def test_a_client_that_leaves_cancels_its_call(
    http: aiohttp.ClientSession,
    client_of: type[Legacy] | type[Modern],
    scene: Stage,
    upstream_era: str,
    streaming: bool,
) -> None:
    """Closing the POST, before or after its stream began, ends the upstream's work."""
    scene.clear()
    server = scene[upstream_era]
    client = client_of(http, scene.sidecar.mcp)
    await client.open()
    params: dict[str, Any] = {"name": f"{upstream_era}__slow", "arguments": {"seconds": 60}}
    if streaming:
        params["name"], params["_meta"] = f"{upstream_era}__progress", {"progressToken": "t"}
        params["arguments"] = {"steps": 600}
    heard: list[Any] = []
    call = asyncio.create_task(client.exchange("tools/call", params, heard=heard.append))
    await eventually(lambda: heard if streaming else server.running)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    left = time.monotonic()
    await eventually(lambda: server.cancelled, 30)
    took = time.monotonic() - left
    print(f"cancelled {took:.3f} s after the client left (budget 1 s)")
    await eventually(lambda: server.running == 0)
    assert await client.text(f"{upstream_era}__echo", message="on") == "on"


# ---------------------------------------------------------------------------- C17 credentials


async def test_downstream_headers_stay_downstream(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("upstream-token\n")
    authorization = {"template": "Bearer {}", "from_file": str(secret)}
    async with (
        serving() as upstream,
        behind(
            {"up": {"url": upstream.url, "headers": {"authorization": authorization}}}
        ) as sidecar,
    ):
        sent = {
            "Authorization": "Bearer downstream-token",
            "Cookie": "session=downstream",
            "X-Forwarded-For": "10.0.0.1",
            "X-Forwarded-Host": "downstream.example",
            "Forwarded": "for=10.0.0.1",
            "X-Real-IP": "10.0.0.1",
            "X-Api-Key": "downstream",
            "Proxy-Authorization": "Basic ZG93bg==",
            "X-Anything": "downstream",
            "User-Agent": "downstream/1",
        }
        client = client_of(http, sidecar.mcp, sent)
        await client.open()
        result = await client.call("up__headers")
        seen = {key.lower(): value for key, value in result["structuredContent"]["headers"].items()}
        assert seen["authorization"] == "Bearer upstream-token"
        assert [k for k, v in seen.items() if "downstream" in v.lower() or "10.0.0.1" in v] == []
        assert "cookie" not in seen and "proxy-authorization" not in seen


async def test_cookies_of_a_server_are_not_kept(http: aiohttp.ClientSession) -> None:
    """A jar would carry one caller's cookie into another's call."""
    async with serving() as upstream, behind({"up": upstream}) as sidecar:
        client = Modern(http, sidecar.mcp)
        upstream.set_cookie = "who=first"
        await client.call("up__echo")
        seen = await client.call("up__headers")
        assert "cookie" not in {key.lower() for key in seen["structuredContent"]["headers"]}


async def test_a_child_sees_no_environment_of_ours(
    http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_POD", "x")
    child = Child(Behaviour(), tmp_path / "record")
    async with behind({"up": child.config(env={"WANTED": "yes"})}) as sidecar:
        client = Modern(http, sidecar.mcp)
        await client.until_listed("up__environment")
        result = await client.call("up__environment")
        names = set(result["structuredContent"]["names"])
        assert "WANTED" in names and "PATH" in names
        # LC_CTYPE is set by Python itself, when it finds no locale.
        allowed = {"PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR", "WANTED", "LC_CTYPE"}
        assert names <= allowed


# -------------------------------------------------------------------------- C18 isolation


async def counted(order: list[Client], server: str) -> str:
    return "".join([await client.text(f"{server}__count") for client in order])


async def sessions(http: aiohttp.ClientSession, url: str) -> list[Client]:
    """The sessions of x, x, y, x."""
    x, y = Legacy(http, url), Legacy(http, url)
    await x.open()
    await y.open()
    return [x, x, y, x]


@pytest.mark.parametrize(
    "server, expected",
    [("auto", "1213"), ("session", "1213"), ("shared", "1234"), ("stateless", "1234")],
)
async def test_sessions_of_a_stateful_server(
    http: aiohttp.ClientSession, scene: Stage, server: str, expected: str
) -> None:
    assert await counted(await sessions(http, scene.sidecar.mcp), server) == expected


@pytest.mark.parametrize("isolation, expected", [("auto", "1234"), ("session", "1213")])
async def test_sessions_over_stdio(
    http: aiohttp.ClientSession, tmp_path: Path, isolation: str, expected: str
) -> None:
    """A process is shared unless it is declared to hold state of a session."""
    child = Child(Behaviour(), tmp_path / "record")
    async with behind({"up": child.config(isolation=isolation)}) as sidecar:
        await Modern(http, sidecar.mcp).until_listed("up__count")
        assert await counted(await sessions(http, sidecar.mcp), "up") == expected


async def test_the_end_of_a_session_ends_the_servers_own(http: aiohttp.ClientSession) -> None:
    async with (
        serving(legacy_upstream()) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.text("up__count")
        used = upstream.server.calls("count")[0].session
        assert await client.close() in (200, 204)
        await eventually(lambda: used in upstream.ended)
        assert (await client.exchange("tools/list")).status == 404
