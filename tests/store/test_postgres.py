"""The contract, held in PostgreSQL; and what happens between nodes, and to a lost server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sidecar.ports.store import ABSENT, Change, Conflict, Record, Store, StoreError
from sidecar.store import open_store
from sidecar.store.postgres import PostgresStore
from sidecar.store.postgres_schema import MIGRATIONS
from tests.kit.client import eventually
from tests.kit.postgres import Postgres
from tests.kit.postgres import postgres as running_postgres
from tests.peers.postgres import MISSING, programs
from tests.store.contract import StoreContract, take


def place(tmp_path: Path) -> str:
    return "t" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]


class TestPostgres(StoreContract):
    shared = True
    durable = True

    @pytest.fixture(autouse=True)
    def _server(self, postgres: Postgres) -> None:
        self.postgres = postgres

    def make(self, tmp_path: Path) -> Store:
        return open_store(self.postgres.schema(place(tmp_path)))


@pytest.fixture
def url(postgres: Postgres, tmp_path: Path) -> str:
    return postgres.schema(place(tmp_path))


@contextlib.asynccontextmanager
async def opened(*urls: str) -> AsyncIterator[list[PostgresStore]]:
    stores = [PostgresStore(each) for each in urls]
    try:
        for store in stores:
            await store.open()
        yield stores
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def until_written(store: Store, key: str, value: bytes, within: float = 40) -> Record:
    """Write again and again until the server is back."""
    end = time.monotonic() + within
    while True:
        try:
            return await store.put(key, value)
        except StoreError as error:
            assert not isinstance(error, Conflict)
            assert time.monotonic() < end, error
            await asyncio.sleep(0.05)


# -------------------------------------------------------------------------------- the schema


async def test_many_nodes_that_start_at_once_make_one_schema(url: str) -> None:
    stores = [PostgresStore(url) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.put(f"a/{i}", b"1") for i, store in enumerate(stores)))
    assert len(await stores[0].list("a/")) == 8
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_schema_migrates_forward_and_a_newer_one_is_left_as_it_is(
    postgres: Postgres, url: str, tmp_path: Path
) -> None:
    async with opened(url) as (store,):
        kept = await store.put("a", b"1")
    newer = [*MIGRATIONS, "ALTER TABLE sidecar_records ADD COLUMN note text DEFAULT 'n'"]
    store = PostgresStore(url, migrations=newer)
    await store.open()
    assert await store.get("a") == kept
    await store.close()
    old = PostgresStore(url)
    with pytest.raises(StoreError, match="schema version 2, and this sidecar knows 1 at most"):
        await old.open()
    schema = place(tmp_path)
    assert postgres.sql(f"SELECT version FROM {schema}.sidecar_schema") == "2"
    assert postgres.sql(f"SELECT key, note FROM {schema}.sidecar_records") == "a|n"


async def test_a_step_that_fails_changes_nothing(url: str) -> None:
    async with opened(url) as (store,):
        await store.put("a", b"1")
    broken = [*MIGRATIONS, "CREATE TABLE half (x int)", "SELECT no_such_thing()"]
    with pytest.raises(StoreError, match="SQLSTATE 42883"):
        await PostgresStore(url, migrations=broken).open()
    async with opened(url) as (store,):
        assert (await store.get("a")).value == b"1"  # type: ignore[union-attr]


async def test_databases_that_cannot_be_used(postgres: Postgres) -> None:
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    postgres.sql("CREATE ROLE weak LOGIN")
    weak = postgres.url().replace("sidecar@", "weak:s3cr3t@")
    for url, says in (
        (postgres.url("latin"), "encoding LATIN1"),
        (postgres.url("nowhere"), "no such database"),
        (postgres.url().replace("sidecar@", "nobody:s3cr3t@"), "user or password is wrong"),
        (weak, "CREATE on the schema"),
    ):
        with pytest.raises(StoreError, match=says) as caught:
            await PostgresStore(url).open()
        assert "s3cr3t" not in str(caught.value)
        assert "127.0.0.1" not in str(caught.value)


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.store.postgres.OPENING", 0.5)
    store = PostgresStore("postgresql://me:s3cr3t@127.0.0.1:1/db")
    with pytest.raises(StoreError, match="nobody listens there") as caught:
        await store.open()
    assert "s3cr3t" not in str(caught.value)
    await store.close()


@pytest.mark.parametrize("url", ["postgresql:x", "postgres:", "postgresql:///"])
def test_urls_that_are_none(url: str) -> None:
    if url == "postgresql:///":
        open_store(url)  # asyncpg's defaults are as good as anything
        return
    with pytest.raises(StoreError, match="postgresql://host/database"):
        open_store(url)


def test_without_the_driver_the_message_says_what_to_install() -> None:
    code = (
        "import sys, asyncio; sys.modules['asyncpg'] = None\n"
        "from sidecar.store import open_store\n"
        "store = open_store('postgresql://h/d')\n"
        "try: asyncio.run(store.open())\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.startswith("StoreError")
    assert "mcp-sidecar[postgres]" in out.stdout


# ---------------------------------------------------------------------------- between nodes


async def test_versions_grow_whoever_writes(url: str) -> None:
    async with opened(*[url] * 3) as stores:
        watch = stores[2].watch("k")

        async def write(store: Store) -> list[int]:
            versions = []
            for i in range(60):
                versions.append((await store.put("k", b"%d" % i)).version)
                if i % 7 == 0:
                    await store.delete("k")
            return versions

        written = await asyncio.gather(*(write(store) for store in stores))
        everything = [version for versions in written for version in versions]
        assert len(set(everything)) == len(everything)
        assert all(versions == sorted(versions) for versions in written)
        last = await stores[0].put("k", b"last")
        assert last.version > max(everything)
        seen = 0
        while True:
            (change,) = await take(watch, 1)
            if change.record is not None:
                assert change.record.version > seen, "never back"
                seen = change.record.version
            if seen == last.version:
                break


async def test_watches_of_all_nodes_end_with_what_is_there(url: str) -> None:
    """Random writes of two nodes on few keys: whatever was merged, the last word is the same."""
    async with opened(url, url) as stores:
        watches = [store.watch("k/") for store in stores]
        await asyncio.gather(*(store.list("k/") for store in stores))
        told: list[dict[str, int]] = [{}, {}]

        async def follow(i: int) -> None:
            async for change in watches[i]:
                if change.record is None:
                    told[i].pop(change.key, None)
                else:
                    told[i][change.key] = change.record.version

        following = [asyncio.create_task(follow(i)) for i in range(2)]

        async def write(store: Store, seed: int) -> None:
            for i in range(150):
                key = f"k/{(i * seed) % 5}"
                if (i * seed) % 4 == 0:
                    await store.delete(key)
                else:
                    await store.put(key, b"x" * (i % 50), expires=None)

        await asyncio.gather(
            *(write(store, seed) for store in stores for seed in (3, 7)),
        )
        there = {record.key: record.version for record in await stores[0].list("k/")}
        await eventually(lambda: told == [there, there], 30)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def test_one_node_expires_for_all(url: str) -> None:
    async with opened(url, url) as (one, two):
        watch = two.watch("")
        await two.list("")
        record = await one.put("a", b"1", expires=time.time() + 1.0)
        assert await take(watch, 1) == [Change("a", record)]
        assert await take(watch, 1, within=30) == [Change("a", None)]
        assert await two.get("a") is None


async def test_other_tables_channel_and_schema_do_not_disturb(
    postgres: Postgres, url: str, tmp_path: Path
) -> None:
    other = postgres.schema(place(tmp_path) + "x")
    async with opened(url, other) as (mine, theirs):
        watch = mine.watch("")
        await mine.list("")
        await theirs.put("a", b"theirs")
        for payload in ("", "x", "a:b c+d", ":1 +a", "n:1 9", "n:1 99999999999999999999+a", "\x00"):
            if "\x00" not in payload:
                postgres.sql(f"SELECT pg_notify('sidecar_1', '{payload}')")
        record = await mine.put("a", b"mine")
        assert await take(watch, 1) == [Change("a", record)]


async def test_notifications_that_are_none_of_ours_do_no_harm(
    postgres: Postgres, url: str, tmp_path: Path
) -> None:
    oid = None
    async with opened(url) as (store,):
        watch = store.watch("")
        await store.list("")
        oid = postgres.sql(f"SELECT '{place(tmp_path)}.sidecar_records'::regclass::oid")
        for payload in ("", "x", "a:b c+d", ":1 +a", "n:1 9", "n:1 9999999999999999999+a"):
            postgres.sql(f"SELECT pg_notify('sidecar_{oid}', '{payload}')")
        record = await store.put("b", b"1")
        changes = [(await take(watch, 1))[0]]
        while changes[-1].key != "b":
            changes += await take(watch, 1)
        # The one that is well formed told of a key that is not there.
        assert [change for change in changes if change.key != "b"] in ([], [Change("a", None)])
        assert changes[-1] == Change("b", record)


WRITER = """
import asyncio, os, sys
from sidecar.store import open_store

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    async def write(lane):
        for i in range(100_000):
            key = f"{sys.argv[2]}/{lane}/{i}"
            record = await store.put(key, b"x" * 700)
            os.write(1, f"{key} {record.version}\\n".encode())
    await asyncio.gather(*(write(lane) for lane in range(4)))

asyncio.run(main())
"""


async def test_every_acknowledged_write_survives_kill_9_of_the_node(url: str) -> None:
    acknowledged: dict[str, int] = {}
    for attempt in range(3):
        with subprocess.Popen(  # noqa: ASYNC220 - what it prints is read in a thread
            [sys.executable, "-c", WRITER, url, str(attempt)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            lines = [await asyncio.to_thread(writer.stdout.readline)]
            await asyncio.sleep(0.15)
            os.kill(writer.pid, signal.SIGKILL)
            lines += (await asyncio.to_thread(writer.stdout.read)).splitlines()
        words = [line.decode().split() for line in lines]
        acknowledged |= {each[0]: int(each[1]) for each in words if len(each) == 2}
    assert len(acknowledged) > 50
    async with opened(url) as (store,):
        found = {record.key: record.version for record in await store.list("")}
    assert {key: found.get(key) for key in acknowledged} == acknowledged


# ------------------------------------------------------------------------- lost, and found again


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """One that these tests stop and start; each leaves it running."""
    if programs() is None:
        pytest.skip(MISSING)
    with running_postgres() as server:
        yield server


def cut(postgres: Postgres) -> None:
    """End every connection of a store, as a failover would."""
    postgres.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'sidecar %'"
    )


async def test_what_happened_while_nobody_listened_is_told(
    mortal: Postgres, tmp_path: Path
) -> None:
    url = mortal.schema(place(tmp_path))
    async with opened(url) as (store,):
        await store.put("a/gone", b"0")
        await store.put("a/same", b"0")
        await store.put("a/changed", b"0")
        watch = store.watch("a/")
        await store.list("a/")
        await asyncio.to_thread(mortal.stop, signal.SIGQUIT)
        for refused in (store.get("a/same"), store.put("a/x", b""), store.list("")):
            with pytest.raises(StoreError):
                await refused
        await asyncio.to_thread(mortal.start)
        schema = place(tmp_path)
        # By somebody whose notifications nobody hears yet.
        mortal.sql(
            f"SET search_path = {schema}; "
            "SELECT sidecar_delete('a/gone', -1, 'n:1'); "
            "SELECT sidecar_put('a/changed', 'new', -1, NULL, 'n:2'); "
            "SELECT sidecar_put('a/new', 'new', -1, NULL, 'n:3'); "
            "SELECT sidecar_put('b/other', 'new', -1, NULL, 'n:4');"
        )
        got = {change.key: change.record for change in await take(watch, 3, within=30)}
        assert got.keys() == {"a/gone", "a/changed", "a/new"}
        assert got["a/gone"] is None
        for key in ("a/changed", "a/new"):
            record = got[key]
            assert record is not None
            assert record.value == b"new"
        # And from here on as always.
        record = await until_written(store, "a/same", b"1")
        assert await take(watch, 1) == [Change("a/same", record)]


async def test_lost_operations_fail_at_once(mortal: Postgres, tmp_path: Path) -> None:
    url = mortal.schema(place(tmp_path))
    async with opened(url) as (store,):
        await store.put("a", b"1")
        await asyncio.to_thread(mortal.stop, signal.SIGQUIT)
        began = time.monotonic()
        for _ in range(200):
            with pytest.raises(StoreError) as caught:
                await store.get("a")
            assert not isinstance(caught.value, Conflict)
        took = time.monotonic() - began
        # A watch made now begins when it can; nobody who asks meanwhile hangs on it.
        watch = store.watch("a")
        with pytest.raises(StoreError):
            await store.list("a")
        await asyncio.to_thread(mortal.start)
        record = await until_written(store, "a", b"2")
        changes = await take(watch, 1)
        assert changes == [Change("a", record)]
    assert took < 25


async def test_watches_that_were_given_up_are_forgotten(mortal: Postgres, tmp_path: Path) -> None:
    url = mortal.schema(place(tmp_path))
    async with opened(url) as (store,):
        await asyncio.to_thread(mortal.stop, signal.SIGQUIT)
        for _ in range(50):
            await store.watch("a/").aclose()
        kept = store.watch("a/")
        assert len(store._feed._joining) == 1
        await asyncio.to_thread(mortal.start)
        record = await until_written(store, "a/1", b"1")
        assert await take(kept, 1) == [Change("a/1", record)]
        assert store._feed._joining == {}


async def test_cut_connections_are_replaced(mortal: Postgres, tmp_path: Path) -> None:
    url = mortal.schema(place(tmp_path))
    async with opened(url, url) as (one, two):
        watch = two.watch("")
        await two.list("")
        for i in range(3):
            await asyncio.to_thread(cut, mortal)
            record = await until_written(one, f"k{i}", b"1")
            got = await take(watch, 1, within=30)
            assert got == [Change(f"k{i}", record)]
        # What only reads is asked again on another connection.
        await asyncio.to_thread(cut, mortal)
        await asyncio.sleep(0.3)
        await until_written(one, "x", b"1")
        assert len(await two.list("k")) == 3


async def test_a_server_that_answers_no_more(
    mortal: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen rather than gone: nothing is refused, nothing is answered."""
    monkeypatch.setattr("sidecar.store.postgres.OPERATION", 1.0)
    monkeypatch.setattr("sidecar.store.postgres_feed.ALIVE", 0.5)
    monkeypatch.setattr("sidecar.store.postgres_feed.ANSWER", 0.5)
    url = mortal.schema(place(tmp_path))
    async with opened(url) as (store,):
        watch = store.watch("")
        await store.put("a", b"1")
        await take(watch, 1)
        frozen = mortal.sql(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'sidecar %'"
        ).split()
        assert len(frozen) >= 2
        for pid in frozen:
            os.kill(int(pid), signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(StoreError, match="no answer in time"):
                await store.get("a")
            assert time.monotonic() - began < 25
            await asyncio.sleep(1.0)
        finally:
            for pid in frozen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGCONT)
        record = await until_written(store, "a", b"2")
        while (change := (await take(watch, 1, within=30))[0]).record != record:
            pass
        assert change == Change("a", record)


async def test_compare_and_set_across_a_loss_never_wins_twice(
    mortal: Postgres, tmp_path: Path
) -> None:
    """A writer that was cut off does not know whether it won; a second try tells."""
    url = mortal.schema(place(tmp_path))
    async with opened(url) as (store,):
        won = 0
        for i in range(12):
            writing = asyncio.ensure_future(store.put(f"t/{i}", b"1", expected=ABSENT))
            if i % 3 == 0:
                await asyncio.to_thread(cut, mortal)
            try:
                await writing
                won += 1
            except Conflict:
                raise AssertionError("nobody else writes") from None
            except StoreError:
                end = time.monotonic() + 10
                while True:
                    try:
                        await store.put(f"t/{i}", b"2", expected=ABSENT)
                    except Conflict:
                        break
                    except StoreError:
                        assert time.monotonic() < end
                        await asyncio.sleep(0.05)
                    else:
                        break
        records = await store.list("t/")
        assert len(records) == 12
        assert sum(record.value == b"1" for record in records) >= won


async def test_closing_while_lost_ends_in_time(mortal: Postgres, tmp_path: Path) -> None:
    store = PostgresStore(mortal.schema(place(tmp_path)))
    await store.open()
    watch = store.watch("")
    await asyncio.to_thread(mortal.stop, signal.SIGQUIT)
    began = time.monotonic()
    await store.close()
    assert time.monotonic() - began < 25
    assert [change async for change in watch] == []
    await asyncio.to_thread(mortal.start)


async def test_no_connection_is_left(mortal: Postgres, tmp_path: Path) -> None:
    url = mortal.schema(place(tmp_path))
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sidecar %'"
    async with opened(url) as (store,):
        await asyncio.gather(*(store.put(f"k{i}", b"1") for i in range(200)))
        assert 2 <= int(mortal.sql(count)) <= 9
    await eventually(lambda: mortal.sql(count) == "0", 30)
