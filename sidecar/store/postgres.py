"""A store in PostgreSQL, shared by any number of nodes.

asyncpg rather than psycopg: it speaks the protocol itself (no libpq to match), and hands
notifications to the event loop without a query or a thread of their own.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from sidecar.ports.store import ANY, Record, StoreError
from sidecar.store.checks import after, check_key, check_prefix, check_write, conflict
from sidecar.store.postgres_feed import Feed
from sidecar.store.postgres_schema import (
    CONNECT,
    MIGRATIONS,
    NAME,
    Connection,
    connect,
    driver,
    explained,
    faults,
    is_lost,
    migrate,
    settings,
)
from sidecar.store.watching import Hub, Watch

log = logging.getLogger("sidecar.store")

T = TypeVar("T")

CONNECTIONS = 4
"""Of one node, beside the one that listens, unless the URL says ``connections=N``."""
MOST_CONNECTIONS = 100
IDLE = 90.0
"""Seconds after which a connection that nobody uses is given back. One stays: what is compared
and looked for now and then comes more often."""
OPERATION = 10.0
"""Seconds for one operation, the wait for a connection included."""
JOINING = 2.0
"""Seconds of those for a watch to begin that was asked for before."""
OPENING = 10.0
"""Seconds that a database which is starting gets at the start of the sidecar."""
CLOSING = 10.0
"""Seconds that operations get to end when the store is closed."""
_WAITING = 10_000
"""Operations that may wait; more are refused, so that a lost server does not fill memory."""
_LONGEST_RETRY = 5.0
"""Seconds between two attempts to reach a lost server, at most."""
_LONGEST_SLEEP = 60.0
"""Seconds between looks for what has expired, at most."""
_SPREAD = 5.0
"""Seconds over which nodes are spread that look for what another node's records left: whoever
wrote one looks first, and removes it for all."""
_NEXT = "SELECT min(expires) - sidecar_now() FROM sidecar_records WHERE expires IS NOT NULL"
_MORE = 0.1
"""Seconds until the next look where there is more to remove, or somebody else is at it."""
_MINE = 10_000
"""Expiries of our own records that are remembered; of more, any node comes upon them."""


class PostgresStore:
    """See the port. Expiry goes by the database's clock, the same for all nodes.

    While the server is lost, every operation fails at once, but for one attempt now and then.
    """

    def __init__(
        self,
        url: str,
        *,
        migrations: Sequence[str] = MIGRATIONS,
        connections: int = CONNECTIONS,
    ) -> None:
        """``connections`` is how many there are at most, beside the one that listens."""
        self._url = url
        self._connections = connections
        self._migrations = migrations
        self._node = os.urandom(8).hex()
        self._hub = Hub()
        self._feed = Feed(self._node, self._hub, self._connect)
        self._feed.expiring = self._heard_of
        self._feed.listening = self._found_again
        self._pool: Any = None  # asyncpg has no types
        self._state = "new"
        self._running: set[asyncio.Task[Any]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._sweep_at = 0.0
        self._mine: list[float] = []
        self._sweep = asyncio.Event()
        self._failures = 0
        self._retry_at = 0.0

    # --------------------------------------------------------------------- as the port says

    async def open(self) -> None:
        """See the port. Waits a little for a server that is still starting."""
        if self._state != "new":
            raise StoreError(f"{NAME}: it is {self._state}")
        driver()
        self._state = "opening"
        until = asyncio.get_running_loop().time() + OPENING
        try:
            await self._open(until)
        except BaseException:
            self._state = "new"
            raise
        self._state = "open"
        self._sweeper = asyncio.create_task(self._sweeping(), name="store: expiry")

    async def _open(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection = await self._connect()
                break
            except faults() as error:
                starting = (ConnectionError, TimeoutError, driver().CannotConnectNowError)
                if not isinstance(error, starting) or loop.time() >= until:
                    raise explained(error) from None
            await asyncio.sleep(0.25)
        try:
            await migrate(connection, self._migrations)
            self._pool = await driver().create_pool(
                self._url,
                min_size=0,  # with a floor, it would try to restore that for ever, and log it
                max_size=self._connections,
                max_inactive_connection_lifetime=IDLE,
                **settings(self._node),
            )
            await self._feed.start()
        except faults() as error:
            if self._pool is not None:
                self._pool.terminate()
            raise explained(error) from None
        finally:
            with suppress(*faults()):
                await connection.close(timeout=CONNECT)

    async def get(self, key: str) -> Record | None:
        """See the port."""
        check_key(key)

        async def run(connection: Connection) -> Record | None:
            row = await connection.fetchrow(
                "SELECT key, value, version, expires FROM sidecar_records "
                "WHERE key = $1 AND (expires IS NULL OR expires > sidecar_now())",
                key,
            )
            return None if row is None else Record(*row)

        return await self._do(lambda: self._read(run))

    async def put(
        self, key: str, value: bytes, *, expected: int = ANY, expires: float | None = None
    ) -> Record:
        """See the port."""
        check_write(key, value, expires)
        copy = bytes(value)

        async def run() -> Record:
            write = self._feed.write(copy, expires)
            version: int | None = None
            try:
                version, found = await self._row(
                    "SELECT written, was FROM sidecar_put($1, $2, $3, $4, $5)",
                    key,
                    copy,
                    expected,
                    expires,
                    self._feed.origin(write),
                )
            finally:
                await self._feed.echoed(write, key, wrote=version is not None)
            if version is None:
                raise conflict(key, expected, found)
            if expires is not None:
                self._wrote(expires)
            return Record(key, copy, version, expires)

        return await self._do(run)

    async def delete(self, key: str, *, expected: int = ANY) -> bool:
        """See the port."""
        check_key(key)

        async def run() -> bool:
            write = self._feed.write(b"", None)
            done = there = False
            try:
                done, there, found = await self._row(
                    "SELECT done, there, was FROM sidecar_delete($1, $2, $3)",
                    key,
                    expected,
                    self._feed.origin(write),
                )
            finally:
                await self._feed.echoed(write, key, wrote=done and there)
            if not done:
                raise conflict(key, expected, found)
            return bool(found)

        return await self._do(run)

    async def list(self, prefix: str) -> list[Record]:
        """See the port."""
        check_prefix(prefix)
        end = after(prefix)

        async def run(connection: Connection) -> list[Record]:
            rows = await connection.fetch(
                "SELECT key, value, version, expires FROM sidecar_records WHERE key >= $1"
                + ("" if end is None else " AND key < $2")
                + " AND (expires IS NULL OR expires > sidecar_now()) ORDER BY key",
                *([prefix] if end is None else [prefix, end]),
            )
            return [Record(*row) for row in rows]

        return await self._do(lambda: self._read(run))

    def watch(self, prefix: str) -> Watch:
        """See the port. What other nodes change is seen as it is committed."""
        check_prefix(prefix)
        if self._state in ("new", "opening"):
            raise StoreError(f"{NAME}: it is not open yet")
        return self._feed.watch(prefix)

    async def close(self) -> None:
        """See the port. What was begun before is still done, within a bound."""
        opened, self._state = self._state == "open", "closed"
        if not opened:
            while self._running:  # another call closes it
                await asyncio.wait(self._running)
            self._hub.close()
            return
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=CLOSING)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait({self._sweeper})
        await self._feed.close()
        self._hub.close()
        try:
            async with asyncio.timeout(CONNECT):
                await self._pool.close()
        except faults():
            self._pool.terminate()

    # ------------------------------------------------------------------------- operations

    async def _do(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run one operation to its end, also when whoever asked goes away meanwhile."""
        if self._state != "open":
            state = "closed" if self._state == "closed" else "not open yet"
            raise StoreError(f"{NAME}: it is {state}")
        if len(self._running) >= _WAITING:
            raise StoreError(f"{NAME}: {_WAITING} operations wait for the server")
        task = self._spawn(self._attempt(run))
        return await asyncio.shield(task)

    def _spawn(self, job: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(job, name="store: operation")
        self._running.add(task)
        task.add_done_callback(self._ran)
        return task

    def _ran(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    async def _attempt(self, run: Callable[[], Awaitable[T]]) -> T:
        left = self._retry_at - asyncio.get_running_loop().time()
        if left > 0:
            raise StoreError(f"{NAME}: the server is lost; the next attempt is in {left:.1f} s")
        try:
            async with asyncio.timeout(OPERATION):
                async with asyncio.timeout(JOINING):
                    await self._feed.ready()
                value = await run()
        except faults() as error:
            if isinstance(error, TimeoutError):
                self._was_lost()
            raise explained(error) from None
        self._failures = 0
        self._feed.reachable()
        return value

    async def _read(self, run: Callable[[Connection], Awaitable[T]]) -> T:
        """What only reads is asked again when a connection turns out to be broken: one that
        nobody used meanwhile shows that only now."""
        try:
            return await self._on_connection(run)
        except faults() as error:
            if not is_lost(error):
                raise
        return await self._on_connection(run)

    async def _row(self, query: str, *args: object) -> Sequence[Any]:
        """The one row that a function of the schema answers with."""
        row = await self._on_connection(lambda connection: connection.fetchrow(query, *args))
        assert row is not None
        return row

    async def _on_connection(self, run: Callable[[Connection], Awaitable[T]]) -> T:
        pool = self._pool
        try:
            connection = await pool.acquire(timeout=CONNECT)
        except faults() as error:
            if is_lost(error):
                self._was_lost()
            raise
        try:
            return await run(cast(Connection, connection))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError | TimeoutError):
                # Its server may be frozen: to ask it to stop would take as long again.
                connection.terminate()
            raise
        finally:
            await pool.release(connection, timeout=CONNECT)

    async def _connect(self) -> Connection:
        return await connect(self._url, self._node)

    # ------------------------------------------------------------------- lost and found again

    def _was_lost(self) -> None:
        """No connection, or no answer: operations fail at once for a while, each time a longer
        one. A connection that breaks says nothing yet of the next one."""
        self._failures += 1
        longest = min(_LONGEST_RETRY, 0.1 * 2 ** min(self._failures, 10))
        wait = random.uniform(longest / 2, longest)
        self._retry_at = asyncio.get_running_loop().time() + wait

    def _found_again(self) -> None:
        self._failures, self._retry_at = 0, 0.0
        self._sweep.set()

    # ----------------------------------------------------------------------------- expiry

    def _wrote(self, expires: float) -> None:
        """A record of ours expires then (seconds since the epoch)."""
        if len(self._mine) < _MINE:
            heapq.heappush(self._mine, expires)
        self._look_at(expires)

    def _heard_of(self, expires: float) -> None:
        """Another node's does. Were all to look at that moment, a thousand would."""
        self._look_at(expires + random.uniform(0.0, _SPREAD))

    def _look_at(self, at: float) -> None:
        if at < self._sweep_at:
            self._sweep_at = at
            self._sweep.set()

    async def _sweeping(self) -> None:
        """Remove what has expired, so that watches hear of it. Every node does, and the first
        to come does it for all."""
        wait: float = 0.0
        while True:
            self._sweep_at = time.time() + wait
            self._sweep.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._sweep.wait()
                wait = max(0.0, min(self._sweep_at - time.time(), _LONGEST_SLEEP))
                continue
            try:
                left = await self._do(lambda: self._on_connection(self._sweep_once))
            except StoreError as error:
                log.debug("%s (while removing what has expired)", error)
                left = _LONGEST_RETRY
            wait = self._until_next(left)

    def _until_next(self, left: float | None) -> float:
        """Seconds until the next look, where the next record expires in ``left``."""
        now, ours = time.time(), False
        while self._mine and self._mine[0] <= now:
            heapq.heappop(self._mine)
            ours = True
        longest = random.uniform(0.75, 1.0) * _LONGEST_SLEEP
        if left is None:
            return longest
        if left <= 0:
            return _MORE
        # The database's clock may say that what was ours is still there for a moment.
        wait = left if ours and left < 1.0 else left + random.uniform(0.0, _SPREAD)
        if self._mine:
            wait = min(wait, self._mine[0] - now)
        return min(max(wait, 0.01), longest)

    async def _sweep_once(self, connection: Connection) -> float | None:
        """Seconds until the next record expires, ``None`` where none does."""
        left = await connection.fetchval(_NEXT)
        if left is not None and left <= 0:
            # Its own answer is 0 as well where nothing expires, so it is asked for again.
            await connection.fetchval("SELECT sidecar_sweep($1)", self._node)
            left = await connection.fetchval(_NEXT)
        return None if left is None else float(left)


def from_url(url: str) -> PostgresStore:
    """The entry point: ``postgresql://[user[:password]@]host[:port]/database[?…]``.

    ``connections=N`` in the query is ours, the rest is the driver's.
    """
    scheme, _, rest = url.partition(":")
    if scheme not in ("postgresql", "postgres") or not rest.startswith("//"):
        raise StoreError("a PostgreSQL store is written as postgresql://host/database")
    base, _, query = rest.partition("?")
    parts = [part for part in query.split("&") if part]
    ours = [part for part in parts if part.startswith("connections=")]
    rest = "&".join(part for part in parts if part not in ours)
    most = CONNECTIONS
    for part in ours:
        number = part.removeprefix("connections=")
        most = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0
        if not 1 <= most <= MOST_CONNECTIONS:
            raise StoreError(f"{NAME}: connections is a number from 1 to {MOST_CONNECTIONS}")
    return PostgresStore(f"postgresql:{base}" + (f"?{rest}" if rest else ""), connections=most)
