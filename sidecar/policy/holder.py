"""The policy in force, and how an edited one takes its place.

A load compiles, lints and runs the tests that stand beside the files; only a load without a
fault is taken over, in one assignment. Until then, and for as long as an edit is faulty, the
last good revision decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sidecar.config.types import PolicyConfig
from sidecar.events import Bus, PolicyLoaded
from sidecar.model import JsonObject
from sidecar.policy import files, load
from sidecar.policy.guard import Guarded
from sidecar.policy.testing import check
from sidecar.ports.policy import EngineOptions, PolicyErrors, PolicyFault
from sidecar.watch import INTERVAL, digest

log = logging.getLogger("sidecar.policy")

MOST_TOLD: Final = 20
"""Faults of a load that status and log repeat."""


@dataclass(frozen=True, slots=True)
class _Failure:
    at: datetime
    faults: tuple[PolicyFault, ...]


class PolicyHolder:
    """``start`` loads, or raises, and watches; ``close`` ends that. ``current`` decides."""

    def __init__(
        self,
        paths: Sequence[Path],
        config: PolicyConfig,
        *,
        schemas: Callable[[str, str], JsonObject | None] | None = None,
        interval: float = INTERVAL,
        bus: Bus | None = None,
    ) -> None:
        """``paths`` and ``config`` are ``policies`` and ``policy`` of ``sidecar.yaml``.

        ``schemas`` gives a tool's input schema by server and its own name for it, as far as
        they are known when files are loaded. ``interval`` is the seconds between two looks.
        ``bus`` is told of each load.
        """
        self._paths = tuple(paths)
        self._config = config
        self._schemas = schemas
        self._interval = interval
        self._bus = bus or Bus()
        self._current: Guarded | None = None
        self._loaded_at: datetime | None = None
        self._failure: _Failure | None = None
        self._listeners: list[Callable[[Guarded], None]] = []
        self._known = b""
        self._loading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def current(self) -> Guarded:
        """The policy in force. Take it once for a call: the next look may give another."""
        if self._current is None:
            raise RuntimeError("no policy is loaded yet")
        return self._current

    def listen(self, listener: Callable[[Guarded], None]) -> None:
        """Call ``listener`` in the event loop after each swap, with the policy now in force."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Load, then take over edits until ``close``.

        Raises:
            PolicyErrors: the first load has faults. There is nothing in force then.
        """
        if not await self.reload():
            assert self._failure is not None
            raise PolicyErrors(self._failure.faults)
        self._task = asyncio.create_task(self._watch(), name="policy files")

    async def close(self) -> None:
        """Stop watching; what is in force stays. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def reconfigure(self, paths: Sequence[Path], config: PolicyConfig) -> bool:
        """Other settings: see ``reload``."""
        self._paths = tuple(paths)
        self._config = config
        return await self.reload()

    async def reload(self) -> bool:
        """Load the files as they are now; whether they are in force.

        With any fault, also of a test beside them, the policy before stays in force, and
        ``status`` tells why.
        """
        async with self._loading:
            # What is looked at before the load is compared later: an edit in between is seen.
            self._known = await asyncio.to_thread(self._look)
            try:
                policy = await asyncio.to_thread(self._load)
            except PolicyErrors as errors:
                self._fail(errors.faults)
                return False
            except Exception:
                # A fault of ours must not end the watching: the last good policy decides on.
                log.exception("loading policies failed")
                fault = PolicyFault("policies", 0, 0, "", "loading failed; see the log", code="bug")
                self._fail((fault,))
                return False
            self._swap(policy)
        return True

    def _load(self) -> Guarded:
        config = self._config
        options = EngineOptions(default=config.default, schemas=self._schemas)
        policy = load(self._paths, engine=config.engine, shipped=config.shipped, options=options)
        faults = check(self._paths, engine=config.engine)
        if faults:
            raise PolicyErrors(faults)
        return policy

    def _swap(self, policy: Guarded) -> None:
        before = self._current
        self._current = policy
        self._loaded_at = datetime.now(UTC)
        self._failure = None
        for warning in policy.warnings[:MOST_TOLD]:
            log.warning("%s", warning)
        if before is None or before.revision != policy.revision:
            log.info("policy revision %s is in force", policy.revision[:12])
            for listener in tuple(self._listeners):
                listener(policy)
        self._bus.publish(PolicyLoaded(revision=policy.revision))

    def _fail(self, faults: Sequence[PolicyFault]) -> None:
        self._failure = _Failure(datetime.now(UTC), tuple(faults))
        for fault in faults[:MOST_TOLD]:
            log.error("%s", fault)
        if self._current is not None:
            log.error("the policies are faulty; revision %s stays", self._current.revision[:12])
        revision = self._current.revision if self._current is not None else ""
        self._bus.publish(PolicyLoaded(revision=revision, faulty=True))

    async def _watch(self) -> None:
        """Reload when the files differ from those last loaded, and have settled.

        Settled: two looks in a row are the same, so that a file is not read while it is written.
        Polling sees an edited file, a replaced one, and the swapped links of a ConfigMap.
        """
        before = self._known
        while True:
            await asyncio.sleep(self._interval)
            now = await asyncio.to_thread(self._look)
            if now == before != self._known:
                await self.reload()
            before = now

    def _look(self) -> bytes:
        """What the files are and hold now."""
        try:
            found = files.find(self._paths)
        except PolicyErrors:
            found = list(self._paths)
        names = hashlib.sha256("\0".join(map(str, found)).encode("utf-8", "surrogateescape"))
        return names.digest() + digest(found)

    def status(self) -> JsonObject:
        """``{revision, engine, default, shipped, paths, loaded_at, warnings, error}``.

        ``error`` is absent while the files as they are now are in force.
        """
        status: JsonObject = {
            "revision": None if self._current is None else self._current.revision,
            "engine": self._config.engine,
            "default": self._config.default,
            "shipped": list(self._config.shipped),
            "paths": [str(path) for path in self._paths],
            "loaded_at": _moment(self._loaded_at),
            "warnings": [
                str(each) for each in (() if self._current is None else self._current.warnings)
            ][:MOST_TOLD],
        }
        if self._failure is not None:
            told = [str(fault) for fault in self._failure.faults[:MOST_TOLD]]
            status["error"] = {"at": _moment(self._failure.at), "faults": told}
        return status


def _moment(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat(timespec="seconds").replace("+00:00", "Z")
