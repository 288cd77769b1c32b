"""The span of a decision: made after it, because only then is it known to be worth one."""

from __future__ import annotations

import time

from sidecar.model import Call, Caller, Decision, Phase
from sidecar.ports.tracer import Span, Tracer, sampled
from sidecar.semconv import Key, Names


def wanted(phase: Phase, caller: Caller, decision: Decision) -> bool:
    """Whether it gets one: in a trace that is kept, each decision about a call, and of those
    about results the ones in which a rule had a part."""
    return sampled(caller.trace) and (
        phase is not Phase.RESULT
        or decision.decision != "allow"
        or bool(decision.rules or decision.audited or decision.labels or decision.error)
    )


def said(span: Span, decision: Decision) -> None:
    """Say what policy said, and what it would have said were all of its rules in force."""
    span.set(Key.DECISION, decision.decision)
    span.set(Key.RULE, decision.rule)
    if decision.revision:
        span.set(Key.REVISION, decision.revision)
    if decision.would is not None:
        span.set(Key.WOULD, decision.would)
        span.set(Key.WOULD_RULE, decision.would_rule)


def decided(
    tracer: Tracer,
    phase: Phase,
    call: Call,
    caller: Caller,
    decision: Decision,
    *,
    seconds: float,
    again: bool = False,
) -> None:
    """A span that ends now and took so long. No message: it may quote what was sent."""
    at = time.time_ns() - int(seconds * 1e9)
    span = tracer.start(Names.DECIDE, "internal", caller.trace, at=at)
    if span.sampled:
        span.set(Key.PHASE, phase.value)
        span.set(Key.CALL, call.id)
        span.set(Key.TARGET, call.target)
        span.set(Key.KIND, call.kind.value)
        if again:
            span.set(Key.AGAIN, True)
        said(span, decision)
        if decision.rules:
            span.set(Key.RULES, decision.rules)
        if decision.labels:
            span.set(Key.LABELS, decision.labels)
        error = decision.error
        if error is not None:
            span.set(Key.POLICY_ERROR, f"{error.file}:{error.line}:{error.column}")
    span.end("policy" if decision.error is not None else None)
