"""Servers that come and go while the sidecar runs: in the store, and running on every node.

What the store holds is what runs. A change reaches a node through its watch, and at the latest
with the next reconciliation.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

from sidecar.config import Config, CredentialConfig, RuntimeServers, ServerConfig
from sidecar.config.nodes import Plain
from sidecar.model import JsonObject, ServerStatus, State
from sidecar.ports.store import Change, Record, Store, StoreError
from sidecar.ports.upstream import Upstream
from sidecar.upstream.backoff import Backoff
from sidecar.upstream.runtime import (
    MOST_BYTES,
    PREFIX,
    NotFound,
    Refused,
    check_name,
    decode_record,
    encode,
    server_config,
    warnings,
)
from sidecar.upstream.tasks import cancelled
from sidecar.wire.json import canonical

log = logging.getLogger("sidecar.registry")

AT_ONCE = 32
"""Servers whose first attempts run side by side when many are started."""

BATCH_WAIT = 0.25
"""Seconds until the next ones are started although some of these hang."""

FIRST_LOOK = 5.0
"""Seconds that the first look into the store may delay the start; it goes on after that."""

TOGETHER = 0.05
"""Seconds in which changes of the store are gathered, so that many are one change here."""


JITTER = 0.25
"""A period between two comparisons is longer or shorter by this part of it, at most."""


class Running(Upstream, Protocol):
    """A server as the registry holds it."""

    config: ServerConfig

    def start(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a server may not be dialled: the rule, and a sentence. ``allowable`` says that a rule
    of the operator could allow it."""

    rule: str
    message: str
    allowable: bool = False


Check: TypeAlias = Callable[[ServerConfig, str], Awaitable[Denial | None]]
"""The egress check of a server that somebody (empty: nobody by name) wants to add. ``None``: it
may be dialled."""


@dataclass(slots=True)
class Rules:
    """What the configuration says; ``configured`` maps its names to what they are."""

    configured: Mapping[str, str]
    credentials: Mapping[str, CredentialConfig]
    runtime: RuntimeServers
    separator: str
    reconcile: float | None

    @classmethod
    def of(cls, config: Config, others: Mapping[str, str] | None = None) -> Rules:
        """``others`` are names of the same name space that are no servers (harnesses)."""
        names = dict.fromkeys(config.servers, "server") | dict(others or {})
        return cls(
            names, config.credentials, config.runtime_servers, config.separator, config.reconcile
        )


@dataclass(slots=True)
class _Entry:
    """One record of the store as it is here: it runs, or ``state`` and ``error`` say why not."""

    name: str
    version: int
    options: JsonObject | None
    refused: Refused | None = None
    server: Running | None = None
    state: State = State.FAILED
    error: str | None = None

    @property
    def status(self) -> ServerStatus:
        if self.server is not None:
            return self.server.status
        command = self.options is not None and "command" in self.options
        return ServerStatus(
            self.name,
            "runtime",
            "stdio" if command else "http",
            self.state,
            error=self.error,
        )


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a reconciliation changed here: names, in order. ``servers`` is how many there are."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    servers: int = 0

    def as_json(self) -> JsonObject:
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
            "servers": self.servers,
        }


@dataclass(slots=True)
class _Tally:
    """Names that an application of records changed."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class Registry:
    """``start`` begins to follow the store. Used inside the loop that serves.

    ``make`` makes a server that is not started; ``end`` closes one without waiting; ``placed``
    is called when ``running`` is other than before. Without ``check``, nothing that has to be
    checked is added or runs. ``shared`` says whether other nodes use the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        shared: bool,
        rules: Rules,
        make: Callable[[ServerConfig], Running],
        end: Callable[[Running], None],
        placed: Callable[[], None],
        check: Check | None = None,
    ) -> None:
        self._store = store
        self._shared = shared
        self._rules = rules
        self._make = make
        self._end = end
        self._placed = placed
        self._check = check
        self._entries: dict[str, _Entry] = {}
        # Whoever reads or writes the store and then changes entries holds it, so that what is
        # older never replaces what is newer.
        self._lock = asyncio.Lock()
        self._fresh: list[Running] = []
        self._waiting: deque[Running] = deque()
        self._starts = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._lost = False
        self._closed = False

    # ---------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Start what the store has, waiting for no server, and follow the store from now on."""
        if self._tasks or self._closed:
            return
        self._tasks = [asyncio.create_task(self._start_waiting(), name="registry: starts")]
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(FIRST_LOOK):
                await self.reconcile()
        self._tasks += [
            asyncio.create_task(self._follow(), name="registry: store"),
            asyncio.create_task(self._periodically(), name="registry: reconcile"),
        ]

    async def close(self) -> None:
        """Stop following and end every server here; the store keeps them. Idempotent."""
        self._closed = True
        await cancelled(*self._tasks)
        self._waiting.clear()
        for entry in self._entries.values():
            if entry.server is not None:
                self._end(entry.server)
        self._entries.clear()

    def configure(self, rules: Rules) -> None:
        """Take over another configuration: what it shadows ends, what it no longer does runs."""
        self._rules = rules
        self._wake.set()
        tally = _Tally()
        for entry in list(self._entries.values()):
            self._settle(entry, tally)
        if tally:
            self._placed()
        self._begin()

    # ------------------------------------------------------------------------- what is asked

    def servers(self) -> list[ServerStatus]:
        """Every server of the store as it is here, sorted by name."""
        return [entry.status for _, entry in sorted(self._entries.items())]

    def running(self) -> list[tuple[Upstream, ServerConfig]]:
        """Those that run here, sorted by name."""
        return [
            (entry.server, entry.server.config)
            for _, entry in sorted(self._entries.items())
            if entry.server is not None
        ]

    async def add(self, name: str, options: Plain, *, by: str = "") -> bool:
        """Check a server, store it, and connect to it here; other nodes follow. An existing one
        is replaced; whether there was none.

        Raises:
            Refused: and why.
            StoreError: the store is lost; nothing was added.
        """
        rules = self._rules
        check_name(name, rules.separator, rules.configured, self._entries)
        config = server_config(name, options, rules.credentials, rules.runtime, shared=self._shared)
        value = encode(options, by)
        if len(value) > MOST_BYTES:
            raise Refused("options", f"the options have more than {MOST_BYTES} bytes")
        await self._checked(config, by)
        async with self._lock:
            # The check took its time.
            check_name(name, self._rules.separator, self._rules.configured, self._entries)
            key = PREFIX + name
            there = await self._store.get(key)
            if there is None and len(self._entries) >= self._rules.runtime.most:
                raise Refused(
                    "too_many",
                    f"there are {self._rules.runtime.most} already; remove some, or raise "
                    "runtime_servers.most",
                )
            if there is None or not _same(there, options):
                there_now = await self._store.put(key, value)
                log.info("server %s was added by %s", name, by or "a caller of Python")
                for each in warnings(options):
                    log.warning("server %s: %s", name, each)
            else:
                there_now = there
            self._apply([there_now])
        return there is None

    async def remove(self, name: str, *, by: str = "") -> None:
        """Take a server out of the store and close every leg of it here; other nodes follow.

        Raises:
            NotFound: no such server was added at run time.
            Refused: it is a configured one, and the store has none of this name.
            StoreError: the store is lost; nothing was removed.
        """
        configured = self._rules.configured.get(name)
        # One that is shadowed can be taken out: it would come back with the name.
        if configured is not None and name not in self._entries:
            raise Refused(
                "configured",
                f"{name} is a {configured} of sidecar.yaml; remove it there",
            )
        async with self._lock:
            try:
                found = await self._store.delete(PREFIX + name)
            except ValueError:
                found = False  # No name at all, so nobody has it.
            if self._drop(name):
                self._placed()
        if not found:
            raise NotFound(f"no server of the name {name} was added")
        log.info("server %s was removed by %s", name, by or "a caller of Python")

    async def reconcile(self) -> Reconciled:
        """Compare with the store now.

        Raises:
            StoreError: the store is lost; nothing was changed.
        """
        async with self._lock:
            records = await self._store.list(PREFIX)
            tally = self._apply(records, complete=True)
        return Reconciled(
            tuple(sorted(tally.added)),
            tuple(sorted(tally.removed)),
            tuple(sorted(tally.changed)),
            len(self._entries),
        )

    async def _checked(self, config: ServerConfig, by: str) -> None:
        """Raises Refused where the egress check says no, or cannot be made."""
        if not self._rules.runtime.check:
            return
        if self._check is None:
            raise Refused("egress", _NO_CHECK)
        denial = await self._check(config, by)
        if denial is not None:
            detail = f"{denial.message}; {_ALLOW}" if denial.allowable else denial.message
            raise Refused(denial.rule, detail)

    # ------------------------------------------------------------------- following the store

    async def _follow(self) -> None:
        """Watch, list, apply; begin anew whenever that fails."""
        backoff = Backoff(base=0.5, cap=30.0)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._watch()
            except StoreError as error:
                if not self._lost:
                    log.warning("servers added at run time are not followed: %s", error)
                self._lost = True
            except Exception:
                # A fault of ours must not end this for good.
                log.exception("following the store failed")
            backoff.ran(loop.time() - began)
            await asyncio.sleep(backoff.failed())

    async def _watch(self) -> None:
        watch = self._store.watch(PREFIX)
        try:
            await self.reconcile()
            if self._lost:
                self._lost = False
                log.info("servers added at run time are followed again")
            pending: asyncio.Future[Change] | None = None
            try:
                while True:
                    pending = pending or asyncio.ensure_future(anext(watch))
                    try:
                        changes = [await pending]
                    except StopAsyncIteration:
                        return
                    pending = None
                    loop = asyncio.get_running_loop()
                    until = loop.time() + TOGETHER
                    while (left := until - loop.time()) > 0:
                        pending = pending or asyncio.ensure_future(anext(watch))
                        await asyncio.wait({pending}, timeout=left)
                        if not pending.done():
                            break
                        if pending.exception() is not None:
                            break  # It is raised by the next round.
                        changes.append(pending.result())
                        pending = None
                    await self._heard(changes)
            finally:
                if pending is not None:
                    pending.cancel()
                    await asyncio.wait({pending})
                    if not pending.cancelled():
                        pending.exception()
        finally:
            close = getattr(watch, "aclose", None)
            if close is not None:
                await close()

    async def _heard(self, changes: Iterable[Change]) -> None:
        newest = {change.key: change.record for change in changes}
        async with self._lock:
            records = [record for record in newest.values() if record is not None]
            gone: list[str] = []
            for key, record in newest.items():
                if record is None and key.removeprefix(PREFIX) in self._entries:
                    # It may have been added again since.
                    there = await self._store.get(key)
                    if there is None:
                        gone.append(key.removeprefix(PREFIX))
                    else:
                        records.append(there)
            dropped = [name for name in gone if self._drop(name)]
            tally = self._apply(records)
            if dropped and not tally:
                self._placed()

    async def _periodically(self) -> None:
        while True:
            self._wake.clear()
            period = self._rules.reconcile
            if period is not None:
                # Nodes that were started together are not to ask together.
                period *= random.uniform(1 - JITTER, 1 + JITTER)
            try:
                async with asyncio.timeout(period):
                    await self._wake.wait()
                continue  # Another period counts from now on.
            except TimeoutError:
                pass
            try:
                found = await self.reconcile()
            except StoreError as error:
                log.debug("not reconciled: %s", error)
                continue
            if found.added or found.removed or found.changed:
                log.info("reconciled with the store: %s", found.as_json())

    # ------------------------------------------------------------------ what runs, in one step

    def _apply(self, records: Iterable[Record], *, complete: bool = False) -> _Tally:
        """Bring the entries in step with records; ``complete`` says that there are no others."""
        tally = _Tally()
        if self._closed:
            return tally
        seen = set()
        for record in records:
            name = record.key.removeprefix(PREFIX)
            seen.add(name)
            entry = self._entries.get(name)
            if entry is not None and entry.version >= record.version:
                continue
            try:
                options, refused = decode_record(record.value), None
            except Refused as error:
                options, refused = None, error
            if entry is None:
                entry = self._entries[name] = _Entry(name, record.version, options, refused)
                tally.added.append(name)
            else:
                entry.version, entry.options, entry.refused = record.version, options, refused
                tally.changed.append(name)
            self._settle(entry, None)
        if complete:
            for name in self._entries.keys() - seen:
                self._drop(name)
                tally.removed.append(name)
        if tally:
            self._placed()
        self._begin()
        return tally

    def _settle(self, entry: _Entry, tally: _Tally | None) -> None:
        """Run it, leave it running, or say why it does not run."""
        before = entry.server
        config = self._config(entry)
        if config is None or before is None or before.config != config:
            if before is not None:
                entry.server = None
                self._end(before)
            if config is not None:
                entry.server = self._make(config)
                self._fresh.append(entry.server)
        if tally is not None and entry.server is not before:
            tally.changed.append(entry.name)

    def _config(self, entry: _Entry) -> ServerConfig | None:
        """What it is to run as; ``None`` after noting in the entry why it is not to run."""
        rules, said = self._rules, entry.error
        entry.error = None
        if entry.name in rules.configured:
            entry.state = State.SHADOWED
            entry.error = f"sidecar.yaml has a {rules.configured[entry.name]} of this name"
            return None
        entry.state = State.FAILED
        try:
            check_name(entry.name, rules.separator, rules.configured)
            if entry.options is None:
                raise entry.refused or Refused("options", "its record cannot be read")
            if rules.runtime.check and self._check is None:
                raise Refused("egress", _NO_CHECK)
            if entry.server is None and self._count() >= rules.runtime.most:
                raise Refused("too_many", "there are more than runtime_servers.most")
            return server_config(
                entry.name,
                cast(Plain, entry.options),
                rules.credentials,
                rules.runtime,
                shared=self._shared,
            )
        except Refused as error:
            if said != error.detail:
                log.warning("server %s does not run here: %s", entry.name, error.detail)
            entry.error = error.detail
            return None

    def _count(self) -> int:
        return sum(entry.server is not None for entry in self._entries.values())

    def _drop(self, name: str) -> bool:
        """Forget an entry and end its server; whether there was one."""
        entry = self._entries.pop(name, None)
        if entry is not None and entry.server is not None:
            self._end(entry.server)
        return entry is not None

    # ---------------------------------------------------------------------------- starting

    def _begin(self) -> None:
        """Start what was made: a few at once, of many some at a time."""
        fresh, self._fresh = self._fresh, []
        if len(fresh) <= AT_ONCE:
            for server in fresh:
                server.start()
        else:
            self._waiting.extend(fresh)
            self._starts.set()

    async def _start_waiting(self) -> None:
        while True:
            await self._starts.wait()
            self._starts.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
                batch = [server for server in batch if self._is_current(server)]
                for server in batch:
                    server.start()
                settling = [asyncio.ensure_future(server.settled()) for server in batch]
                try:
                    if settling:
                        await asyncio.wait(settling, timeout=BATCH_WAIT)
                finally:
                    for each in settling:
                        each.cancel()

    def _is_current(self, server: Running) -> bool:
        entry = self._entries.get(server.name)
        return entry is not None and entry.server is server


def _same(record: Record, options: Plain) -> bool:
    """Whether a record stands for these options already."""
    try:
        return canonical(decode_record(record.value)) == canonical(options)
    except Refused:
        return False


_ALLOW = (
    "if it is meant to be reached, allow it with a rule of phase connect in a file of policies, or "
    "leave the check of addresses out with runtime_servers: {check: false}"
)
_NO_CHECK = (
    "addresses cannot be checked here, so nothing can be added; "
    "runtime_servers: {check: false} adds without a check"
)
