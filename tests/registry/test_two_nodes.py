"""Two real sidecars on one PostgreSQL: what one is told, the other does."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.admin import AdminError
from tests.cases.awkward.behaviour import Behaviour
from tests.cases.awkward.http import HttpServer, serving
from tests.kit.client import eventually
from tests.kit.postgres import Postgres
from tests.peers.postgres import MISSING, programs
from tests.registry.nodes import SOON, place, two

pytestmark = [
    pytest.mark.skipif(programs() is None, reason=MISSING),
    # Each starts two sidecars, some more than once, and waits for what comes back.
    pytest.mark.timeout(180),
]


@pytest.fixture
async def upstream() -> AsyncIterator[HttpServer]:
    async with serving(Behaviour(name="late")) as server:
        yield server


async def test_add_on_one_and_call_on_the_other(
    postgres: Postgres, upstream: HttpServer, tmp_path: Path
) -> None:
    async with two(postgres.schema(place()), tmp_path) as (one, other):
        assert await one.ask("add", "late", url=upstream.url) is True
        took = await other.calls_within("late__echo", SOON)
        assert took < SOON
        assert await one.names() == await other.names() == ["late"]
        # Replaced on the other, for both.
        async with serving(Behaviour(name="second")) as second:
            assert await other.ask("add", "late", url=second.url) is False
            began = time.monotonic()
            for node in (one, other):
                while "second" not in await node.client.text("late__whoami"):
                    assert time.monotonic() - began < SOON
            # Removed on the first, for both.
            await one.ask("remove", "late")
            await other.unknown_within("late__echo", SOON)
        assert await other.names() == []
        await eventually(lambda: not second.server.listeners, 30, "every leg is closed")


async def test_killing_either_loses_nothing(
    postgres: Postgres, upstream: HttpServer, tmp_path: Path
) -> None:
    async with two(postgres.schema(place()), tmp_path) as (one, other):
        await one.ask("add", "late", url=upstream.url)
        await one.kill()  # at once: the add was acknowledged, so it is there
        await other.calls_within("late__echo", SOON)
        await other.ask("add", "more", url=upstream.url)
        await other.kill()
        await one.start()
        assert await one.names() == ["late", "more"]
        await one.calls_within("more__echo", 5)
        await other.start()
        await other.ask("remove", "late")
        await one.unknown_within("late__echo", SOON)
        assert await one.names() == ["more"]


async def test_a_name_that_only_one_node_configures(
    postgres: Postgres, upstream: HttpServer, tmp_path: Path
) -> None:
    async with two(postgres.schema(place()), tmp_path) as (one, other):
        config = {**other.sidecar.config, "servers": {"late": {"url": upstream.url}}}
        other.sidecar.write(config)
        other.sidecar.signal(signal.SIGHUP)
        await eventually(lambda: "servers added: late" in other.sidecar.log(), 30)
        async with serving(Behaviour(name="shadowed")) as shadowed:
            await one.ask("add", "late", url=shadowed.url)
            await one.calls_within("late__echo", SOON)
            until = time.monotonic() + SOON
            while len(states := await other.ask("servers")) < 2:
                assert time.monotonic() < until, states
            assert [(s["source"], s["state"]) for s in states][1] == ("runtime", "shadowed")
            assert "late" in await other.client.text("late__whoami")


async def test_connections_that_are_cut_cost_a_moment(
    postgres: Postgres, upstream: HttpServer, tmp_path: Path
) -> None:
    """A failover, or a proxy that restarts: what happened meanwhile is caught up."""
    async with two(postgres.schema(place()), tmp_path) as (one, other):
        await one.ask("add", "late", url=upstream.url)
        await other.calls_within("late__echo", SOON)
        for _ in range(3):
            postgres.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'sidecar %'"
            )
            name = f"n{uuid.uuid4().hex[:6]}"
            until = time.monotonic() + 5
            while True:
                try:
                    await one.ask("add", name, url=upstream.url)
                    break
                except AdminError as error:
                    assert error.reason == "store_unavailable", error
                    assert time.monotonic() < until
                    await asyncio.sleep(0.1)
            await other.calls_within(f"{name}__echo", 5)


async def test_a_call_parked_on_one_is_approved_on_the_other(
    postgres: Postgres, upstream: HttpServer, tmp_path: Path
) -> None:
    """What waits for a person is in the store too, its arguments sealed."""
    schema = place()
    key = tmp_path / "key"
    key.write_text(base64.b64encode(os.urandom(32)).decode())
    more = {"policy": {"shipped": ["egress", "gating"]}, "store_key": {"from_file": str(key)}}
    async with two(postgres.schema(schema), tmp_path, **more) as (one, other):
        await one.ask("add", "late", url=upstream.url)
        await one.client.until_listed("late__echo")
        call = asyncio.ensure_future(one.client.call("late__echo", message="hunter2"))
        waiting: list[dict[str, Any]] = []
        until = time.monotonic() + 10
        while not waiting:
            waiting = await other.ask("calls", "waiting")
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        assert waiting[0]["tool"] == "late__echo"
        assert postgres.sql(f"SELECT count(*) FROM {schema}.sidecar_records") != "0"
        stored = postgres.sql(f"SELECT encode(value, 'escape') FROM {schema}.sidecar_records")
        assert "hunter2" not in stored
        await other.ask("answer", waiting[0]["id"], approve=True)
        result = await asyncio.wait_for(call, 30)
        assert result["content"][0]["text"] == "hunter2"
