"""C22: sessions, processes and memory are given back, whatever ended them."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.stdio import Child
from tests.cases.behind import behind, entry
from tests.kit import processes
from tests.kit.client import Legacy, Modern, eventually
from tests.kit.running import Sidecar

KIB = 1024
SESSIONS = 100


async def many_sessions(http: aiohttp.ClientSession, url: str, count: int) -> list[Legacy]:
    """Sessions that each made one call."""
    clients = [Legacy(http, url) for _ in range(count)]
    for client in clients:
        await client.open()
        await client.text("up__count")
    return clients


async def test_ended_sessions_end_upstream_too(http: aiohttp.ClientSession) -> None:
    """A hundred with DELETE: as many of ours end, and nothing of them is kept."""
    async with (
        serving(Behaviour(eras=("legacy",))) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        for client in await many_sessions(http, sidecar.mcp, 20):
            await client.close()
        await eventually(lambda: len(upstream.ended) == 20)
        before = processes.memory([sidecar.worker])
        for client in await many_sessions(http, sidecar.mcp, SESSIONS):
            await client.close()
        await eventually(lambda: len(upstream.ended) == 20 + SESSIONS, 30)
        used = {seen.session for seen in upstream.server.calls("count")}
        assert used == set(upstream.ended)
        growth = processes.memory([sidecar.worker]) - before
        print(f"{growth / SESSIONS / KIB:.1f} KiB left by each ended session")
        assert growth < SESSIONS * 15 * KIB


async def test_abandoned_sessions_end_after_their_time(http: aiohttp.ClientSession) -> None:
    async with (
        serving(Behaviour(eras=("legacy",))) as upstream,
        behind({"up": upstream}, limits={"session_ttl": "2s"}) as sidecar,
    ):
        clients = await many_sessions(http, sidecar.mcp, SESSIONS)
        used = {seen.session for seen in upstream.server.calls("count")}
        assert len(used) == SESSIONS
        await eventually(lambda: used <= set(upstream.ended), 30)
        assert (await clients[0].exchange("tools/list")).status == 404


async def test_a_session_that_is_used_or_listens_does_not_end(
    http: aiohttp.ClientSession,
) -> None:
    async with (
        serving() as upstream,
        behind({"up": upstream}, limits={"session_ttl": "3s"}) as sidecar,
    ):
        used, listening = Legacy(http, sidecar.mcp), Legacy(http, sidecar.mcp)
        await used.open()
        await listening.open()
        async with listening.listening():
            for _ in range(12):
                await asyncio.sleep(0.3)
                assert await used.text("up__echo", message="x") == "x"
            assert await listening.text("up__echo", message="x") == "x"


async def test_sessions_are_bounded_and_the_one_longest_unused_ends(
    http: aiohttp.ClientSession,
) -> None:
    async with serving() as upstream, behind({"up": upstream}, limits={"sessions": 5}) as sidecar:
        clients = [Legacy(http, sidecar.mcp) for _ in range(8)]
        for client in clients:
            await client.open()
            assert await clients[0].text("up__echo", message="used") == "used"
        alive = [(await client.exchange("ping")).status for client in clients]
        assert alive == [200, 404, 404, 404, 200, 200, 200, 200]


async def test_processes_of_ended_sessions_end(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    child = Child(Behaviour(), tmp_path / "record")
    async with behind({"up": child.config(isolation="session")}) as sidecar:
        clients = [Legacy(http, sidecar.mcp) for _ in range(3)]
        pids = []
        for client in clients:
            await client.open()
            await client.until_listed("up__pid")
            pids.append(int(await client.text("up__pid")))
        assert len(set(pids)) == 3
        for client in clients:
            await client.close()
        left = await asyncio.to_thread(processes.left_of, pids, 10)
        assert left == []


# ---------------------------------------------------------------- processes, however it ends

STUBBORN = Behaviour(ignore_sigterm=True, ignore_eof=True)


async def breeding(http: aiohttp.ClientSession, sidecar: Sidecar) -> list[int]:
    """The stdio server, and a child of it in another session that ignores SIGTERM."""
    client = Modern(http, sidecar.mcp)
    await client.until_listed("up__breed")
    pids = [int(await client.text("up__pid")), int(await client.text("up__breed"))]
    assert all(processes.alive(pid) for pid in pids)
    return pids


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "kill supervisor", "kill worker"])
@pytest.mark.parametrize("stubborn", [False, True], ids=["polite", "stubborn"])
async def test_no_process_survives_the_sidecar(
    http: aiohttp.ClientSession, tmp_path: Path, how: str, stubborn: bool
) -> None:
    """Also not a grandchild in a session of its own that ignores SIGTERM."""
    child = Child(STUBBORN if stubborn else Behaviour(), tmp_path / "record")
    async with behind({"up": child}, drain={"grace": "2s"}) as sidecar:
        pids = await breeding(http, sidecar)
        family = {*sidecar.family, *pids}
        if how == "kill worker":
            os.kill(sidecar.worker, signal.SIGKILL)
        elif how == "kill supervisor":
            os.kill(sidecar.pid, signal.SIGKILL)
        else:
            sidecar.signal(signal.Signals[how])
        status = await asyncio.to_thread(sidecar.wait, 30)
        left = await asyncio.to_thread(processes.left_of, family, 5)
        assert [processes.command_line(pid) for pid in left] == []
        if how.startswith("SIG"):
            assert status == 0


async def test_a_removed_server_takes_its_processes_along(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    child = Child(STUBBORN, tmp_path / "record")
    async with serving() as fine, behind({"up": child, "fine": fine}) as sidecar:
        pids = await breeding(http, sidecar)
        sidecar.write({**sidecar.config, "servers": {"fine": entry(fine)}})
        left = await asyncio.to_thread(processes.left_of, pids, 15)
        assert [processes.command_line(pid) for pid in left] == []
        assert await Modern(http, sidecar.mcp).text("fine__echo", message="on") == "on"


async def test_what_a_dead_server_left_neither_holds_it_up_nor_survives_us(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A process in a session of its own holds the dead server's stdout open. The server is
    started again at once all the same; and in the end all of it is gone."""
    child = Child(Behaviour(), tmp_path / "record")
    bred = []
    async with behind({"up": child}) as sidecar:
        client = Modern(http, sidecar.mcp)
        for _ in range(3):
            bred.append(int(await client.until_answered("up__breed")))
            died = int(await client.text("up__pid"))
            await client.text("up__stop")
            assert await asyncio.to_thread(processes.left_of, [died], 5) == []
    assert await asyncio.to_thread(processes.left_of, bred, 2) == []
