"""What a node leaves to others, so that a thousand of them can share a server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from sidecar.ports.store import Change, StoreError
from sidecar.store import open_store
from sidecar.store.postgres import CONNECTIONS, PostgresStore, from_url
from tests.kit.postgres import Postgres

NAME = "postgresql://host/database"


@pytest.mark.parametrize(
    ("url", "rest", "most"),
    [
        (NAME, NAME, CONNECTIONS),
        (f"{NAME}?connections=2", NAME, 2),
        (f"{NAME}?sslmode=require&connections=9&x=1", f"{NAME}?sslmode=require&x=1", 9),
        (f"{NAME}?max_connections=2", f"{NAME}?max_connections=2", CONNECTIONS),
    ],
)
def test_connections_are_in_the_url(url: str, rest: str, most: int) -> None:
    store = from_url(url)
    assert (store._url, store._connections) == (rest, most)


@pytest.mark.parametrize("number", ["0", "101", "", "-1", "2.5", "many", "\u0662"])
def test_a_number_that_is_none(number: str) -> None:
    with pytest.raises(StoreError, match="from 1 to 100"):
        from_url(f"{NAME}?connections={number}")


def test_when_the_next_look_is() -> None:
    store = PostgresStore(NAME)
    assert all(45 <= store._until_next(None) <= 60 for _ in range(50))
    # Of what others wrote, each node has a moment of its own.
    waits = [store._until_next(10.0) for _ in range(200)]
    assert 10 <= min(waits) < 11
    assert 14 < max(waits) <= 15
    assert store._until_next(-0.5) < 1  # there was more than one look removes
    # Of what we wrote, the moment itself.
    store._wrote(time.time() + 7)
    assert 6 < store._until_next(10.0) <= 7
    store._mine = [time.time() - 0.1]
    assert store._until_next(0.2) == 0.2


async def test_where_nothing_expires_nobody_looks(postgres: Postgres, tmp_path: Path) -> None:
    store = open_store(postgres.schema(f"many-{tmp_path.name}"))
    assert isinstance(store, PostgresStore)
    looks = 0
    sweep = store._sweep_once

    async def counted(connection: object) -> float | None:
        nonlocal looks
        looks += 1
        return await sweep(connection)  # type: ignore[arg-type]

    store._sweep_once = counted  # type: ignore[method-assign]
    await store.open()
    try:
        await store.put("a", b"for ever")
        await asyncio.sleep(1)
        assert looks <= 1
    finally:
        await store.close()


async def test_what_a_node_left_is_removed_by_another(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.store.postgres._SPREAD", 0.5)
    url = postgres.schema(f"many-{tmp_path.name}")
    writer, other = open_store(url), open_store(url)
    await writer.open()
    await other.open()
    try:
        watch = other.watch("a/")
        await other.list("a/")
        await writer.put("a/1", b"x", expires=time.time() + 2)
        put = await asyncio.wait_for(anext(watch), 30)
        assert put.record is not None
        await writer.close()
        gone = await asyncio.wait_for(anext(watch), 30)
        assert gone == Change("a/1", None)
    finally:
        await writer.close()
        await other.close()
