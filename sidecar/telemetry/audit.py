"""The audit trail: one record per decision and per answer, in a chain, before anybody acts on it.

Events become records on the loop; a thread writes whatever has gathered meanwhile as one batch.
Whoever must not go on without its record awaits ``written``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from sidecar import __version__, logs
from sidecar.config import Config
from sidecar.events import AdminActed, Bus, Decided, ParkedAnswered, ParkedChanged
from sidecar.model import JsonObject
from sidecar.telemetry.worker import Worker
from sidecar.wire import json

if TYPE_CHECKING:
    from sidecar.telemetry.audit_chain import Head

log = logging.getLogger("sidecar.audit")

MOST_WAITING: Final = 10_000
"""Records that wait to be written; beyond, what needs one is denied."""
PATIENCE: Final = 5.0
"""Seconds that a call waits for its record. A disk that takes longer counts as one that fails."""
SYNC_EVERY: Final = 1.0
"""Seconds within which what was written is on the disk. Killing the process loses nothing."""
_COMPLAIN_EVERY: Final = 10.0
LONGEST_TEXT: Final = 2048
"""Characters of one text in a record: URIs are as long as a stranger likes."""


class Trail(Protocol):
    """Where records go. Called from one thread, but for ``sync``, which has one of its own."""

    @property
    def head(self) -> Head: ...

    def append(self, records: Sequence[bytes]) -> Head:
        """Write all or nothing. Raises OSError."""
        ...

    def sync(self) -> None:
        """Raises OSError."""
        ...

    def close(self) -> None:
        """Idempotent. Raises OSError."""
        ...


class Audit:
    """``start`` before the first call, ``close`` after the last."""

    def __init__(
        self,
        trail: Trail,
        bus: Bus,
        stamp: JsonObject,
        *,
        name: str = "sidecar",
        clock: Callable[[], float] = time.time,
        patience: float = PATIENCE,
    ) -> None:
        """``stamp`` are keys that every record has, ``name`` is what the sidecar calls itself;
        ``clock`` in seconds since the epoch."""
        self._name = name
        self._trail = trail
        self._bus = bus
        self._stamp = stamp
        self._clock = clock
        self._patience = patience
        self._waiting: list[bytes] = []
        self._wake = asyncio.Event()
        self._next: asyncio.Future[bool] | None = None
        self._flying: asyncio.Future[bool] | None = None
        self._thread = Worker("audit")
        # Apart: a sync takes milliseconds, and records are not to wait for it.
        self._syncing = Worker("audit sync")
        self._task: asyncio.Task[None] | None = None
        self._stops: list[Callable[[], None]] = []
        self._ending = False
        self._overflowed = False
        self._lost = 0
        self._lost_why = ""
        self._complained = float("-inf")
        self.records = 0
        """Written so far by this process."""
        self.failed = 0
        """Lost so far by this process."""

    @property
    def waiting(self) -> int:
        """Records that are not written yet."""
        return len(self._waiting)

    # ------------------------------------------------------------------------ start and end

    async def start(self) -> None:
        """Open the trail and write that it goes on.

        Raises:
            OSError: it cannot be written.
        """
        first = self._record(
            "start",
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
        )
        await self._thread.run(lambda: self._trail.append([first]))
        self.records += 1
        log.info("audit: goes on with record %s", self._trail.head)
        self._stops = [
            self._bus.listen(Decided, self._decided),
            self._bus.listen(ParkedAnswered, self._answered),
            self._bus.listen(AdminActed, self._acted),
            self._bus.listen(ParkedChanged, self._parked_changed),
        ]
        self._task = asyncio.create_task(self._run(), name="audit")

    async def close(self) -> None:
        """Write what is left, and that it ends here. Idempotent."""
        while self._stops:
            self._stops.pop()()
        task, self._task = self._task, None
        if task is not None:
            self._put(self._record("stop"))
            self._ending = True
            self._wake.set()
            _, late = await asyncio.wait([task], timeout=self._patience)
            if late:
                log.error("audit: what was left is not written after %g s", self._patience)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._thread.end()
        self._syncing.end()

    def _end(self) -> None:
        """In the thread."""
        try:
            self._trail.close()
        except OSError as error:
            log.error("audit: %s", error.strerror)

    # ----------------------------------------------------------------------- what happened

    def _decided(self, event: Decided) -> None:
        decision = event.decision
        said: JsonObject = {
            "call": event.call,
            "phase": event.phase,
            "call_kind": event.kind,
            "server": event.server,
            "target": _clipped(event.target),
            "principal": event.principal,
            "session": event.session,
            "decision": decision.decision,
            "rule": decision.rule,
            "rules": decision.rules,
            "revision": decision.revision,
            "definition": event.definition,
        }
        if event.again:
            said["again"] = True
        if decision.mode == "audit":
            said |= {"would": decision.would or "allow", "would_rule": decision.would_rule}
        if decision.error is not None:
            said["error"] = decision.error.kind
        if decision.labels:
            said["labels"] = decision.labels
        if event.phase == "call":
            said["arguments"] = event.arguments()
        self._put(self._record("decision", **said, **logs.ids(event.trace)))

    def _acted(self, event: AdminActed) -> None:
        self._put(
            self._record(
                "admin",
                action=event.action,
                targets=tuple(_clipped(each) for each in event.targets),
                by=event.by,
                way=event.way,
                error=event.error,
            )
        )

    def _answered(self, event: ParkedAnswered) -> None:
        self._put(
            self._record(
                "answer",
                call=event.call,
                answer="approve" if event.approve else "deny",
                by=event.by,
                way=event.way,
                why=event.why,
                server=event.server,
                target=_clipped(event.target),
                principal=event.principal,
                session=event.session,
                rules=event.rules,
                revision=event.revision,
                definition=event.definition,
                arguments=event.arguments,
                **logs.ids(event.trace),
            )
        )

    def _parked_changed(self, event: ParkedChanged) -> None:
        """An approval is used: which call runs on whose word."""
        if event.state == "taken" and event.here:
            self._put(
                self._record(
                    "approval_used",
                    call=event.ran_as,
                    approval=event.call,
                    by=event.by,
                    way=event.way,
                    why=event.why,
                    server=event.server,
                    target=_clipped(event.target),
                    principal=event.principal,
                    session=event.session,
                )
            )

    def _record(self, kind: str, **said: object) -> bytes:
        at = logs.moment(self._clock())
        known = {key: value for key, value in said.items() if value not in ("", ())}
        return json.encode({"kind": kind, "at": at, **self._stamp, **known})

    # ----------------------------------------------------------------------------- writing

    def _put(self, record: bytes) -> None:
        """Never waits."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= MOST_WAITING:
            self._overflowed = True
            self._lose(1, "too many records wait to be written")
            return
        self._waiting.append(record)
        self._wake.set()

    async def written(self) -> bool:
        """Whether all that was told until now is written. Waits, but not for long."""
        flying, gathering = self._flying, self._next
        if flying is None and gathering is None:
            return True
        if self._task is None:
            return False
        waits = [each for each in (flying, gathering) if each is not None]
        _, late = await asyncio.wait(waits, timeout=self._patience)
        if late:
            self._complain(f"a record is not written after {self._patience:g} s")
            return False
        return all(each.result() for each in waits)

    async def _run(self) -> None:
        syncing = asyncio.create_task(self._sync_on(), name="audit sync")
        try:
            while self._waiting or not self._ending:
                await self._wake.wait()
                await self._flush()
        finally:
            syncing.cancel()
            await asyncio.gather(syncing, return_exceptions=True)
        await self._thread.run(self._end)
        log.info("audit: ends with record %s", self._trail.head)

    async def _sync_on(self) -> None:
        """What was written is on the disk soon; nobody waits for it."""
        synced = 0
        while True:
            await asyncio.sleep(SYNC_EVERY)
            if self.records != synced:
                synced = self.records
                await self._sync()

    async def _flush(self) -> None:
        """Write what has gathered."""
        self._wake.clear()
        records, self._waiting = self._waiting, []
        done, self._next = self._next, None
        overflowed, self._overflowed = self._overflowed, False
        if done is None:
            return
        lost = self._lost
        if lost:
            records.insert(0, self._record("lost", records=lost, why=self._lost_why))
        self._flying = done
        wrote = False
        try:
            await self._thread.run(lambda: self._trail.append(records))
            wrote = not overflowed
            self.records += len(records)
            self._lost -= lost
        except OSError as error:
            about = error.strerror or type(error).__name__
            self._lose(len(records) - (1 if lost else 0), about)
        finally:
            self._flying = None
            if not done.done():
                done.set_result(wrote)

    async def _sync(self) -> None:
        try:
            await self._syncing.run(self._trail.sync)
        except OSError as error:
            self._complain(f"what was written cannot be brought to the disk: {error.strerror}")

    def _lose(self, records: int, why: str) -> None:
        self._lost += records
        self.failed += records
        self._lost_why = why
        self._complain(f"{self._lost} records could not be written: {why}")

    def _complain(self, what: str) -> None:
        now = time.monotonic()
        if now >= self._complained + _COMPLAIN_EVERY:
            self._complained = now
            log.error("audit: %s", what)


def configured(config: Config, bus: Bus, otlp: Trail | None) -> Audit | None:
    """The trail that the configuration names, not started; ``None`` where it names none.
    ``otlp`` is the way to a receiver, where there is one."""
    run = secrets.token_hex(4)
    trail = otlp
    if config.audit.file is not None:
        from sidecar.telemetry.audit_file import ChainFile

        trail = ChainFile(config.audit.file, config.audit.rotate, {"run": run})
    elif config.audit.to == "off" or trail is None:
        return None
    return Audit(trail, bus, {"run": run}, name=config.name)


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"
