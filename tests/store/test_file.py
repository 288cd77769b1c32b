"""The SQLite file: whose it is, who can read it, how old it is, whether it is whole."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.ports.store import StoreError
from sidecar.store import open_store
from sidecar.store.sqlite import SqliteStore
from sidecar.store.sqlite_file import MIGRATIONS


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def refused(path: Path, **options: object) -> str:
    with pytest.raises(StoreError) as caught:
        await SqliteStore(path, **options).open()  # type: ignore[arg-type]
    assert str(path) in str(caught.value)
    return str(caught.value)


async def filled(path: Path, **options: object) -> None:
    store = SqliteStore(path, **options)  # type: ignore[arg-type]
    await store.open()
    for i in range(200):
        await store.put(f"a/{i}", b"x" * 300)
    await store.close()


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
async def test_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "one" / "two" / "s.db"
    before = os.umask(umask)
    try:
        if umask == 0o777:
            (tmp_path / "one").mkdir()
            (tmp_path / "one").chmod(0o700)
            path = tmp_path / "one" / "s.db"
        store = SqliteStore(path)
        await store.open()
        await store.put("a", b"1")
        files = {each.name: mode(each) for each in path.parent.iterdir()}
        await store.close()
    finally:
        os.umask(before)
    assert files == {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}
    assert mode(path.parent) == 0o700


def test_private_from_the_first_byte(tmp_path: Path) -> None:
    """Seen through the system's eyes: no call creates it with more."""
    if subprocess.run(["strace", "-V"], check=False, capture_output=True).returncode:
        pytest.skip("no strace on this machine")
    code = (
        "import asyncio, os, pathlib, sys\nfrom sidecar.store.sqlite import SqliteStore\n"
        "os.umask(0)\n"
        "async def main():\n s = SqliteStore(pathlib.Path(sys.argv[1]))\n await s.open()\n"
        " await s.put('a', b'1')\n await s.close()\n"
        "asyncio.run(main())"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-e", "trace=openat,open,creat", "-o", str(trace)]
    path = tmp_path / "s.db"
    done = subprocess.run([*command, sys.executable, "-c", code, str(path)], check=False)
    if done.returncode:
        pytest.skip("strace is not permitted here")
    lines = trace.read_text().splitlines()
    created = [line for line in lines if str(path) in line and "O_CREAT" in line]
    assert len(created) >= 3
    assert all(line.split("O_CLOEXEC, ")[1].startswith("0600)") for line in created), created


async def test_an_existing_file_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await filled(path)
    path.chmod(0o644)
    await filled(path)
    assert mode(path) == 0o600


async def test_a_directory_that_was_there_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    await filled(tmp_path / "s.db")
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
async def test_symbolic_links_are_refused(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    path = tmp_path / "s.db"
    (tmp_path / f"s.db{suffix}").symlink_to(target)
    assert "symbolic link" in await refused(path)
    assert target.read_text() == "precious"


async def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.symlink_to(tmp_path / "nowhere")
    assert "symbolic link" in await refused(path)
    assert not (tmp_path / "nowhere").exists()


async def test_hard_links_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await filled(path)
    os.link(path, tmp_path / "other")
    assert "other names" in await refused(path)
    (tmp_path / "folder").mkdir()
    assert "not a file" in await refused(tmp_path / "folder")
    os.mkfifo(tmp_path / "fifo")
    assert "not a file" in await refused(tmp_path / "fifo")


async def test_somebody_elses_file_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make one")
    path = tmp_path / "s.db"
    await filled(path)
    os.chown(path, 65534, -1)
    assert "belongs to uid 65534" in await refused(path)


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in await refused(tmp_path / "file" / "s.db")


# --------------------------------------------------------------------------------- schema


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


NEWER = (
    *MIGRATIONS,
    "ALTER TABLE records ADD COLUMN later TEXT; CREATE INDEX x ON records (later)",
)


async def test_a_newer_schema_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await filled(path, migrations=NEWER)
    before, time = path.read_bytes(), path.stat().st_mtime_ns
    said = await refused(path)
    assert f"schema version {len(NEWER)}, and this sidecar knows {len(MIGRATIONS)} at most" in said
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, time)


async def test_a_newer_schema_that_is_still_in_the_log_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    code = (
        "import asyncio, os, pathlib, sys\nfrom sidecar.store.sqlite import SqliteStore\n"
        "async def main():\n"
        " s = SqliteStore(pathlib.Path(sys.argv[1]), migrations=eval(sys.argv[2]))\n"
        " await s.open()\n await s.put('a', b'1')\n os._exit(0)\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", code, str(path), repr(NEWER)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    assert (tmp_path / "s.db-wal").stat().st_size
    before = contents(tmp_path)
    assert "schema version" in await refused(path)
    after = contents(tmp_path)
    assert after["s.db"] == before["s.db"]
    assert after["s.db-wal"] == before["s.db-wal"]


async def test_an_older_schema_is_brought_forward(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await filled(path)
    store = SqliteStore(path, migrations=NEWER)
    await store.open()
    assert len(await store.list("a/")) == 200
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT version FROM schema_version").fetchall() == [(len(NEWER),)]
        assert db.execute("SELECT count(later) FROM records").fetchall() == [(0,)]


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    await filled(path)
    broken = (*MIGRATIONS, "CREATE TABLE extra (a)", "INSERT INTO missing VALUES (1)")
    assert "no such table: missing" in await refused(path, migrations=broken)
    store = SqliteStore(path)
    await store.open()
    assert len(await store.list("")) == 200
    await store.close()


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE records (key TEXT)")
        db.commit()
    before = contents(tmp_path)
    assert "another program" in await refused(path)
    assert contents(tmp_path) == before


# --------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", ["text", "header", "middle", "cut"])
async def test_a_damaged_file_is_told_and_kept(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "s.db"
    await filled(path)
    data = bytearray(path.read_bytes())
    match damage:
        case "text":
            data = bytearray(b"this is not a database at all\n" * 200)
        case "header":
            data[:16] = b"\0" * 16
        case "middle":
            data[4096 * 4 : 4096 * 6] = os.urandom(4096 * 2)
        case "cut":
            data = data[: len(data) // 2]
    path.write_bytes(data)
    said = await refused(path)
    assert "damaged" in said
    assert "Move it" in said
    assert path.read_bytes() == data


async def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.touch()
    await filled(path)
    assert mode(path) == 0o600


# ------------------------------------------------------------------------------------ URLs


@pytest.mark.parametrize("url", ["sqlite:/a/b.db", "sqlite:///a/b.db", "sqlite:////a/b.db"])
def test_paths_of_urls(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store._path == Path("/a/b.db")


@pytest.mark.parametrize("url", ["sqlite:relative.db", "sqlite:", "memory:x", "memory://host"])
def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(StoreError):
        open_store(url)


def test_an_unknown_scheme_is_named_and_its_password_is_not() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("redis://user:hunter2@db/x")
    said = str(caught.value)
    assert "'redis'" in said
    assert "memory, postgres, postgresql, sqlite" in said
    assert "sidecar.stores" in said
    assert "hunter2" not in said


def test_stores_of_other_packages_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere_store.py").write_text(
        "def make(url):\n    return ('made', url)\ndef broken(url): pass\n"
    )
    metadata = tmp_path / "elsewhere-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[sidecar.stores]\nelse = elsewhere_store:make\ngone = elsewhere_store:absent\n"
        "memory = elsewhere_store:make\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert open_store("else://host/x") == ("made", "else://host/x")
    assert open_store("memory") != ("made", "memory")
    with pytest.raises(StoreError, match="'gone' cannot be loaded"):
        open_store("gone:")
    with pytest.raises(StoreError, match="there are else, gone, memory, postgres, postgresql, sq"):
        open_store("other:")


def test_the_built_in_ones_are_registered() -> None:
    from importlib.metadata import entry_points

    from sidecar.store import BUILT_IN, GROUP

    registered = {point.name: point.value for point in entry_points(group=GROUP)}
    assert {name: f"{module}:from_url" for name, module in BUILT_IN.items()}.items() <= (
        registered.items()
    )
