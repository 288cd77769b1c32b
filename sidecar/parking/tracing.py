"""The spans of a wait, and of the answer that ends it.

The record carries both contexts, so that a call which comes back for its approval, maybe at
another sidecar and a day later, links to who parked it and to who approved it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sidecar.model import Admitted, Call, Caller, Decision, TraceContext
from sidecar.parking.asking import Asked
from sidecar.parking.record import Parked
from sidecar.ports.tracer import Span, Tracer
from sidecar.semconv import Key, Names


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is asked (see ``Asked``), by a caller who is under the span of the wait."""

    call: Call
    caller: Caller
    decision: Decision
    anew: Callable[[], Admitted]
    span: Span

    def saw(self, parked: Parked) -> None:
        """Put on the span what the record was at when the wait for it ended."""
        span = self.span
        if not span.sampled:
            return
        span.set(Key.APPROVAL, parked.id)
        span.set(Key.APPROVAL_STATE, parked.state.value)
        span.set(Key.RULES, parked.rules)
        if parked.answered_by:
            span.set(Key.APPROVAL_BY, parked.answered_by)
            span.set(Key.APPROVAL_WAY, parked.way)
            span.set(Key.APPROVAL_WAITED, round(parked.answered_at - parked.asked_at, 3))
        if parked.trace[3:52] != span.context.traceparent[3:52]:
            span.link(TraceContext(parked.trace))
        span.link(TraceContext(parked.answer_trace))


def wait(tracer: Tracer, asked: Asked) -> Waiting:
    """Begin the span of a wait; its ``end`` is owed."""
    call, caller = asked.call, asked.caller
    span = tracer.start(Names.APPROVAL, "internal", caller.trace)
    if span.sampled:
        span.set(Key.CALL, call.id)
        span.set(Key.TARGET, call.target)
        span.set(Key.SERVER, call.server)
        caller = replace(caller, trace=span.context)
    return Waiting(call, caller, asked.decision, asked.anew, span)


def answer(tracer: Tracer, parked: Parked | None, *, approve: bool, by: str, way: str) -> Span:
    """Begin the span of an answer, below the wait that it ends; its ``end`` is owed."""
    parent = TraceContext(parked.trace if parked is not None else "")
    span = tracer.start(Names.ANSWER, "internal", parent)
    if span.sampled:
        span.set(Key.APPROVAL_STATE, "approved" if approve else "denied")
        span.set(Key.APPROVAL_BY, by)
        span.set(Key.APPROVAL_WAY, way)
        if parked is not None:
            span.set(Key.APPROVAL, parked.id)
            span.set(Key.TARGET, parked.tool)
            span.set(Key.SERVER, parked.server)
            span.set(Key.PRINCIPAL, parked.principal)
    return span
