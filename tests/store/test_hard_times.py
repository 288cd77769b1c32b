"""kill -9, full disks, locks, other processes, files that vanish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.ports.store import StoreError
from sidecar.store import sqlite, sqlite_file
from sidecar.store.sqlite import SqliteStore

WRITER = """
import asyncio, os, pathlib, sys
from sidecar.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(pathlib.Path(sys.argv[1]))
    await store.open()
    async def write(lane):
        for i in range(100_000):
            key = f"{sys.argv[2]}/{lane}/{i}"
            record = await store.put(key, b"x" * 700, expires=None if i % 2 else 4e9)
            os.write(1, f"{key} {record.version}\\n".encode())
    await asyncio.gather(*(write(lane) for lane in range(4)))

asyncio.run(main())
"""


def write_and_kill(path: Path, attempt: int) -> dict[str, int]:
    """The version of each key that a writer acknowledged before it was killed."""
    command = [sys.executable, "-c", WRITER, str(path), str(attempt)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(random.uniform(0.0, 0.15))
        writer.kill()
        lines += writer.stdout.read().splitlines()
    words = [line.decode().split() for line in lines]
    return {key: int(version) for key, version in words}


async def test_every_acknowledged_write_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    acknowledged: dict[str, int] = {}
    for attempt in range(8):
        acknowledged |= await asyncio.to_thread(write_and_kill, path, attempt)
    assert len(acknowledged) > 100
    store = SqliteStore(path)
    await store.open()
    found = {record.key: record for record in await store.list("")}
    missing = acknowledged.keys() - found.keys()
    assert missing == set()
    assert {key: found[key].version for key in acknowledged} == acknowledged
    assert all(record.value == b"x" * 700 for record in found.values())
    assert len({record.version for record in found.values()}) == len(found)
    assert (await store.put("after", b"")).version > max(acknowledged.values())
    await store.close()


# ------------------------------------------------------------------------------- full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "s.db")
    await store.open()
    kept = {}
    with pytest.raises(StoreError, match="disk is full"):
        for i in range(1000):
            kept[f"a/{i}"] = (await store.put(f"a/{i}", os.urandom(5000))).value
    assert len(kept) > 20
    # One that fits goes through although one beside it does not.
    outcomes = await asyncio.gather(
        store.put("huge", bytes(2 << 20)), store.get("a/0"), return_exceptions=True
    )
    assert isinstance(outcomes[0], StoreError)
    assert outcomes[1].value == kept["a/0"]  # type: ignore[union-attr]
    assert {r.key: r.value for r in await store.list("a/")} == kept
    # Room is made: the same store works again, nothing is damaged.
    remount = ["mount", "-o", "remount,size=8m", str(small_disk)]
    await asyncio.to_thread(subprocess.run, remount, check=True)
    kept["a/again"] = (await store.put("a/again", os.urandom(5000))).value
    await store.close()
    again = SqliteStore(small_disk / "s.db")
    await again.open()  # looks through the whole file
    assert {r.key: r.value for r in await again.list("a/")} == kept
    await again.close()


async def test_a_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb") as file:
        file.write(bytes(2 << 20))
    with pytest.raises(StoreError, match="disk is full"):
        await SqliteStore(small_disk / "s.db").open()
    (small_disk / "filler").unlink()
    store = SqliteStore(small_disk / "s.db")
    await store.open()
    await store.put("a", b"1")
    await store.close()


def test_a_file_size_limit(tmp_path: Path) -> None:
    """Also where nothing may be mounted: the process may not write beyond 200 KB."""
    code = """
import asyncio, os, pathlib, resource, sys
from sidecar.ports.store import StoreError
from sidecar.store.sqlite import SqliteStore

async def main():
    path = pathlib.Path(sys.argv[1])
    store = SqliteStore(path)
    await store.open()
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    kept = {}
    try:
        for i in range(1000):
            kept[f"a/{i}"] = (await store.put(f"a/{i}", os.urandom(5000))).value
    except StoreError as error:
        assert "refused" in str(error) or "full" in str(error), error
    else:
        raise SystemExit("never refused")
    assert {r.key: r.value for r in await store.list("")} == kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    kept["b"] = (await store.put("b", os.urandom(5000))).value
    await store.close()
    again = SqliteStore(path)
    await again.open()
    assert {r.key: r.value for r in await again.list("")} == kept
    print("fine", len(kept) > 5)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s.db")],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.stdout, done.stderr) == ("fine True\n", "")


# ------------------------------------------------------------------------ other processes


async def test_several_processes_count_together(tmp_path: Path) -> None:
    code = """
import asyncio, pathlib, sys
from sidecar.ports.store import Conflict
from sidecar.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(pathlib.Path(sys.argv[1]))
    await store.open()
    done = 0
    while done < 40:
        found = await store.get("n")
        try:
            await store.put("n", b"%d" % (int(found.value) + 1 if found else 1),
                            expected=found.version if found else 0)
            done += 1
        except Conflict:
            pass
    await store.close()

asyncio.run(main())
"""
    path = tmp_path / "s.db"
    command = [sys.executable, "-c", code, str(path)]
    done = await asyncio.gather(
        *(
            asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, timeout=50)
            for _ in range(3)
        )
    )
    assert [each.stderr for each in done] == [b""] * 3
    store = SqliteStore(path)
    await store.open()
    found = await store.get("n")
    assert found is not None
    assert found.value == b"120"
    await store.close()


async def test_several_processes_open_and_close_at_once(tmp_path: Path) -> None:
    """Creating the file, switching it to its log and removing the log are moments of their own."""
    code = """
import asyncio, pathlib, sys
from sidecar.store.sqlite import SqliteStore

async def main():
    for i in range(5):
        store = SqliteStore(pathlib.Path(sys.argv[1]))
        await store.open()
        await store.put(f"{sys.argv[2]}/{i}", b"x")
        await store.close()

asyncio.run(main())
"""
    for attempt in range(3):
        path = tmp_path / f"{attempt}.db"
        done = await asyncio.gather(
            *(
                asyncio.to_thread(
                    subprocess.run,
                    [sys.executable, "-c", code, str(path), str(i)],
                    check=False,
                    capture_output=True,
                    timeout=50,
                )
                for i in range(5)
            )
        )
        assert [each.stderr for each in done] == [b""] * 5
        store = SqliteStore(path)
        await store.open()
        assert len(await store.list("")) == 25
        await store.close()


async def test_a_lock_that_is_held_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.5)
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    await store.open()
    await store.put("a", b"1")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writes = [asyncio.ensure_future(store.put(f"b/{i}", b"1")) for i in range(20)]
        started = time.monotonic()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert 0.5 <= time.monotonic() - started < 8  # not once for each of them
        assert all("locked" in str(outcome) for outcome in outcomes)
        assert len(await store.list("")) == 1
        waiting = asyncio.ensure_future(store.put("a", b"2"))
        await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        assert (await waiting).value == b"2"
    await store.close()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_vanishes_is_told(tmp_path: Path, how: str) -> None:
    path = tmp_path / "s.db"
    store = SqliteStore(path)
    await store.open()
    await store.put("a", b"1")
    moved = tmp_path / "moved"
    path.rename(moved)
    if how == "replaced":
        path.write_bytes(b"")
    with pytest.raises(StoreError, match="moved or deleted"):
        await store.put("a", b"2")
    if how == "replaced":
        path.unlink()
    moved.rename(path)
    assert (await store.put("a", b"3")).value == b"3"
    await store.close()


# ---------------------------------------------------------------------------- own trouble


async def test_a_hanging_disk_does_not_fill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_WAITING", 10)
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    outcomes = await asyncio.gather(
        *(store.put(f"a/{i}", b"1") for i in range(30)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    assert len(refused) == 20
    assert "wait for the disk" in str(refused[0])
    assert len(await store.list("")) == 10
    await store.close()


async def test_a_cancelled_open_leaves_no_thread(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    opening = asyncio.ensure_future(store.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await store.close()
    assert store._thread is not None
    store._thread.join(5)
    assert not store._thread.is_alive()


async def test_opening_again_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.mkdir()
    store = SqliteStore(path)
    with pytest.raises(StoreError):
        await store.open()
    path.rmdir()
    await store.open()
    await store.put("a", b"1")
    await store.close()


def test_a_loop_that_ends_without_closing_does_not_hang(tmp_path: Path) -> None:
    code = """
import asyncio, pathlib, sys
from sidecar.store.sqlite import SqliteStore
async def main():
    store = SqliteStore(pathlib.Path(sys.argv[1]))
    await store.open()
    await store.put("a", b"1")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s.db")],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")


async def test_many_keys_that_nobody_reads_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.store import open_store, watching

    monkeypatch.setattr(watching, "WAITING_LIMIT", 5)
    store = open_store("memory")
    await store.open()
    watch = store.watch("")
    for i in range(6):
        await store.put(f"a/{i}", b"")
    with pytest.raises(StoreError, match="behind"):
        await anext(watch)
    await store.close()


async def test_a_dropped_watch_is_forgotten(tmp_path: Path) -> None:
    import gc

    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    watch = store.watch("")
    assert len(store._hub) == 1
    del watch
    gc.collect()
    assert len(store._hub) == 0
    await store.close()


def test_signal_is_not_what_a_size_limit_gives() -> None:
    """Python ignores SIGXFSZ, which the tests above rely on."""
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
