"""Decisions as spans: which are worth one, and what is on it."""

from __future__ import annotations

import pytest

from sidecar.events import Bus
from sidecar.gate.records import Records
from sidecar.model import (
    NO_TRACE,
    Call,
    Caller,
    Decision,
    Kind,
    Phase,
    PolicyError,
    Principal,
    TraceContext,
)
from sidecar.telemetry.sampling import Sampling, always
from sidecar.telemetry.span import KeptSpan, SpanLimits
from sidecar.telemetry.tracer import KeepingTracer

TRACE = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")
UNSAMPLED = TraceContext(f"00-{'a' * 32}-{'b' * 16}-00")
CALL = Call("id", Kind.MCP, "tools/call", "s", "s__x", "x", {"arguments": {"secret": "SECRET"}})
ALLOW = Decision("allow", "default", revision="r1")
MATCHED = Decision("allow", "p/labels", ("p/labels",), "p", "r1", labels=("outside",))
DENY = Decision("deny", "p/no", ("p/no", "p/never"), "p", "r1", "SECRET", message_constant=False)
AUDITED = Decision(
    "allow", "default", mode="audit", would="deny", would_rule="p/no", audited=("p/no",)
)
BROKEN = Decision("deny", "p/no", error=PolicyError("type", 3, 7, "SECRET", "p/no", "p.yaml"))


def tell(phase: Phase, decision: Decision, trace: TraceContext = TRACE) -> list[KeptSpan]:
    kept: list[KeptSpan] = []
    tracer = KeepingTracer(Sampling(True, always), SpanLimits(), kept.append)
    records, caller = Records(Bus(), tracer=tracer), Caller(Principal("a"), trace=trace)
    records.tell(phase, CALL, caller, decision, seconds=0.25)
    quiet = records.quiet(phase, caller, decision)
    # Whoever asks first whether anybody wants to hear is told the same.
    assert quiet == (not kept and decision.decision == "allow" and decision.mode == "enforce")
    return kept


@pytest.mark.parametrize(
    ("phase", "decision", "trace", "spans"),
    [
        (Phase.CALL, ALLOW, TRACE, 1),
        (Phase.CALL, ALLOW, UNSAMPLED, 0),
        (Phase.CALL, DENY, UNSAMPLED, 0),
        (Phase.CALL, ALLOW, NO_TRACE, 0),
        (Phase.LIST, DENY, TRACE, 1),
        # Of a result that nothing was done to there is nothing to see.
        (Phase.RESULT, ALLOW, TRACE, 0),
        (Phase.RESULT, MATCHED, TRACE, 1),
        (Phase.RESULT, AUDITED, TRACE, 1),
        (Phase.RESULT, DENY, TRACE, 1),
    ],
)
def test_which_decisions_have_one(
    phase: Phase, decision: Decision, trace: TraceContext, spans: int
) -> None:
    assert len(tell(phase, decision, trace)) == spans


def test_what_is_on_it() -> None:
    (span,) = tell(Phase.CALL, DENY)
    assert (span.name, span.kind, span.parent_id, span.error) == (
        "sidecar.decide",
        "internal",
        "b" * 16,
        None,
    )
    assert span.attributes == {
        "sidecar.phase": "call",
        "sidecar.call": "id",
        "sidecar.target": "s__x",
        "sidecar.kind": "mcp",
        "sidecar.decision": "deny",
        "sidecar.rule": "p/no",
        "sidecar.rules": ("p/no", "p/never"),
        "sidecar.policy.revision": "r1",
    }
    assert span.ended - span.began == pytest.approx(250_000_000, abs=50_000_000)


def test_audit_labels_and_faults() -> None:
    (audited,) = tell(Phase.CALL, AUDITED)
    assert audited.attributes["sidecar.would"] == "deny"
    assert audited.attributes["sidecar.would_rule"] == "p/no"
    (labelled,) = tell(Phase.RESULT, MATCHED)
    assert labelled.attributes["sidecar.labels"] == ("outside",)
    (broken,) = tell(Phase.CALL, BROKEN)
    assert broken.attributes["sidecar.policy.error"] == "p.yaml:3:7"
    assert (broken.error, broken.message) == ("policy", "")


def test_without_a_tracer_there_is_none() -> None:
    records, caller = Records(Bus()), Caller(Principal("a"), trace=TRACE)
    assert records.quiet(Phase.CALL, caller, ALLOW)
    records.tell(Phase.CALL, CALL, caller, ALLOW)
