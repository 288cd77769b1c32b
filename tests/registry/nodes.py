"""Real sidecars on one store."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from sidecar.admin import AdminClient
from tests.kit.client import Legacy, RpcFailed
from tests.kit.running import Sidecar
from tests.registry.lab import lab

SOON = 30.0
"""Seconds in which the other node follows: three times what is promised, since tests share their
machine with others. docs/performance.md tells what it takes."""


class Node:
    """One sidecar, its admin client and a session of an agent."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.sidecar = Sidecar(config)
        self._http: aiohttp.ClientSession | None = None
        self.client: Legacy

    async def start(self) -> None:
        await asyncio.to_thread(self.sidecar.start)
        await self.close()
        self._http = aiohttp.ClientSession()
        self.client = Legacy(self._http, self.sidecar.mcp)
        await self.client.open()

    async def kill(self) -> None:
        await asyncio.to_thread(self.sidecar.kill)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def ask(self, what: str, *arguments: Any, **options: Any) -> Any:
        admin = AdminClient(self.sidecar.admin)
        return await asyncio.to_thread(getattr(admin, what), *arguments, **options)

    async def names(self) -> list[str]:
        return [each["name"] for each in await self.ask("servers")]

    async def calls_within(self, tool: str, seconds: float) -> float:
        """Call until it answers; how long that took."""
        began = time.monotonic()
        while True:
            try:
                result = await self.client.call(tool, message="hello")
                if not result.get("isError"):
                    assert result["content"][0]["text"] == "hello"
                    return time.monotonic() - began
                # A tool that was never pinned is denied while the store is lost.
                denied = result["_meta"]["sidecar/denied"]
                assert denied["rule"] == "store/unavailable", result
                assert time.monotonic() - began < seconds, result
            except RpcFailed as failed:
                took = time.monotonic() - began
                assert took < seconds, f"{tool} after {took:.1f} s: {failed}"
            await asyncio.sleep(0.02)

    async def unknown_within(self, tool: str, seconds: float) -> None:
        began = time.monotonic()
        while True:
            with contextlib.suppress(RpcFailed):
                await self.client.call(tool, message="x")
                assert time.monotonic() - began < seconds, f"{tool} still answers"
                await asyncio.sleep(0.02)
                continue
            return


@contextlib.asynccontextmanager
async def two(
    store: str, folder: Path, *, other_store: str | None = None, **more: Any
) -> AsyncIterator[tuple[Node, Node]]:
    """``other_store`` is another way to the same one, for the second node."""
    config = lab(folder, store=store, reconcile="off", **more)
    nodes = (Node(config), Node({**config, "store": other_store or store}))
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
        for node in nodes:
            if node.sidecar.running:
                assert await asyncio.to_thread(node.sidecar.stop) == 0
    except BaseException:
        for node in nodes:
            print(node.sidecar.log())
        raise
    finally:
        for node in nodes:
            await node.close()
            await node.kill()


def place() -> str:
    return f"t{uuid.uuid4().hex[:12]}"
