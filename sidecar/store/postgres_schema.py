"""What a PostgreSQL database holds for a store: connecting, the schema, and what errors mean.

Whatever must be one step is one function of the database, so that a write is one round trip and
every node does it alike. Raises only StoreError where it says so; no message repeats the URL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from sidecar.ports.store import StoreError

NAME = "store postgresql"
"""How messages name the store."""

CONNECT = 5.0
"""Seconds to connect and log in."""

MIGRATIONS = (
    """
    CREATE TABLE sidecar_records (
        key text COLLATE "C" PRIMARY KEY,
        value bytea NOT NULL,
        version bigint NOT NULL,
        expires double precision
    );
    CREATE INDEX sidecar_records_by_expiry ON sidecar_records (expires)
        WHERE expires IS NOT NULL;
    CREATE SEQUENCE sidecar_versions;

    -- One clock for all nodes: seconds since the epoch.
    CREATE FUNCTION sidecar_now() RETURNS double precision LANGUAGE sql VOLATILE AS $$
        SELECT extract(epoch FROM clock_timestamp())::double precision
    $$;

    CREATE FUNCTION sidecar_tell(origin text, op text, version bigint, k text) RETURNS void
    LANGUAGE sql VOLATILE AS $$
        SELECT pg_notify('sidecar_' || 'sidecar_records'::regclass::oid,
                         origin || ' ' || version || op || k)
    $$;

    -- Writers of one key take turns, so that its versions grow in the order of its changes.
    -- Then the versions of a row, of its absence and of an expired row are known for certain.
    CREATE FUNCTION sidecar_found(k text, OUT version bigint, OUT there boolean)
    LANGUAGE plpgsql VOLATILE AS $$
    DECLARE
        row_version bigint;
        row_expires double precision;
    BEGIN
        PERFORM pg_advisory_xact_lock(21316, hashtext(k));
        SELECT r.version, r.expires INTO row_version, row_expires
            FROM sidecar_records r WHERE r.key = k;
        there := FOUND;
        version := CASE WHEN NOT there OR row_expires <= sidecar_now() THEN 0
                   ELSE row_version END;
    END
    $$;

    -- "written" is null when "expected" is not the version that is there.
    CREATE FUNCTION sidecar_put(k text, v bytea, expected bigint, until double precision,
                                origin text, OUT written bigint, OUT was bigint)
    LANGUAGE plpgsql VOLATILE AS $$
    DECLARE
        there boolean;
    BEGIN
        SELECT f.version, f.there INTO was, there FROM sidecar_found(k) f;
        IF expected <> -1 AND expected <> was THEN
            RETURN;
        END IF;
        written := nextval('sidecar_versions');
        INSERT INTO sidecar_records AS r (key, value, version, expires)
            VALUES (k, v, written, until)
            ON CONFLICT (key) DO UPDATE
            SET value = excluded.value, version = excluded.version, expires = excluded.expires;
        PERFORM sidecar_tell(origin, '+', written, k);
    END
    $$;

    CREATE FUNCTION sidecar_delete(k text, expected bigint, origin text,
                                   OUT done boolean, OUT there boolean, OUT was bigint)
    LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        SELECT f.version, f.there INTO was, there FROM sidecar_found(k) f;
        done := expected = -1 OR expected = was;
        IF done AND there THEN
            DELETE FROM sidecar_records r WHERE r.key = k;
            PERFORM sidecar_tell(origin, '-', nextval('sidecar_versions'), k);
        END IF;
    END
    $$;

    -- Seconds until the next record expires, null for never.
    CREATE FUNCTION sidecar_sweep(origin text) RETURNS double precision
    LANGUAGE plpgsql VOLATILE AS $$
    DECLARE
        gone text;
    BEGIN
        FOR gone IN
            DELETE FROM sidecar_records r WHERE r.key IN (
                SELECT x.key FROM sidecar_records x WHERE x.expires <= sidecar_now()
                ORDER BY x.expires LIMIT 1000 FOR UPDATE SKIP LOCKED
            ) RETURNING r.key
        LOOP
            PERFORM sidecar_tell(origin, '-', nextval('sidecar_versions'), gone);
        END LOOP;
        RETURN (SELECT greatest(min(r.expires) - sidecar_now(), 0) FROM sidecar_records r);
    END
    $$;
    """,
)
"""The n-th makes schema version n of version n-1. Never edit one that was released."""

_MIGRATING = 0x5344435253544F52
"""The advisory lock under which one node at a time migrates ("SDCRSTOR")."""


class Connection(Protocol):
    """What of asyncpg's connection is used here; its package has no types."""

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def fetch(
        self, query: str, *args: object, timeout: float | None = None
    ) -> list[Sequence[Any]]: ...
    async def fetchrow(
        self, query: str, *args: object, timeout: float | None = None
    ) -> Sequence[Any] | None: ...
    async def fetchval(self, query: str, *args: object, timeout: float | None = None) -> Any: ...  # noqa: ANN401  a column of any type
    async def add_listener(
        self, channel: str, callback: Callable[[object, int, str, str], None]
    ) -> None: ...
    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    def is_closed(self) -> bool: ...
    def transaction(self) -> Any: ...  # noqa: ANN401  an asynchronous context manager
    async def close(self, *, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...


def driver() -> Any:  # noqa: ANN401  a package without types
    """asyncpg, which is an extra. Raises StoreError without it."""
    try:
        import asyncpg
    except ImportError:
        raise StoreError(
            f"{NAME}: the driver is not installed; pip install 'mcp-sidecar[postgres]'"
        ) from None
    return asyncpg


def settings(node: str) -> dict[str, object]:
    """How every connection is made."""
    return {
        "timeout": CONNECT,
        "server_settings": {
            "application_name": f"sidecar {node}",
            # A lock is taken and then something is read: the reading must see what was
            # committed meanwhile, whatever the database's default is.
            "default_transaction_isolation": "read committed",
        },
    }


async def connect(url: str, node: str) -> Connection:
    """One connection. Raises what the driver raises."""
    make = cast("Callable[..., Awaitable[Connection]]", driver().connect)
    return await make(url, **settings(node))


async def migrate(connection: Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring the database to the newest schema, in one transaction.

    Raises:
        StoreError: a newer schema, or a database that cannot hold keys; it was left as it is.
    """
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{NAME}: the database has the encoding {encoding}; make one with UTF8")
    if await _version(connection) == len(migrations):
        return
    # Before the transaction: what another node made meanwhile is seen for certain by one that
    # begins after the lock was granted.
    await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATING)
    try:
        async with connection.transaction():
            await _migrate(connection, migrations)
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", _MIGRATING)


async def _migrate(connection: Connection, migrations: Sequence[str]) -> None:
    newest, version = len(migrations), await _version(connection)
    if version > newest:
        raise StoreError(
            f"{NAME}: it has schema version {version}, and this sidecar knows {newest} at most; "
            "it was left as it is. Run the newer sidecar, or use another database"
        )
    if version == 0:
        await connection.execute("CREATE TABLE sidecar_schema (version integer NOT NULL)")
        await connection.execute("INSERT INTO sidecar_schema VALUES (0)")
    for step in migrations[version:]:
        await connection.execute(step)
    await connection.execute("UPDATE sidecar_schema SET version = $1", newest)


async def _version(connection: Connection) -> int:
    if await connection.fetchval("SELECT to_regclass('sidecar_schema')::oid") is None:
        return 0
    return int(await connection.fetchval("SELECT version FROM sidecar_schema"))


async def channel(connection: Connection) -> str:
    """Where changes of this store's table are told."""
    oid = await connection.fetchval("SELECT 'sidecar_records'::regclass::oid")
    return f"sidecar_{oid}"


def faults() -> tuple[type[Exception], ...]:
    """What the driver raises."""
    asyncpg = driver()
    return (
        OSError,
        TimeoutError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    )


def is_lost(error: Exception) -> bool:
    """Whether an error means that the server cannot be reached, now."""
    asyncpg = driver()
    lost = (
        OSError,
        TimeoutError,
        asyncpg.PostgresConnectionError,
        asyncpg.OperatorInterventionError,
        asyncpg.InsufficientResourcesError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    )
    return isinstance(error, lost) and not isinstance(error, asyncpg.DiskFullError)


def explained(error: Exception) -> StoreError:
    """What an error means to whoever runs the sidecar. Texts of the server can hold names of
    users and databases, so they are told by their kind."""
    asyncpg = driver()
    kinds: tuple[tuple[type[Exception], str], ...] = (
        (
            asyncpg.InvalidAuthorizationSpecificationError,
            "the user or password is wrong; see PGPASSWORD, PGPASSFILE and the URL",
        ),
        (asyncpg.InvalidCatalogNameError, "there is no such database; create it first"),
        (
            asyncpg.InsufficientPrivilegeError,
            "the user may not do this; it needs CREATE on the schema for the first start, and "
            "the tables' own rights after that",
        ),
        (asyncpg.DiskFullError, "the disk is full; nothing was written"),
        (asyncpg.ReadOnlySQLTransactionError, "it is a read-only replica; name the primary"),
        (asyncpg.TooManyConnectionsError, "it takes no more connections"),
        (asyncpg.CannotConnectNowError, "it is starting up or shutting down"),
        (asyncpg.OperatorInterventionError, "it is being stopped"),
        (asyncpg.PostgresConnectionError, "the connection was lost"),
        (ConnectionRefusedError, "nobody listens there; is it running?"),
        (TimeoutError, "no answer in time"),
        (OSError, "it cannot be reached"),
    )
    for kind, why in kinds:
        if isinstance(error, kind):
            return StoreError(f"{NAME}: {why}")
    code = getattr(error, "sqlstate", None)
    what = f" (SQLSTATE {code})" if code else ""
    return StoreError(f"{NAME}: it answered with {type(error).__name__}{what}")
