"""What is kept of a decision: an event for whoever listens, a line of the log, an input's copy."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sidecar.events import Bus, Decided
from sidecar.gate import spans
from sidecar.model import Call, Caller, Decision, JsonObject, Phase
from sidecar.policy.lines import beside
from sidecar.ports.tracer import Tracer
from sidecar.wire import json

log = logging.getLogger("sidecar.gate")

MOST_BYTES: Final = 64 << 20
"""Of one file of inputs; then it becomes ``.1`` and a new one begins."""
MOST_WAITING: Final = 4096
"""Records that wait to be written; beyond, the oldest are lost and that is told."""


def arguments(call: Call) -> object:
    """What a caller sent for this call, as policy sees it: the variable ``args``."""
    name = "argument" if call.method == "completion/complete" else "arguments"
    return call.params.get(name) or {}


class Records:
    """Tells of decisions. ``inputs`` keeps what was decided upon as well."""

    def __init__(
        self, bus: Bus, inputs: Inputs | None = None, tracer: Tracer | None = None
    ) -> None:
        """``tracer`` is ``None`` where no span is kept."""
        self._bus = bus
        self.inputs = inputs
        self._tracer = tracer

    def quiet(self, phase: Phase, caller: Caller, decision: Decision) -> bool:
        """Whether nobody would hear of it."""
        if self._tracer is not None and spans.wanted(phase, caller, decision):
            return False
        return (
            decision.decision == "allow"
            and decision.mode == "enforce"
            and self.inputs is None
            and not self._bus.wanted(Decided)
        )

    def tell(
        self,
        phase: Phase,
        call: Call,
        caller: Caller,
        decision: Decision,
        *,
        seconds: float = 0.0,
        given: JsonObject | None = None,
        again: bool = False,
    ) -> None:
        """A call was decided; ``given`` is the input, where inputs are kept. ``again``: it was
        held before, which was told then."""
        held = again and decision.decision == "ask"
        if not held and (decision.decision != "allow" or decision.mode == "audit"):
            _log(phase, call, caller, decision)
        if self.inputs is not None and given is not None:
            self.inputs.keep(phase, call, decision, given)
        if self._tracer is not None and spans.wanted(phase, caller, decision):
            spans.decided(self._tracer, phase, call, caller, decision, seconds=seconds, again=again)
        if self._bus.wanted(Decided):
            self._bus.publish(
                Decided(
                    trace=caller.trace,
                    call=call.id,
                    phase=phase.value,
                    target=call.target,
                    principal=caller.principal.name,
                    decision=recorded(decision),
                    server=call.server,
                    kind=call.kind.value,
                    session=caller.session,
                    definition=call.tool.digest if call.tool is not None else "",
                    arguments=_digest(call),
                    microseconds=seconds * 1e6,
                    again=again,
                )
            )


def recorded(decision: Decision) -> Decision:
    """The decision without messages that may quote the input."""
    if decision.message_constant and not decision.reasons:
        return decision
    message = decision.message if decision.message_constant else ""
    return replace(decision, message=message, reasons=())


def _digest(call: Call) -> Callable[[], str]:
    return lambda: json.digest(arguments(call))


def _log(phase: Phase, call: Call, caller: Caller, decision: Decision) -> None:
    """One line for a person; no argument, no text that may quote one."""
    who, what = caller.principal.name, call.target
    if decision.decision != "allow":
        verb = "denied" if decision.decision == "deny" else "held for approval"
        log.info("%s of %s for %s: %s by %s", phase, what, who, verb, decision.rule)
    beside(log, f"{phase} of {what} for {who}", decision)


class Inputs:
    """A file of inputs, for ``sidecar policy replay``. Only the sidecar's user can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: deque[tuple[str, Phase, Call, Decision, JsonObject]] = deque()
        self._lost = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError: the file cannot be written."""
        await asyncio.to_thread(self._write, b"")
        self._task = asyncio.create_task(self._run(), name="policy inputs")

    async def close(self) -> None:
        """Write what is left. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._flush()

    def keep(self, phase: Phase, call: Call, decision: Decision, given: JsonObject) -> None:
        """Never waits."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._lost += 1
        at = datetime.fromtimestamp(time.time(), UTC).isoformat().replace("+00:00", "Z")
        self._waiting.append((at, phase, call, decision, given))
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        from sidecar.policy.replay import record

        lost, self._lost = self._lost, 0
        if lost:
            log.error("%d inputs of decisions were not recorded: there were too many", lost)
        lines: list[bytes] = []
        while self._waiting:
            at, phase, call, decision, given = self._waiting.popleft()
            line = record(phase, decision, given=given, at=at, call=call.id, target=call.target)
            lines.append(line + b"\n")
        if not lines:
            return
        try:
            await asyncio.to_thread(self._write, b"".join(lines))
        except OSError as error:
            log.error("%s: %d inputs were not recorded: %s", self._path, len(lines), error.strerror)

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        try:
            os.fchmod(file, 0o600)
            size = os.fstat(file).st_size
            if size and size + len(data) > MOST_BYTES:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                os.close(file)
                file = os.open(self._path, flags, 0o600)
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)
