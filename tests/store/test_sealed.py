"""Secrets in a store: sealed, bound to their key, rotated, refused without a key."""

from __future__ import annotations

import asyncio
import base64
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config import Config, SecretRef
from sidecar.config.secrets import EnvFileSecrets
from sidecar.ports.store import Change, Conflict, Store, StoreError
from sidecar.store import open_store
from sidecar.store.configured import configured_store
from sidecar.store.memory import MemoryStore
from sidecar.store.sealed import Seal, SealedStore
from tests.store.contract import StoreContract, take

KEY, FORMER, FOREIGN = (os.urandom(32) for _ in range(3))
ALL = ("",)


class TestSealedMemory(StoreContract):
    """Everything sealed, and the contract still holds."""

    def make(self, tmp_path: Path) -> Store:
        return SealedStore(MemoryStore(), Seal([KEY]), prefixes=ALL)


class TestSealedSqlite(StoreContract):
    shared = True
    durable = True

    def make(self, tmp_path: Path) -> Store:
        return SealedStore(open_store(f"sqlite://{tmp_path}/s.db"), Seal([KEY]), prefixes=ALL)


@pytest.fixture
async def inside() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    await store.open()
    yield store
    await store.close()


@given(st.binary(max_size=200), st.text(max_size=20))
def test_what_was_sealed_opens(value: bytes, key: str) -> None:
    key = "secrets/" + key.encode("utf-8", "replace").decode()
    seal = Seal([KEY, FORMER])
    sealed = seal.seal(key, value)
    assert seal.open(key, sealed) == value
    assert sealed != seal.seal(key, value), "no nonce is used twice"
    assert Seal([FORMER, KEY]).open(key, sealed) == value


@given(st.data())
def test_whatever_was_changed_does_not_open(data: st.DataObject) -> None:
    seal = Seal([KEY])
    sealed = bytearray(seal.seal("secrets/a", b"hunter2"))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StoreError) as caught:
        seal.open("secrets/a", bytes(sealed))
    assert "hunter2" not in str(caught.value)
    cut = data.draw(st.integers(0, len(sealed) - 1))
    with pytest.raises(StoreError):
        seal.open("secrets/a", bytes(sealed[:cut]))


async def test_only_secrets_are_sealed(inside: MemoryStore) -> None:
    store = SealedStore(inside, Seal([KEY]))
    assert (await store.put("secrets/a", b"hidden")).value == b"hidden"
    await store.put("servers/a", b"plain")
    raw = await inside.get("secrets/a")
    assert raw is not None
    assert b"hidden" not in raw.value
    assert (await inside.get("servers/a")).value == b"plain"  # type: ignore[union-attr]
    assert [record.value for record in await store.list("")] == [b"hidden", b"plain"]
    with pytest.raises(Conflict):
        await store.put("secrets/a", b"x", expected=raw.version + 1)


async def test_a_file_holds_nothing_readable(tmp_path: Path) -> None:
    store = SealedStore(open_store(f"sqlite://{tmp_path}/s.db"), Seal([KEY]))
    await store.open()
    await store.put("secrets/token", b"hunter2hunter2")
    await store.close()
    assert sqlite3.connect(tmp_path / "s.db").execute("SELECT key FROM records").fetchall()
    for file in tmp_path.iterdir():
        assert b"hunter2" not in file.read_bytes()


async def test_a_value_moved_to_another_key_does_not_open(inside: MemoryStore) -> None:
    store = SealedStore(inside, Seal([KEY]))
    await store.put("secrets/mine", b"hidden")
    moved = await inside.get("secrets/mine")
    assert moved is not None
    await inside.put("secrets/yours", moved.value)
    with pytest.raises(StoreError, match="belongs to another key"):
        await store.get("secrets/yours")
    with pytest.raises(StoreError):
        await store.list("secrets/")
    await inside.put("secrets/yours", b"never sealed")
    with pytest.raises(StoreError, match="not sealed"):
        await store.get("secrets/yours")
    assert await store.delete("secrets/yours") is True
    assert len(await store.list("secrets/")) == 1


async def test_rotation(inside: MemoryStore) -> None:
    await SealedStore(inside, Seal([FORMER])).put("secrets/a", b"1")
    both = SealedStore(inside, Seal([KEY, FORMER]))
    assert (await both.get("secrets/a")).value == b"1"  # type: ignore[union-attr]
    await both.put("secrets/b", b"2")
    after = SealedStore(inside, Seal([KEY]))
    assert (await after.get("secrets/b")).value == b"2"  # type: ignore[union-attr]
    with pytest.raises(StoreError, match="put the former key after"):
        await after.get("secrets/a")
    raw = await inside.get("secrets/a")
    assert raw is not None
    assert Seal([FORMER]).current(raw.value)
    assert not Seal([KEY, FORMER]).current(raw.value)


async def test_without_a_key_there_are_no_secrets(inside: MemoryStore) -> None:
    await SealedStore(inside, Seal([KEY])).put("secrets/a", b"1")
    store = SealedStore(inside, None)
    assert not store.sealing
    for refused in (store.get("secrets/a"), store.put("secrets/b", b"2"), store.list("")):
        with pytest.raises(StoreError, match="store_key"):
            await refused
    await store.put("servers/a", b"plain")
    assert [record.value for record in await store.list("servers/")] == [b"plain"]


async def test_watches_open_what_they_tell(inside: MemoryStore) -> None:
    store = SealedStore(inside, Seal([KEY]))
    secrets, plain = store.watch("secrets/"), store.watch("servers/")
    record = await store.put("secrets/a", b"hidden")
    other = await store.put("servers/a", b"plain")
    await store.delete("secrets/b")
    assert await take(secrets, 1) == [Change("secrets/a", record)]
    assert await take(plain, 1) == [Change("servers/a", other)]
    await inside.put("secrets/c", b"not sealed")
    with pytest.raises(StoreError):
        await asyncio.wait_for(anext(secrets), 30)


async def test_what_is_sealed_where_it_can_be(inside: MemoryStore) -> None:
    without = SealedStore(inside, None, also=("calls/",))
    await without.put("calls/1", b"before")
    store = SealedStore(inside, Seal([KEY]), also=("calls/",))
    await store.put("calls/2", b"hidden")
    assert [record.value for record in await store.list("calls/")] == [b"before", b"hidden"]
    raw = await inside.get("calls/2")
    assert raw is not None
    assert b"hidden" not in raw.value


@pytest.mark.parametrize("key", [FOREIGN, None], ids=["another key", "no key"])
async def test_what_another_node_sealed_differently_hides_nothing_else(
    inside: MemoryStore, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that cannot be opened is told, and changes after it are still seen."""
    other = SealedStore(inside, Seal([KEY]), also=("calls/",))
    store = SealedStore(inside, Seal([key]) if key is not None else None, also=("calls/",))
    watch = store.watch("calls/")
    await other.put("calls/1", b"hidden")
    ours = await store.put("calls/2", b"ours")
    assert await take(watch, 1) == [Change("calls/2", ours)]
    assert [record.message for record in caplog.records if "calls/1" in record.message]
    assert "store_key" in caplog.text
    assert await store.list("calls/") == [ours]
    # Asked for, it is no absent one, nor is what was sealed handed out for what it stands for.
    with pytest.raises(StoreError, match="store_key"):
        await store.get("calls/1")


# -------------------------------------------------------------- nodes whose keys are not the same


async def told(inside: MemoryStore, caplog: pytest.LogCaptureFixture, *keys: bytes) -> str:
    """What a node with these keys logs when it starts."""
    caplog.clear()
    seal = Seal(keys) if keys else None
    await SealedStore(inside, seal, noted="seal/key").open()
    return " ".join(record.getMessage() for record in caplog.records)


async def test_keys_that_differ_are_told_at_the_start(
    inside: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert await told(inside, caplog) == ""
    assert await inside.list("") == []
    assert await told(inside, caplog, FORMER) == ""
    assert await told(inside, caplog, FORMER) == ""
    # A rotation as it is meant to be is no matter.
    assert await told(inside, caplog, FORMER, KEY) == ""
    assert await told(inside, caplog, KEY, FORMER) == ""
    assert await told(inside, caplog, FORMER, KEY) == ""
    assert await told(inside, caplog, KEY, FORMER) == ""
    assert await told(inside, caplog, KEY) == ""
    # The one that did not hear of it, and whoever starts after it.
    assert "a key that is not here" in await told(inside, caplog, FORMER)
    assert "a key that is not here" in await told(inside, caplog, KEY)
    assert "this one has none" in await told(inside, caplog)
    # Changed for good: once.
    assert "a key that is not here" in await told(inside, caplog, FOREIGN)
    assert await told(inside, caplog, FOREIGN) == ""
    (note,) = await inside.list("")
    assert note.key == "seal/key"
    assert not any(key in note.value for key in (KEY, FORMER, FOREIGN))


async def test_a_note_that_is_none_is_replaced(
    inside: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    await inside.put("seal/key", b"nonsense")
    assert "a key that is not here" in await told(inside, caplog, KEY)
    assert await told(inside, caplog, KEY) == ""


async def test_a_configured_store_compares_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(
        store=f"sqlite:{tmp_path}/s.db", store_key=SecretRef(from_env="SIDECAR_TEST_KEY")
    )
    for key in (KEY, FOREIGN):
        environment = {"SIDECAR_TEST_KEY": base64.b64encode(key).decode()}
        store = configured_store(config, EnvFileSecrets(environment))
        await store.open()
        await store.close()
    assert caplog.text.count("a key that is not here") == 1
