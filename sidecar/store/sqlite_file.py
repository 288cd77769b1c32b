"""Opening the one file: who may read it, whose it is, how old it is, whether it is whole.

Runs in the store's own thread. Raises only StoreError, each naming the file and what to do.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from sidecar.ports.store import StoreError

APPLICATION_ID = 0x53444352
"""Bytes 68 to 71 of the file ("SDCR"): it is a store of a sidecar."""

MIGRATIONS = (
    """
    CREATE TABLE records (
        key TEXT PRIMARY KEY,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        expires REAL
    );
    CREATE INDEX records_by_expiry ON records (expires) WHERE expires IS NOT NULL;
    CREATE TABLE sequence (last INTEGER NOT NULL);
    INSERT INTO sequence VALUES (0);
    """,
)
"""The n-th makes schema version n of version n-1. Never edit one that was released."""

BUSY_SECONDS = 5.0
"""How long another process may keep the file locked."""

_CHECKED_UP_TO = 256 << 20
"""Bytes. A larger file is not read through when it is opened."""


def open_file(path: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """Create or open the file and bring it to the newest schema.

    A newer schema, another program's file and a damaged one are refused and left untouched.
    """
    if not path.is_absolute():
        raise StoreError(f"store {path}: the path must be absolute")
    try:
        _make_directory(path.parent)
        _make_private(path)
    except OSError as error:
        raise StoreError(f"store {path}: {os.strerror(error.errno or 0)}") from error
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if path.stat().st_size:
                _look(path, len(migrations))
            return _open(path, migrations)
        except OSError as error:
            raise StoreError(f"store {path}: {os.strerror(error.errno or 0)}") from error
        except sqlite3.Error as error:
            # While another process opens or closes the file, SQLite does not wait by itself.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise explained(path, error) from error
        time.sleep(0.05)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explained(path: Path, error: sqlite3.Error) -> StoreError:
    """What an SQLite error means to whoever runs the sidecar."""
    match _code(error):
        case sqlite3.SQLITE_FULL:
            why = "the disk is full; nothing was written"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            why = f"another process has kept it locked for {BUSY_SECONDS:.0f} s"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            why = (
                "the file is damaged or not a store; it was left as it is. Move it and its -wal "
                "away to start with an empty one, or put a copy back"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            why = "it cannot be written to"
        case sqlite3.SQLITE_CANTOPEN:
            why = "it cannot be opened; is its directory there and writable?"
        case sqlite3.SQLITE_IOERR:
            why = f"the disk or a file size limit refused ({error})"
        case _:
            why = str(error)
    return StoreError(f"store {path}: {why}")


# ------------------------------------------------------------------------------------ the file


def _make_directory(directory: Path) -> None:
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def _make_private(path: Path) -> None:
    """Create the file readable by us alone, or refuse one that is not ours alone.

    An existing file is looked at but not opened: closing a descriptor of it would drop the
    locks that another store of this process holds (fcntl(2), advisory record locking).
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchmod(fd, 0o600)
        os.close(fd)
    except FileExistsError:
        _check_ours(path)
    # SQLite gives these the permissions of the file itself when it makes them.
    for suffix in ("-wal", "-shm", "-journal"):
        beside = path.with_name(path.name + suffix)
        with contextlib.suppress(FileNotFoundError):
            _check_ours(beside)


def _check_ours(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"store {path}: it is a symbolic link; name the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"store {path}: it is not a file")
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"store {path}: it belongs to uid {found.st_uid}, and the sidecar runs as uid "
            f"{os.geteuid()}; run as its owner or change the owner"
        )
    if found.st_nlink > 1:
        raise StoreError(f"store {path}: it has other names too (hard links); remove those")
    if found.st_mode & 0o077:
        path.chmod(0o600)


# ------------------------------------------------------------------------------- what is in it


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_SECONDS,
    )


def _look(path: Path, newest: int) -> None:
    """Read only: whose file it is, which schema it has, whether it is whole."""
    connection = _connect(path, "ro")
    try:
        # One view of the file, whatever another process does to it meanwhile.
        connection.execute("BEGIN")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != APPLICATION_ID and tables:
            raise StoreError(f"store {path}: it is the database of another program")
        version = _version(connection)
        if version > newest:
            raise StoreError(
                f"store {path}: it has schema version {version}, and this sidecar knows "
                f"{newest} at most; it was left as it is. Run the newer sidecar, or use another "
                "file"
            )
        if path.stat().st_size <= _CHECKED_UP_TO:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                damaged = sqlite3.DatabaseError(verdict)
                damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise damaged
    finally:
        connection.close()


def _version(connection: sqlite3.Connection) -> int:
    found = connection.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_version'"
    ).fetchone()
    if found is None:
        return 0
    (version,) = connection.execute("SELECT version FROM schema_version").fetchone()
    return int(version)


def _open(path: Path, migrations: Sequence[str]) -> sqlite3.Connection:
    connection = _connect(path, "rw")
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        # The log is synced before a write is acknowledged: it survives a loss of power too.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA journal_size_limit = 4194304")
        _migrate(connection, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    if _version(connection) == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Once more under the lock: another process may have been quicker.
        version = _version(connection)
        if version == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"
            )
            connection.execute("INSERT INTO schema_version VALUES (0)")
        for step in migrations[version:]:
            # executescript() would commit what we are in the middle of.
            for statement in step.split(";"):
                if statement.strip():
                    connection.execute(statement)
        connection.execute("UPDATE schema_version SET version = ?", (len(migrations),))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
