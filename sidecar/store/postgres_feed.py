"""What changes in a PostgreSQL store, told to watches in the order of the commits.

One connection listens (NOTIFY carries the key and the version, not the value). It is also where
a new watch learns what is there: the database tells a connection of everything that was
committed before a query's answer, so a watch begins exactly at that answer. After a lost
connection the same look shows what was missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from sidecar.ports.store import Change, Record, StoreError
from sidecar.store.checks import after
from sidecar.store.postgres_schema import Connection, channel, explained, is_lost
from sidecar.store.watching import Hub, Watch

log = logging.getLogger("sidecar.store")

ALIVE = 10.0
"""Seconds of silence after which the listening connection is asked whether it still is one."""
ANSWER = 5.0
"""Seconds that it may take to answer."""
ECHO = 2.0
"""Seconds that a writer waits for its own change to reach the watches here."""
LONGEST_WAIT = 10.0
"""Seconds between two attempts to listen again, at most; an operation that got through to the
server brings the next one forward."""
_TOGETHER = 500
"""Notifications that are looked at together, and records that are fetched together."""
_WAITING = 100_000
"""Notifications that may wait."""
_STEADY = 5.0
"""Seconds that a connection must have lasted for the next attempt to come at once."""


@dataclass(frozen=True, slots=True)
class _Told:
    """One notification. ``write`` is our own write's number, ``None`` for another node's."""

    key: str
    version: int
    deleted: bool
    write: int | None


@dataclass(frozen=True, slots=True)
class _Joined:
    """From here on in the stream, a watch is told of changes."""

    watch: Watch
    versions: dict[str, int]


class _Overrun(Exception):
    """More was told than can be kept; what is there now is looked up instead."""


_Item: TypeAlias = "_Told | _Joined"


class Feed:
    """``start`` once, ``close`` at the end. ``open`` makes a connection for it alone.

    A writer takes a number from ``write``, sends it along as its origin, and calls ``echoed``
    after the write: its change has then reached every watch here.
    """

    def __init__(
        self,
        node: str,
        hub: Hub,
        open: Callable[[], Awaitable[Connection]],
    ) -> None:
        self._node = node
        self._hub = hub
        self._open = open
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()
        # Watches that do not hear anything yet, and the versions that the others were told.
        self._joining: dict[Watch, asyncio.Future[None]] = {}
        self._known: dict[str, int] = {}
        self._writes = 0
        self._own: dict[int, tuple[bytes, float | None]] = {}
        self._echoes: dict[int, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._up = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.expiring: Callable[[float], None] = lambda expires: None
        self.listening: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Listen. Raises what the driver raises when the first connection cannot be made."""
        connection = await self._listen()
        self._up = True
        self._task = asyncio.create_task(self._run(connection), name="store: changes")

    async def close(self) -> None:
        """Stop listening; nobody waits any longer."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._release()
        for watch, joined in self._joining.items():
            watch.finish()
            if not joined.done():
                joined.set_result(None)
        self._joining.clear()
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _Joined):
                item.watch.finish()

    def reachable(self) -> None:
        """Somebody got through to the server: if nobody listens, try at once."""
        if not self._up:
            self._hurry.set()

    # ------------------------------------------------------------------------------ watches

    def watch(self, prefix: str) -> Watch:
        """A watch of what changes from now on; operations wait until it hears (``ready``)."""
        watch = Watch(prefix)
        if self._closed:
            watch.finish()
        else:
            self._forget_closed()
            self._joining[watch] = asyncio.get_running_loop().create_future()
            self._wake.set()
        return watch

    def _forget_closed(self) -> None:
        """Whoever watched in vain while the server was lost, and gave up, is not waited for."""
        for watch in [each for each in self._joining if each.closed]:
            joined = self._joining.pop(watch)
            if not joined.done():
                joined.set_result(None)

    async def ready(self) -> None:
        """Return when every watch that was asked for before hears what changes."""
        self._forget_closed()
        while self._joining:
            await asyncio.wait(list(self._joining.values()))

    # ------------------------------------------------------------------------------- writes

    def write(self, value: bytes, expires: float | None) -> int:
        """A number for a write that is about to be made."""
        self._writes += 1
        self._own[self._writes] = (value, expires)
        return self._writes

    def origin(self, write: int) -> str:
        """What the write sends along."""
        return f"{self._node}:{write}"

    async def echoed(self, write: int, key: str, *, wrote: bool) -> None:
        """The write is over. If anybody here watches the key, wait until they know."""
        try:
            if not wrote or not self._up or not self._watched(key):
                return
            echo: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if write not in self._own:
                return  # The notification was quicker.
            self._echoes[write] = echo
            with suppress(TimeoutError):
                async with asyncio.timeout(ECHO):
                    await echo
        finally:
            self._own.pop(write, None)
            self._echoes.pop(write, None)

    # -------------------------------------------------------------------- the one connection

    async def _listen(self) -> Connection:
        connection = await self._open()
        try:
            connection.add_termination_listener(lambda _: self._wake.set())
            await connection.add_listener(await channel(connection), self._notified)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _run(self, connection: Connection | None) -> None:
        loop = asyncio.get_running_loop()
        wait = 0.1
        while True:
            began = loop.time()
            try:
                if connection is None:
                    connection = await self._listen()
                    await self._catch_up(connection)
                    log.info("store postgresql: listening for changes again")
                    self.listening()
                self._up = True
                await self._serve(connection)
            except Exception as error:  # noqa: BLE001 - told by its kind, and tried again
                if not isinstance(error, StoreError | _Overrun) and not is_lost(error):
                    log.warning("%s (while listening for changes)", explained(error))
            finally:
                if loop.time() - began >= _STEADY:
                    wait = 0.1
                if self._up and not self._closed:
                    self._up = False
                    log.warning("store postgresql: the connection was lost; trying again")
                self._release()
                if connection is not None:
                    connection.terminate()
                    connection = None
            self._hurry.clear()
            await asyncio.sleep(0.05)
            with suppress(TimeoutError):
                # All of it random: whoever lost the same server is not to come back at once.
                async with asyncio.timeout(random.uniform(0.0, wait)):
                    await self._hurry.wait()
            wait = min(wait * 2, LONGEST_WAIT)

    async def _serve(self, connection: Connection) -> None:
        """Tell what comes, until the connection is closed. Raises what the driver raises."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while not connection.is_closed():
            self._wake.clear()
            if self._queue.qsize() > _WAITING:
                raise _Overrun
            if self._joining:
                await self._join(connection)
            if not self._queue.empty():
                heard = loop.time()
                await self._tell(connection)
                continue
            if connection.is_closed() or self._joining:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(heard + ALIVE):
                    await self._wake.wait()
            if loop.time() >= heard + ALIVE:
                await connection.fetchval("SELECT 1", timeout=ANSWER)
                heard = loop.time()

    async def _join(self, connection: Connection) -> None:
        """Let new watches begin, here in the stream."""
        self._forget_closed()
        for watch in list(self._joining):
            versions = await self._versions(connection, watch.prefix)
            # What was told before the answer is in the queue already, and not for this watch.
            self._queue.put_nowait(_Joined(watch, versions))
            self._wake.set()
            joined = self._joining.pop(watch, None)
            if joined is not None and not joined.done():
                joined.set_result(None)

    async def _versions(self, connection: Connection, prefix: str) -> dict[str, int]:
        end = after(prefix)
        rows = await connection.fetch(
            "SELECT key, version FROM sidecar_records WHERE key >= $1"
            + ("" if end is None else " AND key < $2"),
            *([prefix] if end is None else [prefix, end]),
            timeout=ANSWER,
        )
        return {row[0]: row[1] for row in rows}

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        """``node:write version+key`` or ``node:write version-key``."""
        origin, _, rest = payload.partition(" ")
        node, _, number = origin.partition(":")
        digits = len(rest) - len(rest.lstrip("0123456789"))
        op = rest[digits : digits + 1]
        if op not in ("+", "-") or not digits:
            return
        write = int(number) if node == self._node and number.isdigit() else None
        self._queue.put_nowait(_Told(rest[digits + 1 :], int(rest[:digits]), op == "-", write))
        self._wake.set()

    # ------------------------------------------------------------------------------ telling

    async def _tell(self, connection: Connection) -> None:
        """Tell the watches what is in the queue. Of a key that changed twice, the newest."""
        told: dict[str, _Told] = {}
        writes: list[int] = []
        joined: _Joined | None = None
        while not self._queue.empty() and len(told) < _TOGETHER:
            item = self._queue.get_nowait()
            if isinstance(item, _Joined):
                joined = item
                break
            told.pop(item.key, None)
            told[item.key] = item
            if item.write is not None:
                writes.append(item.write)
        await self._publish(connection, list(told.values()))
        for write in writes:
            self._echo(write)
        if joined is not None:
            self._admit(joined)
        if not self._queue.empty():
            self._wake.set()

    async def _publish(self, connection: Connection, told: list[_Told]) -> None:
        told = [each for each in told if self._watched(each.key)]
        own = {each.key: self._record(each) for each in told}
        missing = [each.key for each in told if not each.deleted and own[each.key] is None]
        fetched = await self._fetch(connection, missing) if missing else {}
        changes: list[Change] = []
        for each in told:
            record = None if each.deleted else own[each.key] or fetched.get(each.key)
            known = self._known.get(each.key, 0)
            if record is None and known <= each.version:
                self._known.pop(each.key, None)
                changes.append(Change(each.key, None))
            elif record is not None and known < record.version:
                self._known[each.key] = record.version
                changes.append(Change(each.key, record))
        self._hub.publish(changes)

    def _record(self, told: _Told) -> Record | None:
        """What our own write put there."""
        value = self._own.get(told.write) if told.write is not None else None
        if value is None or told.deleted:
            return None
        return Record(told.key, value[0], told.version, value[1])

    async def _fetch(self, connection: Connection, keys: list[str]) -> dict[str, Record]:
        records: dict[str, Record] = {}
        for start in range(0, len(keys), _TOGETHER):
            rows = await connection.fetch(
                "SELECT key, value, version, expires FROM sidecar_records "
                "WHERE key = ANY($1::text[]) AND (expires IS NULL OR expires > sidecar_now())",
                keys[start : start + _TOGETHER],
                timeout=ANSWER,
            )
            for key, value, version, expires in rows:
                records[key] = Record(key, value, version, expires)
                if expires is not None:
                    self.expiring(expires)
        return records

    def _admit(self, joined: _Joined) -> None:
        """The watch hears what comes from now on."""
        before = self._hub.prefixes()
        for key, version in joined.versions.items():
            if key not in self._known or not any(map(key.startswith, before)):
                self._known[key] = version
        self._hub.add(joined.watch)

    async def _catch_up(self, connection: Connection) -> None:
        """Tell what changed while nobody listened."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _Joined):
                self._admit(item)
        now: dict[str, int] = {}
        for prefix in self._hub.prefixes():
            now.update(await self._versions(connection, prefix))
        gone = [key for key in self._known if key not in now and self._watched(key)]
        newer = [key for key, version in now.items() if self._known.get(key) != version]
        fetched = await self._fetch(connection, newer) if newer else {}
        changes = [Change(key, None) for key in gone]
        changes += [Change(key, fetched.get(key)) for key in newer]
        self._known = now
        self._hub.publish(changes)

    def _watched(self, key: str) -> bool:
        if not len(self._hub):
            self._known.clear()
        prefixes = self._hub.prefixes() | {watch.prefix for watch in self._joining}
        return any(map(key.startswith, prefixes))

    def _echo(self, write: int) -> None:
        self._own.pop(write, None)
        echo = self._echoes.get(write)
        if echo is not None and not echo.done():
            echo.set_result(None)

    def _release(self) -> None:
        """Nobody waits for a notification that may never come."""
        for echo in self._echoes.values():
            if not echo.done():
                echo.set_result(None)
