"""A sidecar in front of awkward servers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.cases.awkward.http import HttpServer
from tests.cases.awkward.stdio import Child
from tests.kit.running import Sidecar, running

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
    async with running({"servers": entries, **config}) as sidecar:
        yield sidecar


def dead_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def dead() -> dict[str, Any]:
    """A server that refuses connections."""
    return {"url": f"http://127.0.0.1:{dead_port()}/mcp"}
