"""A sidecar in front of awkward servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from typing import Any

from tests.cases.awkward import Awkward, Behaviour
from tests.cases.awkward.http import HttpServer
from tests.cases.awkward.stdio import Child
from tests.kit.running import Sidecar, running, started

Server = HttpServer | Child | dict[str, Any]

# Cases are about the way of a call, so nothing stands in it: no approval, no label.
PLAIN = {"gated": False, "trusted": True}


def entry(server: Server, **more: Any) -> dict[str, Any]:
    """A server's place under ``servers:``."""
    if isinstance(server, HttpServer):
        return {**PLAIN, "url": server.url, **more}
    if isinstance(server, Child):
        return {**PLAIN, **server.config(**more)}
    return {**PLAIN, **server, **more}


@contextlib.asynccontextmanager
async def behind(servers: Mapping[str, Server], **config: Any) -> AsyncIterator[Sidecar]:
    """A sidecar with these servers; ``config`` are further top-level settings."""
    entries = {name: entry(server) for name, server in servers.items()}
    async with running({"servers": entries, **_patience(servers.values()), **config}) as sidecar:
        yield sidecar


def _patience(servers: Iterable[Server]) -> dict[str, Any]:
    """On a busy machine a server of ours is no other than a late one: the first list waits."""
    ours = all(isinstance(server, HttpServer | Child) for server in servers)
    return {"list_wait": "30s"} if ours else {}


def dead_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def dead() -> dict[str, Any]:
    """A server that refuses connections."""
    return {"url": f"http://127.0.0.1:{dead_port()}/mcp"}


class Stage:
    """A sidecar and its upstreams, shared by the tests of a module.

    The upstreams live in a thread with a loop of its own; tests read what they saw, and call
    ``clear`` first when they count.
    """

    def __init__(self, sidecar: Sidecar, upstreams: Mapping[str, HttpServer]) -> None:
        self.sidecar = sidecar
        self.upstreams = upstreams

    def __getitem__(self, name: str) -> Awkward:
        return self.upstreams[name].server

    def clear(self) -> None:
        for upstream in self.upstreams.values():
            upstream.server.seen.clear()
            upstream.server.cancelled.clear()


@contextlib.contextmanager
def stage(
    behaviours: Mapping[str, Behaviour],
    options: Mapping[str, dict[str, Any]] | None = None,
    others: Mapping[str, Server] | None = None,
    **config: Any,
) -> Iterator[Stage]:
    """One HTTP server for each behaviour, and a sidecar in front of them that is ready.

    ``options`` are further settings of some of them, ``others`` are servers beside them.
    """
    upstreams = {name: HttpServer(behaviour) for name, behaviour in behaviours.items()}
    with threaded(*upstreams.values()):
        entries = {
            name: entry(upstream, **(options or {}).get(name, {}))
            for name, upstream in upstreams.items()
        }
        entries |= {name: entry(server) for name, server in (others or {}).items()}
        waits = _patience([*upstreams.values(), *(others or {}).values()])
        with started({"servers": entries, **waits, **config}) as sidecar:
            # The first list waits for all of them.
            with urllib.request.urlopen(f"{sidecar.rest}/tools", timeout=60) as answer:
                answer.read()
            yield Stage(sidecar, upstreams)


@contextlib.contextmanager
def threaded(*servers: HttpServer) -> Iterator[None]:
    """Runs servers in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(40)

    try:
        for server in servers:
            run(server.start())
        yield
    finally:
        for server in servers:
            run(server.stop())
            server.server.end_children()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
