"""What clients cost, and those that stop reading or never begin to speak."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from sidecar.config.types import Limits
from sidecar.downstream import connections
from tests.downstream.kit import Rig, call, initialize, request, running, until

KIB = 1024


async def _sessions(rig: Rig, number: int) -> None:
    for _ in range(number):
        reply = await rig.post(
            initialize(
                capabilities={"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}},
                clientInfo={"name": "a-client-of-usual-size", "version": "1.2.3"},
            )
        )
        session = {"Mcp-Session-Id": reply.headers["Mcp-Session-Id"]}
        await rig.post(call("echo"), headers=session)
        rig.gateway.seen.clear()


async def test_an_abandoned_session_is_small_and_leaves_nothing_behind() -> None:
    number = 300
    async with running(limits=Limits(sessions=10_000)) as rig:
        await _sessions(rig, 50)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await _sessions(rig, number)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            assert (after - before) / number <= 5 * KIB
            state = rig.listener._state
            state.sessions.reap(asyncio.get_running_loop().time() + 10_000)
            assert rig.listener.sessions() == []
            await until(lambda: len(rig.gateway.closed) == number + 50)
            assert rig.gateway.listeners == []
            rig.gateway.closed.clear()
            gc.collect()
            left, _ = tracemalloc.get_traced_memory()
            # Tables keep their capacity; what the sessions themselves took was several times that.
            assert left - before <= 128 * KIB < after - before
        finally:
            tracemalloc.stop()


async def test_sessions_end_when_their_time_is_over() -> None:
    async with running(limits=Limits(session_ttl=100.0)) as rig:
        old, busy = await rig.initialize(), await rig.initialize()
        waiting = asyncio.create_task(rig.post(call("wait"), headers=busy))
        await rig.gateway.started.wait()
        sessions = rig.listener._state.sessions
        now = asyncio.get_running_loop().time()
        sessions.reap(now + 99)
        assert len(sessions) == 2
        sessions.reap(now + 101)
        assert len(sessions) == 1
        assert (await rig.post(request("ping"), headers=old)).status == 404
        rig.gateway.release.set()
        await waiting
        # What was in use counts from when it was not any more.
        sessions.reap(asyncio.get_running_loop().time() + 99)
        assert len(sessions) == 1


async def test_the_reaper_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.downstream.http.TICK", 0.02)
    async with running(limits=Limits(session_ttl=0.05)) as rig:
        await rig.initialize()
        await until(lambda: not rig.listener.sessions(), 30)
        await until(lambda: len(rig.gateway.closed) == 1)


async def test_a_client_that_never_reads_its_answer_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "SWEEP", 0.05)
    monkeypatch.setattr(connections, "STALLED", 0.2)
    async with running() as rig:
        session = await rig.initialize()
        _, writer = await asyncio.open_connection(rig.host, rig.port, limit=KIB)
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big"}}'
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Mcp-Session-Id: {session['Mcp-Session-Id']}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        for _ in range(4):
            writer.write(head.encode() + body)
        await until(lambda: len(rig.listener._connections.connections) == 2)  # type: ignore[union-attr]
        # The other connection is the test client's, which is idle and stays.
        await until(lambda: len(rig.listener._connections.connections) == 1)  # type: ignore[union-attr]
        assert (await rig.post(request("ping"), headers=session)).status == 200
        writer.close()


async def test_a_client_that_sends_its_headers_for_ever_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "IDLE", 0.2)
    async with running() as rig:
        reader, writer = await asyncio.open_connection(rig.host, rig.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n")
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.downstream.http.SLOW_BODY", 0.2)
    async with running() as rig:
        answer = await rig.raw(
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_many_at_once() -> None:
    async with running(limits=Limits(sessions=300)) as rig:
        rig.gateway.release.set()
        sessions = await asyncio.gather(*(rig.initialize() for _ in range(100)))
        replies = await asyncio.gather(
            *(
                rig.post(call("progress", i, _meta={"progressToken": i}), headers=session)
                for i in range(5)
                for session in sessions
            )
        )
        for number, reply in enumerate(replies):
            token = number // 100
            assert [e["params"]["progressToken"] for e in reply.events[:-1]] == [token] * 3
            assert reply.events[-1]["id"] == token
        await until(lambda: len(rig.listener._state.crowd) == 0)
        assert sum(int(str(session["calls"])) for session in rig.listener.sessions()) == 0
