"""A store that another package could bring: one file a key, in a folder that processes share.

Found by the entry point in the metadata beside it. Slow and small, but it keeps the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from sidecar.ports.store import ABSENT, ANY, Change, Conflict, Record, StoreError

T = TypeVar("T")
LOOK = 0.05


class FolderStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = "new"
        self._watches: list[FolderWatch] = []
        self._task: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._known: dict[str, Record] = {}

    async def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._state = "open"
        self._task = asyncio.create_task(self._look())

    async def get(self, key: str) -> Record | None:
        check_key(key)
        return await self._do(lambda: self._read(key))

    async def put(
        self, key: str, value: bytes, *, expected: int = ANY, expires: float | None = None
    ) -> Record:
        check_key(key)
        if expires is not None and not abs(expires) < float("inf"):
            raise ValueError("expires is a finite time or None")
        copy = bytes(value)

        def write() -> Record:
            self._compare(key, expected)
            record = Record(key, copy, self._next(), expires)
            self._path(key).write_text(json.dumps([copy.hex(), record.version, expires]))
            return record

        return await self._do(write, told=True)

    async def delete(self, key: str, *, expected: int = ANY) -> bool:
        check_key(key)

        def remove() -> bool:
            there = self._compare(key, expected)
            self._path(key).unlink(missing_ok=True)
            return there

        return await self._do(remove, told=True)

    async def list(self, prefix: str) -> list[Record]:
        return await self._do(
            lambda: [r for key, r in sorted(self._all().items()) if key.startswith(prefix)]
        )

    def watch(self, prefix: str) -> FolderWatch:
        watch = FolderWatch(prefix)
        if self._state == "new":
            raise StoreError("not open yet")
        if self._state == "closed":
            watch.ended = True
        elif not self._watches:
            with self._locked():
                self._known = self._all()
        self._watches.append(watch)
        return watch

    async def close(self) -> None:
        if self._state == "open":
            self._state = "closed"
            if self._running:
                await asyncio.wait(self._running)
            assert self._task is not None
            self._task.cancel()
            self._tell()
        self._state = "closed"
        for watch in self._watches:
            watch.end()

    # ------------------------------------------------------------------------------- inside

    async def _do(self, run: Callable[[], T], *, told: bool = False) -> T:
        if self._state != "open":
            raise StoreError(f"the store is {self._state}")

        async def job() -> T:
            with self._locked():
                value = run()
            if told:
                self._tell()
            return value

        task = asyncio.create_task(job())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self._tell()

    def _tell(self) -> None:
        if not self._watches:
            return
        with self._locked():
            now = self._all()
        before, self._known = self._known, now
        for key in before.keys() - now.keys():
            self._offer(Change(key, None))
        for key, record in sorted(now.items(), key=lambda item: item[1].version):
            if before.get(key) != record:
                self._offer(Change(key, record))

    def _offer(self, change: Change) -> None:
        for watch in self._watches:
            watch.offer(change)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _next(self) -> int:
        last = self._folder / ".last"
        version = int(last.read_text()) + 1 if last.exists() else 1
        last.write_text(str(version))
        return version

    def _path(self, key: str) -> Path:
        # Long keys become nested folders of one name each.
        name = "k" + quote(key, safe="")
        parts = [name[i : i + 200] for i in range(0, len(name), 200)]
        path = self._folder.joinpath(*[f"d{part}" for part in parts[:-1]], f"f{parts[-1]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _read(self, key: str) -> Record | None:
        try:
            value, version, expires = json.loads(self._path(key).read_text())
        except FileNotFoundError:
            return None
        if expires is not None and expires <= time.time():
            return None
        return Record(key, bytes.fromhex(value), version, expires)

    def _all(self) -> dict[str, Record]:
        found = {}
        for folder, _, files in os.walk(self._folder):
            above = Path(folder).relative_to(self._folder).parts
            for file in files:
                if file.startswith("f"):
                    name = "".join(part[1:] for part in (*above, file))
                    key = unquote(name.removeprefix("k"))
                    record = self._read(key)
                    if record is not None:
                        found[key] = record
        return found

    def _compare(self, key: str, expected: int) -> bool:
        there = self._read(key)
        found = ABSENT if there is None else there.version
        if expected not in (ANY, found):
            raise Conflict(f"{key}: expected {expected}, is {found}")
        return there is not None


class FolderWatch:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._waiting: dict[str, Change] = {}
        self._wake = asyncio.Event()
        self.ended = False

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._waiting:
            if self.ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.pop(next(iter(self._waiting)))

    def offer(self, change: Change) -> None:
        if change.key.startswith(self._prefix) and not self.ended:
            self._waiting.pop(change.key, None)
            self._waiting[change.key] = change
            self._wake.set()

    def end(self) -> None:
        self.ended = True
        self._wake.set()

    async def aclose(self) -> None:
        self._waiting.clear()
        self.end()


def check_key(key: str) -> None:
    if not key or len(key) > 1024 or "\0" in key or any("\ud800" <= c <= "\udfff" for c in key):
        raise ValueError("not a key")


def make(url: str) -> FolderStore:
    """The entry point."""
    return FolderStore(Path("/" + url.partition(":")[2].lstrip("/")))
