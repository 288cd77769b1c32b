"""One call: gate, send, answer. Everything that goes to a server on a caller's behalf does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from sidecar.config import Retry
from sidecar.events import AttemptFinished, Bus, CallFinished
from sidecar.gate.spans import said
from sidecar.gateway import spans
from sidecar.gateway.answers import outcome, received, stamped
from sidecar.gateway.capture import Capture
from sidecar.gateway.retry import pause
from sidecar.gateway.roster import Roster
from sidecar.model import (
    Admitted,
    Call,
    Caller,
    Decision,
    Fields,
    Kind,
    NotSent,
    Ran,
    Refused,
    RpcError,
    Tool,
    TraceContext,
    Unavailable,
)
from sidecar.ports.gate import Gate
from sidecar.ports.tracer import CURRENT, Span, Tracer
from sidecar.ports.upstream import Upstream
from sidecar.semconv import Key

_UNKNOWN = "failed"
_DECISIONS = 3
"""How often a call is decided anew because its tool changed while it waited."""

Send: TypeAlias = Callable[[Upstream, Call, Caller], Awaitable[Fields]]


def _request(upstream: Upstream, call: Call, caller: Caller) -> Awaitable[Fields]:
    return upstream.request(call.method, call.params, caller)


@dataclass(slots=True, eq=False)
class _Run:
    """What is known of a call while it runs."""

    joins: bool
    name: str
    """Of its spans."""
    outcome: str = _UNKNOWN
    attempts: int = 0
    decision: Decision | None = None
    error: str | None = None


class Calls:
    """Runs calls. Routing is done before, shaping for the caller's era after."""

    def __init__(self, roster: Roster, gate: Gate, tracer: Tracer, bus: Bus, retry: Retry) -> None:
        self._roster = roster
        self._gate = gate
        self._tracer = tracer
        self._bus = bus
        self.retry = retry
        self.capture = Capture()

    async def run(
        self, call: Call, caller: Caller, send: Send = _request, *, joins: bool = False
    ) -> Fields:
        """Decide, send, and answer. ``joins``: it begins nothing that was not approved before,
        so nobody is asked again; a denial counts all the same.

        Raises:
            RpcError, Unavailable: as ``Upstream.request``.
        """
        name = spans.name(call)
        span = self._tracer.start(name, "server", caller.trace)
        if span.sampled:
            spans.asked(span, call.method, caller)
            spans.describe(span, call, caller)
            self.capture.arguments(span, call)
        within = spans.under(caller, span.context)
        work = CURRENT.begin(span.context)
        run = _Run(joins, name)
        began = time.perf_counter()
        failed: BaseException | None = None
        try:
            fields = await self._answer(call, within, send, run, span)
            if span.sampled:
                self.capture.result(span, call, fields)
            return fields
        except BaseException as failure:
            failed = failure
            if run.outcome == _UNKNOWN:
                run.outcome = _outcome(failure)
            raise
        finally:
            if span.sampled:
                span.set(Key.OUTCOME, run.outcome)
                span.set(Key.ATTEMPTS, run.attempts)
            if failed is None:
                run.error = spans.error_of(run.outcome)
                span.end(run.error)
            else:
                run.error = spans.failed(span, failed)
            if self._bus.wanted(CallFinished):
                self._finished(call, caller, run, began, span.context)
            work.over()

    async def _answer(
        self, call: Call, caller: Caller, send: Send, run: _Run, span: Span
    ) -> Fields:
        for _ in range(_DECISIONS):
            if run.joins:
                admitted = await self._joined(call, caller)
            else:
                admitted = await self._gate.admit(call, caller)
            run.decision = admitted.decision
            if span.sampled:
                said(span, admitted.decision)
            if isinstance(admitted, Refused):
                return _refused(admitted, call, run)
            if not await self._outdated(call, admitted):
                break
        else:
            raise Unavailable(
                call.server, "the tool changes faster than its calls can be decided", ran="no"
            )
        if admitted.settle is None:
            return await self._run(call, caller, send, run, admitted)
        try:
            answer = await self._run(call, caller, send, run, admitted)
        except BaseException as failure:
            await admitted.settle(failure)
            raise
        await admitted.settle(answer)
        return answer

    async def _joined(self, call: Call, caller: Caller) -> Admitted | Refused:
        decision = self._gate.decide(call, caller)
        if decision.decision != "deny":
            return Admitted(decision)
        return await self._gate.admit(call, caller)

    async def _outdated(self, call: Call, admitted: Admitted) -> bool:
        """Whether another thing was admitted than what would be sent now."""
        try:
            changed = self._changed(call)
        except Unavailable as gone:
            if admitted.settle is not None:
                await admitted.settle(NotSent(gone.why))
            raise
        if changed and admitted.settle is not None:
            await admitted.settle(NotSent("the tool changed as its call was about to be sent"))
        return changed

    async def _run(
        self, call: Call, caller: Caller, send: Send, run: _Run, admitted: Admitted
    ) -> Fields:
        notify = self._gate.notify(call, caller, admitted)
        sender = caller if notify is caller.notify else spans.answering(caller, notify)
        try:
            fields = await self._send(call, sender, send, run)
            if call.kind is not Kind.ACP:
                # What a harness writes there is ours: its agent has no way to.
                fields = received(fields)
        except RpcError as error:
            # What a server says of its failure is content like a result is.
            told = await self._gate.failed(call, caller, admitted, error)
            if isinstance(told, Refused):
                return _refused(told, call, run)
            if told is error:
                raise
            raise told from None
        result = await self._gate.result(call, caller, admitted, fields)
        if isinstance(result, Refused):
            return _refused(result, call, run)
        run.outcome = outcome(call, result)
        return stamped(result, call.id)

    def _changed(self, call: Call) -> bool:
        """Whether the tool was redefined while its call waited; the call then holds the new one.

        What a person or a rule agreed to is the definition that was there when they were asked.
        """
        tool = call.tool
        if tool is None:
            return False
        if not self._roster.fresh(tool.server):
            self._roster.refresh()
        shelf = self._roster.catalog.shelf(tool.server)
        entry = shelf.by_key["tools"].get(tool.upstream_name) if shelf is not None else None
        now = entry.tool if entry is not None else None
        if now is tool:
            return False
        if now is None:
            raise Unavailable(tool.server, "the tool is no longer there", ran="no", permanent=True)
        call.tool = now
        return _decided_by(now) != _decided_by(tool)

    async def _send(self, call: Call, caller: Caller, send: Send, run: _Run) -> Fields:
        repeatable = call.tool is None or call.tool.hints.read_only or call.tool.hints.idempotent
        ran: Ran = "no"
        while True:
            run.attempts += 1
            slot = self._roster.slots.get(call.server)
            if slot is None:
                raise Unavailable(call.server, "the server was removed", ran=ran, permanent=True)
            span = self._tracer.start(run.name, "client", caller.trace)
            if span.sampled:
                spans.describe(span, call, caller)
                spans.peer(span, slot.config)
                span.set(Key.ATTEMPT, run.attempts)
            began = time.perf_counter()
            error: str | None = None
            try:
                fields = await send(slot.upstream, call, spans.attempting(caller, span))
            except Unavailable as failure:
                error = spans.failed(span, failure)
                # What an earlier attempt may have done is not undone by one that did nothing.
                ran = failure.ran if ran == "no" else ran
                now = asyncio.get_running_loop().time()
                wait = pause(
                    failure,
                    run.attempts,
                    self.retry,
                    repeatable=repeatable,
                    now=now,
                    deadline=caller.deadline,
                )
                if wait is None:
                    if failure.ran == ran:
                        raise
                    raise _having(failure, ran) from failure
            except BaseException as failure:
                error = spans.failed(span, failure)
                raise
            else:
                wanted = span.sampled or self._bus.wanted(AttemptFinished)
                error = spans.error_of(outcome(call, fields)) if wanted else None
                span.end(error)
                return fields
            finally:
                if self._bus.wanted(AttemptFinished):
                    self._attempted(call, slot.config.transport, began, error, span.context)
            await asyncio.sleep(wait)

    def _attempted(
        self, call: Call, transport: str, began: float, error: str | None, trace: TraceContext
    ) -> None:
        self._bus.publish(
            AttemptFinished(
                trace=trace,
                method=call.method,
                server=call.server,
                target=call.target,
                kind=call.kind.value,
                transport=transport,
                seconds=time.perf_counter() - began,
                error=error or "",
            )
        )

    def _finished(
        self, call: Call, caller: Caller, run: _Run, began: float, trace: TraceContext
    ) -> None:
        self._bus.publish(
            CallFinished(
                trace=trace,
                call=call.id,
                method=call.method,
                server=call.server,
                target=call.target,
                principal=caller.principal.name,
                session=caller.session,
                outcome=run.outcome,
                seconds=time.perf_counter() - began,
                attempts=run.attempts,
                kind=call.kind.value,
                decision=run.decision.decision if run.decision is not None else "",
                rule=run.decision.rule if run.decision is not None else "",
                error=run.error or "",
            )
        )


def _refused(refused: Refused, call: Call, run: _Run) -> Fields:
    """The gate's own answer; one that cannot be a result is raised."""
    run.outcome = refused.kind
    run.decision = refused.decision
    if refused.error is not None:
        raise refused.error
    return stamped(refused.result, call.id)


def _having(failure: Unavailable, ran: Ran) -> Unavailable:
    return Unavailable(
        failure.server,
        failure.why,
        ran=ran,
        retry_in=failure.retry_in,
        permanent=failure.permanent,
    )


def _decided_by(tool: Tool) -> tuple[object, ...]:
    return (tool.digest, tool.hints, tool.gated, tool.gate_set, tool.trusted)


def _outcome(failure: BaseException) -> str:
    if isinstance(failure, Unavailable):
        return "unavailable"
    if isinstance(failure, RpcError):
        return "rpc_error"
    if isinstance(failure, asyncio.CancelledError):
        return "cancelled"
    return "failed"
