"""Servers that take a connection and never answer: only so many are tried at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sidecar.model import State
from sidecar.upstream import attempts
from sidecar.upstream.attempts import Attempts
from tests.upstream.conftest import Make
from tests.upstream.kit import until


class Silent:
    """Takes connections, reads, says nothing."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while await reader.read(1 << 16):
            pass
        writer.close()

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    monkeypatch.setattr(attempts, "LEAST", 2)
    return Attempts(files=5)


def test_most_is_a_share_of_the_files() -> None:
    assert Attempts(100).most == attempts.LEAST
    assert Attempts(1024).most == 512


async def test_those_that_hang_are_tried_a_few_at_a_time(
    make: Make, two: Attempts, caplog: pytest.LogCaptureFixture
) -> None:
    silent = Silent()
    server = await asyncio.start_server(silent.taken, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        made = [make(url, name=f"s{n}", attempts=two, era="legacy") for n in range(4)]
        await until(lambda: len(silent.writers) == 2, within=30)
        await asyncio.sleep(0.2)
        assert len(silent.writers) == 2
        silent.hang_up()
        await until(lambda: len(silent.writers) == 2, within=30)
        states = [each.status.state for each in made]
        assert states.count(State.BACKOFF) == 2, states
        told = [r.getMessage() for r in caplog.records if "wait for a turn" in r.getMessage()]
        assert len(told) == 1
        assert "only 5 files" in told[0]
        for each in made:  # also one that still waits for its turn
            await each.close()
    finally:
        silent.hang_up()
        server.close()


async def test_one_that_was_just_there_waits_for_no_turn(
    make: Make, two: Attempts, fake: Callable[..., Any]
) -> None:
    there = await fake()
    server = make(there.url, attempts=two)
    await until(lambda: server.status.state is State.READY, within=30)
    port = there.server.port
    await there.stop()
    await until(lambda: server.status.state is not State.READY, within=30)
    again = await fake(port)
    async with AsyncExitStack() as turns:
        for _ in range(2):
            await turns.enter_async_context(two.turn())
        newcomer = make(again.url, name="new", attempts=two)
        await until(lambda: server.status.state is State.READY, within=30)
        assert newcomer.status.state is State.CONNECTING
    await until(lambda: newcomer.status.state is State.READY, within=30)
