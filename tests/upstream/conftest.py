"""Fixtures for the tests of the upstream room."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sidecar.config import Limits, ServerConfig
from sidecar.config.secrets import EnvFileSecrets
from sidecar.events import Bus
from sidecar.ports.connector import DirectConnector
from sidecar.upstream import McpServer
from sidecar.upstream.attempts import Attempts
from tests.upstream.kit import Fake, Watch


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop is what serves."""
    return {"uvloop": uvloop.new_event_loop}


HERE = Path(__file__).parent


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def watch(bus: Bus) -> Watch:
    return Watch(bus)


Make = Callable[..., McpServer]


@pytest.fixture
async def make(bus: Bus) -> AsyncIterator[Make]:
    """Makes servers that are closed at the end, and sees to it that they leave no task."""
    before = asyncio.all_tasks()
    made: list[McpServer] = []

    def make(
        url: str = "",
        *,
        command: tuple[str, ...] = (),
        limits: Limits | None = None,
        start: bool = True,
        attempts: Attempts | None = None,
        **more: Any,
    ) -> McpServer:
        transport = "stdio" if command else more.pop("transport", "http")
        config = ServerConfig(more.pop("name", "up"), transport, command=command, url=url, **more)
        server = McpServer(
            config,
            name="sc",
            bus=bus,
            limits=limits or Limits(),
            secrets=EnvFileSecrets(os.environ),
            connector=DirectConnector(),
            attempts=attempts,
        )
        made.append(server)
        if start:
            server.start()
        return server

    yield make
    await asyncio.gather(*(server.close() for server in made))
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    # Those of the scripted servers end with them.
    assert not [task for task in left if "/sidecar/upstream/" in repr(task)]


@pytest.fixture
async def fake() -> AsyncIterator[Callable[..., Any]]:
    """Makes scripted HTTP servers that are stopped at the end."""
    made: list[Fake] = []

    async def fake(port: int | None = None, **more: Any) -> Fake:
        made.append(await Fake(**more).start(port))
        return made[-1]

    yield fake
    for server in made:
        await server.stop()


@pytest.fixture
def scripted() -> Callable[..., tuple[str, ...]]:
    """The command of the scripted stdio server."""

    def scripted(*args: str) -> tuple[str, ...]:
        return (sys.executable, "-S", "-E", str(HERE / "scripted.py"), *args)

    return scripted
