"""Measurements of the sidecar alone, each against a budget of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

from bench.load import CallFailed, Session, http_client
from bench.targets import Target, sidecar_of
from tests.kit import processes
from tests.kit.running import Sidecar

MIB = 1 << 20
STARTS = 5
SESSIONS = 500
SESSION_TTL = 6.0
SESSION_CYCLES = 5
LIST_ROUNDS = 50


@dataclass(frozen=True)
class Measured:
    """One figure beside its budget; ``budget`` is empty where there is none."""

    what: str
    value: str
    budget: str = ""


def rss(pid: int) -> int:
    """Resident set size of one process, in bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def family_rss(sidecar: Sidecar) -> int:
    return sum(rss(pid) for pid in sidecar.family)


async def _settled(sidecar: Sidecar, count: int) -> None:
    """Until so many tools are listed."""
    async with http_client() as http:
        session = Session(http, sidecar.mcp, "modern")
        for _ in range(600):
            with contextlib.suppress(CallFailed, aiohttp.ClientError):
                if len(await session.tools()) >= count:
                    return
            await asyncio.sleep(0.05)
    raise TimeoutError(f"{count} tools were never listed")


def start_up(direct: Target) -> Iterator[Measured]:
    """From spawn to the line that says it listens."""
    taken = []
    for _ in range(STARTS):
        with sidecar_of({"up": {"url": direct.url}}) as running:
            taken.append(running.took)
    value = f"{statistics.median(taken):.2f} s (fastest {min(taken):.2f}, of {STARTS})"
    yield Measured("start to listening", value, "0.9 s")


def parallel(direct: Target) -> Iterator[Measured]:
    """Eight calls of 300 ms in one session."""

    async def run(url: str) -> tuple[float, int]:
        async with http_client() as http:
            session = Session(http, url)
            await session.open()
            await session.call("up__echo", {"message": "warm"})
            stats = direct.url.replace("/mcp", "/stats?reset")
            async with http.get(stats):
                pass
            began = time.perf_counter()
            await asyncio.gather(*(session.call("up__sleep", {"ms": 300}) for _ in range(8)))
            took = time.perf_counter() - began
            async with http.get(stats) as response:
                return took, (await response.json())["most_at_once"]

    with sidecar_of({"up": {"url": direct.url}}) as running:
        asyncio.run(_settled(running, 3))
        took, most = asyncio.run(run(running.mcp))
    yield Measured("8 calls of 300 ms in one session", f"{took:.3f} s, {most} at once", "0.35 s, 8")


def idle(direct: Target) -> Iterator[Measured]:
    """Memory with five servers of a hundred tools."""
    base = direct.url.replace("/mcp", "/many/")
    with sidecar_of({f"s{n}": {"url": f"{base}{n}"} for n in range(5)}) as running:
        asyncio.run(_settled(running, 500))
        time.sleep(1)
        value = f"{family_rss(running) / MIB:.0f} MiB RSS"
        value += f", {processes.memory(running.family) / MIB:.0f} MiB PSS"
    yield Measured("idle, 5 HTTP servers, 500 tools, with the supervisor", value, "75 MiB RSS")


def abandoned(direct: Target) -> Iterator[Measured]:
    """Sessions that made one call and were left: what each holds until its time is over, at a
    server that all share and at one that gives each a session of its own, and what stays."""

    async def sessions(url: str, leave: bool) -> None:
        async with http_client() as http:
            for _ in range(SESSIONS):
                session = Session(http, url)
                await session.open()
                await session.call("up__echo", {"message": "x"})
                if not leave:
                    await session.close()

    limits = {"session_ttl": f"{SESSION_TTL:.0f}s", "sessions": 2 * SESSIONS}
    for isolation, of in (("shared", "a shared server"), ("session", "a stateful one")):
        up: dict[str, object] = {"url": direct.url, "isolation": isolation}
        with sidecar_of({"up": up}, limits=limits) as running:
            asyncio.run(_settled(running, 3))
            # As many that are ended first: what they leave, the interpreter keeps anyway.
            asyncio.run(sessions(running.mcp, leave=False))
            taken = [rss(running.worker)]
            for _ in range(SESSION_CYCLES):
                asyncio.run(sessions(running.mcp, leave=True))
                taken.append(rss(running.worker))
                time.sleep(SESSION_TTL * 1.5)
        held = (taken[1] - taken[0]) / SESSIONS / 1024
        # Memory that was given back is used again: once it is warm nothing more is needed.
        stays = (taken[-1] - taken[-2]) / SESSIONS / 1024
        yield Measured(f"an abandoned session at {of}, until it ends", f"{held:.1f} KiB", "5 KiB")
        yield Measured(f"what stays of one at {of}", f"{stays:.1f} KiB", "0")


def large(direct: Target) -> Iterator[Measured]:
    """A result of 50 MiB under the cap of 16."""

    async def run(running: Sidecar) -> tuple[int, str]:
        async with http_client() as http:
            session = Session(http, running.mcp)
            await session.open()
            await session.call("up__echo", {"message": "warm"})
            base = peak = rss(running.worker)
            call = asyncio.create_task(session.call("up__big", {"mib": 50}))
            while not call.done():
                peak = max(peak, rss(running.worker))
                await asyncio.sleep(0.002)
            try:
                await call
            except CallFailed as failed:
                return peak - base, "refused" if "limits." in str(failed) else str(failed)
            return peak - base, "passed"

    with sidecar_of({"up": {"url": direct.url}}) as running:
        asyncio.run(_settled(running, 3))
        growth, outcome = asyncio.run(run(running))
    yield Measured("a result of 50 MiB", f"{outcome}, RSS +{growth / MIB:.0f} MiB", "+32 MiB")


def many_tools(direct: Target) -> Iterator[Measured]:
    """Five thousand tools over fifty servers."""

    async def pages(url: str) -> tuple[float, float, int]:
        async with http_client() as http:
            session = Session(http, url, "modern")
            taken, all_taken, count = [], [], 0
            cursor: str | None
            for _ in range(LIST_ROUNDS):
                count, cursor, whole = 0, None, time.perf_counter()
                while True:
                    params: dict[str, str] = {} if cursor is None else {"cursor": cursor}
                    began = time.perf_counter()
                    page = await session.request("tools/list", params)
                    taken.append(time.perf_counter() - began)
                    count += 1
                    cursor = page.get("nextCursor")
                    if cursor is None:
                        break
                all_taken.append(time.perf_counter() - whole)
            return statistics.median(taken), statistics.median(all_taken), count

    base = direct.url.replace("/mcp", "/many/")
    servers: dict[str, dict[str, object]] = {f"s{n}": {"url": f"{base}{n}"} for n in range(50)}
    with sidecar_of(servers) as running:
        asyncio.run(_settled(running, 5000))
        page, whole, count = asyncio.run(pages(running.mcp))
        memory = family_rss(running) / MIB
    yield Measured("a list page of 5,000 tools, 50 servers", f"{page * 1e3:.1f} ms", "20 ms")
    yield Measured("the whole list of them", f"{whole * 1e3:.0f} ms in {count} pages")
    yield Measured("memory with them", f"{memory:.0f} MiB RSS")


EXTRAS = {
    "start": start_up,
    "parallel": parallel,
    "idle": idle,
    "sessions": abandoned,
    "large": large,
    "tools": many_tools,
}
