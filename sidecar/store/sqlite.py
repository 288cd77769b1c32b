"""A store in one SQLite file, used by one thread of its own.

Writes that wait together are committed together, so that each waits for one sync of the disk
at most; a write is acknowledged after that. Other processes may use the same file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from sidecar.ports.store import ABSENT, ANY, Change, Record, StoreError
from sidecar.store.checks import after, check_key, check_prefix, check_version, check_write, live
from sidecar.store.sqlite_file import MIGRATIONS, explained, open_file
from sidecar.store.watching import Hub, Watch

log = logging.getLogger(__name__)

T = TypeVar("T")
Changes: TypeAlias = list[Change]
Records: TypeAlias = list[Record]

_TOGETHER = 256
"""Operations in one transaction at most."""
_WAITING = 10_000
"""Operations that may wait; more are refused, so that a hanging disk does not fill memory."""
_LONGEST_SLEEP = 60.0
"""Seconds between looks for what another process left to expire."""
_LOOK_ABROAD = 1.0
"""Seconds between looks for what other processes changed, while somebody watches."""
_ONE_TO_BLAME = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_TOOBIG)
"""Errors that one large write can bring on all that are committed with it."""
_RETRY = 5.0
"""Seconds until what could not be expired (a full disk) is tried again."""


class _Job(Generic[T]):
    """One operation on its way through the thread."""

    __slots__ = ("changes", "error", "future", "run", "value", "writes")

    def __init__(
        self, run: Callable[[Changes], T], future: asyncio.Future[T], writes: bool
    ) -> None:
        self.run = run
        self.future = future
        self.writes = writes
        self.value: T | None = None
        self.error: Exception | None = None
        self.changes: Changes = []

    def attempt(self) -> None:
        """Run it. What SQLite raises goes on to the caller, the operation's own is kept."""
        self.value, self.error, self.changes = None, None, []
        try:
            self.value = self.run(self.changes)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - belongs to whoever asked
            self.error = error


class SqliteStore:
    """See the port. ``clock`` is seconds since the epoch."""

    def __init__(
        self,
        path: Path,
        *,
        migrations: Sequence[str] = MIGRATIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._migrations = migrations
        self._clock = clock
        self._hub = Hub()
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._state = "new"
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event
        # The thread's own:
        self._db: sqlite3.Connection
        self._identity = (0, 0)
        self._next_expiry = 0.0
        self._known: dict[str, int] | None = None
        self._data_version = 0

    async def open(self) -> None:
        """See the port. Raises StoreError for a file that cannot or must not be used."""
        if self._state != "new":
            raise StoreError(f"store {self._path}: it is {self._state}")
        self._state = "opening"
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._serve, args=(opened,), name="store", daemon=True
        )
        self._thread.start()
        try:
            await asyncio.shield(opened)
        except StoreError:
            self._state = "new"
            raise
        except asyncio.CancelledError:
            self._jobs.put(None)
            self._state = "closed"
            raise
        self._state = "open"

    async def get(self, key: str) -> Record | None:
        """See the port."""
        check_key(key)
        return await self._do(lambda changes: live(self._read(key), self._clock()), writes=False)

    async def put(
        self, key: str, value: bytes, *, expected: int = ANY, expires: float | None = None
    ) -> Record:
        """See the port."""
        check_write(key, value, expires)
        copy = bytes(value)
        return await self._do(
            lambda changes: self._write(changes, key, copy, expected, expires), writes=True
        )

    async def delete(self, key: str, *, expected: int = ANY) -> bool:
        """See the port."""
        check_key(key)
        return await self._do(lambda changes: self._delete(changes, key, expected), writes=True)

    async def list(self, prefix: str) -> Records:
        """See the port."""
        check_prefix(prefix)
        return await self._do(lambda changes: self._list(prefix), writes=False)

    def watch(self, prefix: str) -> Watch:
        """See the port. What other processes change is seen within a second or two."""
        check_prefix(prefix)
        if self._state in ("new", "opening"):
            raise StoreError(f"store {self._path}: it is not open yet")
        watch = self._hub.watch(prefix)
        if self._state == "open":
            learned = self._submit(lambda changes: self._learn(), writes=False)
            learned.add_done_callback(lambda done: done.cancelled() or done.exception())
        return watch

    async def close(self) -> None:
        """See the port. What was begun before is still done."""
        if self._state == "new":
            self._state = "closed"
        elif self._state in ("opening", "open"):
            self._state = "closed"
            self._jobs.put(None)
        if self._thread is not None:
            await self._ended.wait()
        self._hub.close()

    # ------------------------------------------------------------------------- on the loop

    async def _do(self, run: Callable[[Changes], T], *, writes: bool) -> T:
        if self._state != "open":
            state = "closed" if self._state == "closed" else "not open yet"
            raise StoreError(f"store {self._path}: it is {state}")
        if self._waiting >= _WAITING:
            raise StoreError(f"store {self._path}: {_WAITING} operations wait for the disk")
        return await self._submit(run, writes=writes)

    def _submit(self, run: Callable[[Changes], T], *, writes: bool) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting += 1
        self._jobs.put(_Job(run, future, writes))  # type: ignore[arg-type]
        return future

    def _answer(self, jobs: Sequence[_Job[object]]) -> None:
        """Even when whoever asked has gone, watches hear of what was written."""
        self._waiting -= len(jobs)
        for job in jobs:
            self._hub.publish(job.changes)
            if job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.value)

    def _gone(self) -> None:
        """The thread has ended; what it left undone, if anything, fails."""
        if self._state == "open":
            self._state = "closed"
            self._hub.close()
        left: list[_Job[object]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    left.append(job)
        self._fail(left, StoreError(f"store {self._path}: it is closed"))
        self._answer(left)
        self._ended.set()

    # ----------------------------------------------------------------------- in the thread

    def _post(self, call: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed before the store
            self._loop.call_soon_threadsafe(call, *args)

    def _serve(self, opened: asyncio.Future[None]) -> None:
        def settle(error: StoreError | None) -> None:
            if not opened.done():
                if error is None:
                    opened.set_result(None)
                else:
                    opened.set_exception(error)

        try:
            try:
                self._db = open_file(self._path, self._migrations)
                self._identity = self._on_disk()
            except StoreError as error:
                self._post(settle, error)
                return
            self._post(settle, None)
            try:
                self._work()
            finally:
                self._db.close()
        finally:
            self._post(self._gone)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            jobs: list[_Job[object]] = []
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=self._pause())
                while job is not None:
                    jobs.append(job)
                    if len(jobs) == _TOGETHER:
                        break
                    job = self._jobs.get_nowait()
                else:
                    stopping = True
            if jobs:
                self._run(jobs)
            if not stopping:
                self._keep_house()

    def _pause(self) -> float:
        pause = min(max(self._next_expiry - self._clock(), 0.0), _LONGEST_SLEEP)
        return pause if self._known is None else min(pause, _LOOK_ABROAD)

    def _run(self, jobs: Sequence[_Job[object]]) -> None:
        """Do them in order, all writes in one transaction, and answer them."""
        try:
            if any(job.writes for job in jobs):
                with self._transaction():
                    for job in jobs:
                        job.attempt()
            else:
                for job in jobs:
                    job.attempt()
        except sqlite3.Error as error:
            if len(jobs) > 1 and getattr(error, "sqlite_errorcode", 0) & 0xFF in _ONE_TO_BLAME:
                for job in jobs:
                    self._run([job])
                return
            self._fail(jobs, explained(self._path, error))
        except StoreError as error:
            self._fail(jobs, error)
        if self._known is not None:
            for job in jobs:
                self._note(job.changes)
        self._post(self._answer, jobs)

    def _fail(self, jobs: Sequence[_Job[object]], error: StoreError) -> None:
        for job in jobs:
            job.changes = []
            job.error = error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Raises StoreError when the file is not the one that was opened."""
        if self._on_disk() != self._identity:
            raise StoreError(
                f"store {self._path}: the file was moved or deleted while in use; put it back or "
                "restart the sidecar"
            )
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _on_disk(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return (0, 0)
        return (found.st_dev, found.st_ino)

    # -------------------------------------------------------------------------- operations

    def _read(self, key: str) -> Record | None:
        row = self._db.execute(
            "SELECT value, version, expires FROM records WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else Record(key, *row)

    def _found(self, key: str) -> tuple[int, bool]:
        """The live version, and whether there is a row at all."""
        row = self._db.execute(
            "SELECT version, expires FROM records WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return ABSENT, False
        expired = row[1] is not None and row[1] <= self._clock()
        return (ABSENT if expired else row[0]), True

    def _write(
        self, changes: Changes, key: str, value: bytes, expected: int, expires: float | None
    ) -> Record:
        found, _ = self._found(key)
        check_version(key, expected, found)
        self._db.execute("UPDATE sequence SET last = last + 1")
        (version,) = self._db.execute("SELECT last FROM sequence").fetchone()
        self._db.execute(
            "INSERT OR REPLACE INTO records (key, value, version, expires) VALUES (?, ?, ?, ?)",
            (key, value, version, expires),
        )
        if expires is not None:
            self._next_expiry = min(self._next_expiry, expires)
        record = Record(key, value, version, expires)
        changes.append(Change(key, record))
        return record

    def _delete(self, changes: Changes, key: str, expected: int) -> bool:
        found, there = self._found(key)
        check_version(key, expected, found)
        if there:
            self._db.execute("DELETE FROM records WHERE key = ?", (key,))
            changes.append(Change(key, None))
        return found != ABSENT

    def _list(self, prefix: str) -> Records:
        end = after(prefix)
        rows = self._db.execute(
            "SELECT key, value, version, expires FROM records WHERE key >= ?"
            + ("" if end is None else " AND key < ?")
            + " ORDER BY key",
            (prefix,) if end is None else (prefix, end),
        )
        now = self._clock()
        return [record for row in rows if (record := live(Record(*row), now))]

    # ------------------------------------------------------------------------- house-keeping

    def _keep_house(self) -> None:
        try:
            if self._clock() >= self._next_expiry:
                self._expire()
            if self._known is not None:
                self._look_abroad()
        except (sqlite3.Error, StoreError) as error:
            if isinstance(error, sqlite3.Error):
                error = explained(self._path, error)
            log.warning("%s (while removing what has expired)", error)
            self._next_expiry = self._clock() + _RETRY

    def _expire(self) -> None:
        now = self._clock()
        query = "SELECT key FROM records WHERE expires <= ?"
        if self._db.execute(query, (now,)).fetchone() is not None:
            with self._transaction():
                gone = [Change(key, None) for (key,) in self._db.execute(query, (now,))]
                self._db.execute("DELETE FROM records WHERE expires <= ?", (now,))
            self._note(gone)
            self._post(self._hub.publish, gone)
        (first,) = self._db.execute("SELECT min(expires) FROM records").fetchone()
        self._next_expiry = now + _LONGEST_SLEEP if first is None else first

    def _learn(self) -> None:
        """Somebody watches: from now on know what is there, to tell what others change."""
        if self._known is None:
            self._data_version = self._current_data_version()
            self._known = dict(self._db.execute("SELECT key, version FROM records"))

    def _note(self, changes: Sequence[Change]) -> None:
        if self._known is not None:
            for change in changes:
                if change.record is None:
                    self._known.pop(change.key, None)
                else:
                    self._known[change.key] = change.record.version

    def _look_abroad(self) -> None:
        """Tell watches what other processes changed since the last look."""
        assert self._known is not None
        if not len(self._hub):
            self._known = None
            return
        current = self._current_data_version()
        if current == self._data_version:
            return
        self._data_version = current
        now = dict(self._db.execute("SELECT key, version FROM records"))
        changes = [Change(key, None) for key in self._known if key not in now]
        for key, version in now.items():
            if self._known.get(key) != version:
                record = live(self._read(key), self._clock())
                if record is not None:
                    changes.append(Change(key, record))
        self._known = now
        self._next_expiry = self._clock()
        self._post(self._hub.publish, changes)

    def _current_data_version(self) -> int:
        """Grows when another connection commits; our own commits leave it as it is."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        return int(version)


def from_url(url: str) -> SqliteStore:
    """The entry point: ``sqlite:PATH``, absolute; extra leading slashes collapse."""
    path = url.partition(":")[2]
    if not path.startswith("/"):
        raise StoreError("a sqlite store has an absolute path, such as sqlite:///var/lib/state.db")
    return SqliteStore(Path("/" + path.lstrip("/")))
