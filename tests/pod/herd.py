"""What many sidecars cost one PostgreSQL: ``python -m tests.pod.herd [NODES]``.

The nodes are stores and registries in this process, the server is a real one. Prints the figures
that docs/scale.md reckons with.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.config.types import RuntimeServers, ServerConfig
from sidecar.model import ServerStatus, State
from sidecar.store.postgres import PostgresStore
from sidecar.upstream.registry import Registry, Rules
from sidecar.upstream.runtime import encode
from tests.kit.postgres import Postgres

SERVERS = 20
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Idle:
    """A server that nobody connects to."""

    def __init__(self, config: ServerConfig) -> None:
        self.name = config.name
        self.config = config
        self.status = ServerStatus(config.name, "runtime", "http", State.READY)

    def start(self) -> None: ...

    async def settled(self) -> None: ...


class Node:
    """A store and what follows it, as a sidecar has them."""

    def __init__(self, url: str) -> None:
        self.store = PostgresStore(url)
        self.attempts: list[float] = []
        self.registry = Registry(
            self.store,
            shared=True,
            rules=Rules({}, {}, RuntimeServers(check=False), "__", 60.0),
            make=Idle,  # type: ignore[arg-type]
            end=lambda server: None,
            placed=lambda: None,
        )
        feed = self.store._feed
        opened = feed._open

        async def opening() -> Any:
            self.attempts.append(time.monotonic())
            return await opened()

        feed._open = opening
        self._opened = opened

    async def open(self) -> None:
        await self.store.open()
        await self.registry.start()

    @property
    def listening(self) -> bool:
        return self.store._feed._up

    async def close(self) -> None:
        await self.registry.close()
        await self.store.close()


def backends(server: Postgres) -> int:
    return int(
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sidecar %'")
    )


def commits(server: Postgres) -> int:
    return int(server.sql("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database"))


def spent(server: Postgres) -> tuple[float, float]:
    """CPU seconds of the server so far, and MiB that are its processes' own."""
    assert server._process is not None
    top = server._process.pid
    cpu = own = 0.0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(folder.name) != top and int(fields[1]) != top:
                continue
            cpu += (int(fields[11]) + int(fields[12])) * TICK
            for line in (folder / "smaps_rollup").read_text().splitlines():
                if line.startswith(("Private_Dirty:", "Private_Clean:")):
                    own += int(line.split()[1]) / 1024
        except OSError:
            continue
    return cpu, own


async def until(true: Callable[[], bool], within: float = 120.0) -> float:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within
        await asyncio.sleep(0.005)
    return time.monotonic() - began


def busiest(moments: list[float], width: float = 1.0) -> int:
    """The most of them within so many seconds."""
    moments = sorted(moments)
    return max((sum(m <= x < m + width for x in moments) for m in moments), default=0)


async def main(count: int) -> None:
    with postgres_with(max_connections=str(count * 6 + 20)) as server:
        url = server.url()
        first = Node(url)
        await first.open()
        for number in range(SERVERS):
            await first.registry.add(f"s{number}", {"url": f"http://127.0.0.1:1/{number}"})
        nodes = [first, *(Node(url) for _ in range(count - 1))]
        began, (cpu, _) = time.monotonic(), spent(server)
        await asyncio.gather(*(node.open() for node in nodes[1:]))
        took = time.monotonic() - began
        print(
            f"start of {count - 1} at once: {took:.2f} s, "
            f"{(spent(server)[0] - cpu) / count * 1e3:.0f} ms of the server's CPU each"
        )
        await asyncio.sleep(2)
        now, (_, memory) = backends(server), spent(server)
        print(f"at rest: {now / count:.2f} connections a node, {memory / (now + 6):.1f} MiB each")
        await asyncio.gather(*(node.store.get("servers/s0") for node in nodes for _ in range(32)))
        print(f"after 32 reads at once on each: {backends(server) / count:.2f} connections a node")

        before, (cpu, _), began = commits(server), spent(server), time.monotonic()
        await asyncio.sleep(100)
        took = time.monotonic() - began
        print(
            f"idle for {took:.0f} s: {(commits(server) - before) / took / count * 60:.1f} "
            f"transactions a minute and node, "
            f"{(spent(server)[0] - cpu) / took / count * 1e6:.0f} us of CPU a second and node; "
            f"{backends(server) / count:.2f} connections a node"
        )

        puts = 200
        for what, key in (("watched", "servers/s0"), ("other", "labels/x")):
            (cpu, _), ours, began = spent(server), time.process_time(), time.monotonic()
            for number in range(puts):
                value = encode({"url": f"http://127.0.0.1:1/x{number}"}, "")
                await nodes[number % count].store.put(key, value)
            took = time.monotonic() - began
            each = (spent(server)[0] - cpu) / puts
            print(
                f"{what} key: {puts / took:.0f} puts/s by one after the other, "
                f"{each * 1e3:.2f} ms of the server's CPU a put, "
                f"{each / count * 1e6:.0f} us a put and listener; "
                f"{(time.process_time() - ours) / puts / count * 1e6:.0f} us in each sidecar"
            )

        version = (await nodes[0].store.get("servers/s0")).version  # type: ignore[union-attr]
        began = time.monotonic()
        await nodes[0].store.put("servers/s0", encode({"url": "http://127.0.0.1:1/last"}, ""))
        heard = await until(
            lambda: all(node.registry._entries["s0"].version > version for node in nodes)
        )
        print(f"a change reached all {count} after {heard:.2f} s")

        for node in nodes:
            node.attempts.clear()
        server.stop(signal.SIGQUIT)
        down = time.monotonic()
        await asyncio.sleep(20)
        tried = [moment for node in nodes for moment in node.attempts if moment > down + 10]
        print(
            f"while it is down: {len(tried) / 10 / count:.2f} attempts a second and node, "
            f"{busiest(tried)} in the busiest second"
        )
        server.start()
        back = time.monotonic()
        took = await until(lambda: all(node.listening for node in nodes))
        after = [moment for node in nodes for moment in node.attempts if moment > back - 0.2]
        print(
            f"back: all {count} listen after {took:.2f} s, "
            f"{busiest(after)} connections in the busiest second, "
            f"{busiest(after, 0.1)} in the busiest tenth"
        )
        await asyncio.gather(*(node.close() for node in nodes))


def postgres_with(**settings: str) -> Any:
    """``tests.kit.postgres.postgres``, with settings."""
    import contextlib

    @contextlib.contextmanager
    def made() -> Any:
        server = Postgres(**settings)
        try:
            server.make()
            server.start()
            yield server
        finally:
            server.remove()

    return made()


if __name__ == "__main__":
    logging.getLogger("sidecar").setLevel(logging.ERROR)
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
