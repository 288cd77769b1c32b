"""Start, tokens that change, drain and end."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from pathlib import Path

import aiohttp
import pytest

from sidecar.config.types import Listen
from sidecar.downstream import AgentListener, Authenticator
from sidecar.events import Bus, SessionClosed
from sidecar.model import Principal
from tests.downstream.kit import (
    BOTH,
    ScriptedGateway,
    call,
    initialize,
    modern,
    request,
    routing,
    running,
    until,
)

ALICE, BOB = Principal("alice", ("one",)), Principal("bob")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# -------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("no"), bearer(""), {"Authorization": "ta"}, {"Authorization": "Basic dGE="}],
)
async def test_without_a_good_token_nothing_is_read(headers: dict[str, str]) -> None:
    auth = Authenticator([("ta", ALICE)])
    async with running(auth=auth) as rig:
        for body in (initialize(), b"not even JSON", modern("tools/list")):
            reply = await rig.post(body, headers=headers)
            assert reply.status == 401
            challenge = reply.headers["WWW-Authenticate"]
            assert challenge == ('Bearer error="invalid_token"' if headers else "Bearer")
        for method in ("GET", "DELETE"):
            async with rig.http.request(method, f"{rig.url}/mcp", headers=headers) as answer:
                assert answer.status == 401
        assert rig.gateway.seen == []


async def test_a_revoked_token_ends_its_sessions_calls_and_streams_and_no_others() -> None:
    auth = Authenticator([("ta", ALICE), ("tb", BOB)])
    async with running(auth=auth) as rig:
        closed: list[SessionClosed] = []
        rig.bus.listen(SessionClosed, closed.append)
        alice = await rig.initialize(headers=bearer("ta"))
        bob = await rig.initialize(headers=bearer("tb"))
        calls = [
            asyncio.create_task(rig.post(call("wait"), headers=headers)) for headers in (alice, bob)
        ]
        stateless = asyncio.create_task(
            rig.modern("tools/call", {"name": "wait"}, id="m", headers=bearer("ta"))
        )
        message = modern("subscriptions/listen", {"notifications": {}}, "L")
        listening = asyncio.create_task(
            rig.post(message, headers={**routing(message), **bearer("ta")})
        )
        stream = await rig.http.get(
            f"{rig.url}/mcp", headers={**alice, "Accept": "text/event-stream"}
        )
        await until(lambda: rig.gateway.at_once == 3 and len(rig.listener._state.listens) == 1)
        auth.update([("tb", BOB)])
        ended = await asyncio.wait_for(calls[0], 30)
        assert ended.status == 401
        assert "revoked" in ended.error["message"]
        assert (await asyncio.wait_for(stateless, 30)).json["id"] == "m"
        assert (await asyncio.wait_for(listening, 30)).events[-1]["id"] == "L"
        await asyncio.wait_for(stream.content.read(), 30)
        assert rig.gateway.cancelled == ["wait", "wait"]
        assert [event.principal for event in closed] == ["alice"]
        assert [session["principal"] for session in rig.listener.sessions()] == ["bob"]
        assert (await rig.post(request("ping"), headers=alice)).status == 401
        rig.gateway.release.set()
        assert (await calls[1]).status == 200


async def test_a_principal_that_sees_other_servers_now_is_told_and_keeps_its_session() -> None:
    auth = Authenticator([("ta", ALICE)])
    async with running(auth=auth) as rig:
        session = await rig.initialize(headers=bearer("ta"))
        headers = {key.replace("-", "_"): value for key, value in session.items()}
        async with rig.tap("GET", **headers, Accept="text/event-stream") as tap:
            wider = Principal("alice", ("one", "two"))
            auth.update([("ta", wider)])
            told = {(await tap.next())["method"] for _ in range(3)}
            assert told == {
                "notifications/tools/list_changed",
                "notifications/prompts/list_changed",
                "notifications/resources/list_changed",
            }
            await rig.post(call("echo"), headers=session)
            assert rig.gateway.seen[-1][2].principal == wider
            assert [listener.caller.principal for listener in rig.gateway.listeners] == [wider]


# --------------------------------------------------------------------------------- drain


async def test_draining_lets_calls_finish_and_sends_new_ones_away() -> None:
    async with running() as rig:
        session = await rig.initialize()
        running_call = asyncio.create_task(rig.post(call("wait", 1), headers=session))
        await rig.gateway.started.wait()
        draining = asyncio.create_task(rig.listener.drain(5))
        await until(lambda: rig.listener._state.draining)
        for reply in (
            await rig.post(call("echo", 2), headers=session),
            await rig.post(initialize()),
            await rig.modern("tools/call", {"name": "echo"}),
            await rig.modern("subscriptions/listen", {"notifications": {}}),
        ):
            assert reply.status == 503
            assert int(reply.headers["Retry-After"]) > 0
            assert "shutting down" in reply.error["message"]
        async with rig.http.get(
            f"{rig.url}/mcp", headers={**session, "Accept": "text/event-stream"}
        ) as answer:
            assert answer.status == 503
        # What helps to end is still taken.
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}
        assert (await rig.post(cancelled, headers=session)).status == 202
        assert not draining.done()
        rig.gateway.release.set()
        assert (await running_call).json["result"]["content"][0]["text"] == "waited"
        await asyncio.wait_for(draining, 30)


async def test_what_outlives_the_grace_is_ended_with_an_answer() -> None:
    async with running() as rig:
        session = await rig.initialize()
        waiting = asyncio.create_task(rig.post(call("wait", 1), headers=session))
        await rig.gateway.started.wait()
        start = time.monotonic()
        await rig.listener.drain(0.2)
        assert 0.15 < time.monotonic() - start < 20
        reply = await asyncio.wait_for(waiting, 30)
        assert reply.json["id"] == 1
        assert reply.error["code"] == -32603
        assert reply.error["data"]["ran"] == "maybe"
        assert rig.gateway.cancelled == ["wait"]


async def test_streams_end_when_draining_begins() -> None:
    async with running() as rig:
        session = await rig.initialize()
        stream = await rig.http.get(
            f"{rig.url}/mcp", headers={**session, "Accept": "text/event-stream"}
        )
        await stream.content.readany()
        await rig.listener.drain(0)
        assert await asyncio.wait_for(stream.content.read(), 30) == b""


async def test_close_ends_everything_and_leaves_nothing() -> None:
    before = asyncio.all_tasks()
    gateway = ScriptedGateway()
    listener = AgentListener(gateway, Authenticator(), Bus(), name="sidecar", version="0")  # type: ignore[arg-type]
    address = await listener.start(Listen("127.0.0.1", 0))
    url = f"http://{address}/mcp"
    headers = {"Accept": BOTH}
    async with aiohttp.ClientSession() as http:
        async with http.post(url, json=initialize(), headers=headers) as answer:
            headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
        (listed,) = listener.sessions()
        waiting = asyncio.create_task(http.post(url, json=call("wait"), headers=headers))
        stream = await http.get(url, headers=headers)
        await gateway.started.wait()
        start = time.monotonic()
        await listener.close()
        await listener.close()
        assert time.monotonic() - start < 20
        assert gateway.cancelled == ["wait"]
        assert gateway.closed == [listed["id"]]
        assert gateway.listeners == []
        reply = await waiting
        assert "shutting down" in (await reply.json())["error"]["message"]
        stream.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.post(url, json=initialize(), headers=headers)
    await until(lambda: not (asyncio.all_tasks() - before))


async def test_a_hung_gateway_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.downstream.state.CLOSING", 0.1)
    async with running() as rig:

        async def hang(session: str) -> None:
            await asyncio.Event().wait()

        rig.gateway.close_session = hang  # type: ignore[method-assign]
        await rig.initialize()
        async with asyncio.timeout(30):
            await rig.listener.close()


# --------------------------------------------------------------------------------- places


async def test_an_address_that_is_taken_is_an_error() -> None:
    async with running() as rig:
        other = AgentListener(rig.gateway, Authenticator(), Bus(), name="x", version="0")  # type: ignore[arg-type]
        with pytest.raises(OSError):
            await other.start(Listen(rig.host, rig.port))
        await other.close()


async def test_ipv6_and_its_literal() -> None:
    try:
        async with (
            running(listen=Listen("::1", 0)) as rig,
            rig.http.post(
                f"http://[::1]:{rig.port}/mcp", json=initialize(), headers={"Accept": BOTH}
            ) as answer,
        ):
            assert answer.status == 200
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


async def test_on_every_address_the_literal_passes_and_names_do_not() -> None:
    async with running(listen=Listen("0.0.0.0", 0)) as rig:
        for host, status in (("127.0.0.2", 200), ("127.0.0.3", 421), ("evil.example", 421)):
            async with rig.http.post(
                f"http://127.0.0.2:{rig.port}/mcp",
                json=initialize(),
                headers={"Accept": BOTH, "Host": host},
            ) as answer:
                assert answer.status == status, host


async def test_names_that_the_operator_adds() -> None:
    async with running(hosts=["mcp.internal"]) as rig:
        reply = await rig.post(initialize(), headers={"Host": "mcp.internal:9"})
        assert reply.status == 200
        assert (await rig.post(initialize(), headers={"Host": "mcp.internal.x"})).status == 421


async def test_a_unix_socket_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    gateway = ScriptedGateway()
    listener = AgentListener(gateway, Authenticator(), Bus(), name="sidecar", version="0")  # type: ignore[arg-type]
    assert await listener.start(Listen(path=path)) == Listen(path=path)
    try:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
            for host, status in (("localhost", 200), ("evil.example", 421)):
                async with http.post(
                    "http://localhost/mcp",
                    json=initialize(),
                    headers={"Accept": BOTH, "Host": host},
                ) as answer:
                    assert answer.status == status
    finally:
        await listener.close()
    assert not path.exists()
