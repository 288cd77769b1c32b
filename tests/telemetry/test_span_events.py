"""What happens beside calls is a span each, with what a person would ask of it."""

from __future__ import annotations

import pytest

from sidecar.events import Bus, DialDecided, Event, LegChanged, SessionUpdate, Swept, ToolsChanged
from sidecar.model import State, TraceContext
from sidecar.telemetry.sampling import Sampling, always
from sidecar.telemetry.span import KeptSpan, SpanLimits
from sidecar.telemetry.spans import MOST_NAMED, EventSpans
from sidecar.telemetry.tracer import KeepingTracer

RUN = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")


def told(*events: Event) -> list[KeptSpan]:
    bus, kept = Bus(), list[KeptSpan]()
    tracer = KeepingTracer(Sampling(True, always), SpanLimits(), kept.append)
    spans = EventSpans(bus, tracer)
    for event in events:
        bus.publish(event)
    spans.close()
    for event in events:
        bus.publish(event)
        assert not bus.wanted(type(event))
    return kept


def test_tools_changed() -> None:
    added = tuple(f"s__t{n}" for n in range(60))
    first, down = told(
        ToolsChanged(name="me", server="s", count=60, added=added, changed=("s__x",)),
        ToolsChanged(name="me", server="s", count=0, removed=("s__x",)),
    )
    assert (first.name, first.kind, first.parent_id) == ("sidecar.tools_changed", "internal", "")
    assert first.attributes == {
        "sidecar.name": "me",
        "sidecar.server": "s",
        "sidecar.tools.count": 60,
        "sidecar.tools.added": added[:MOST_NAMED],
        "sidecar.tools.changed": ("s__x",),
    }
    # Down is a count of none, not an absent one.
    assert down.attributes["sidecar.tools.count"] == 0
    assert down.attributes["sidecar.tools.removed"] == ("s__x",)
    assert first.trace_id != down.trace_id


def test_legs() -> None:
    ready, broken = told(
        LegChanged(server="s", state=State.READY),
        LegChanged(server="s", state=State.BACKOFF, error="refused", retry_in=1.23456),
    )
    assert ready.attributes == {"sidecar.server": "s", "sidecar.leg.state": "ready"}
    assert (ready.error, broken.error, broken.message) == (None, "backoff", "refused")
    assert broken.attributes == {
        "sidecar.server": "s",
        "sidecar.leg.state": "backoff",
        "sidecar.leg.error": "refused",
        "sidecar.leg.retry_in": 1.235,
    }


def test_sweeps() -> None:
    kept = (("/w/a", "dirty"), ("/w/b", "unmerged"))
    some, none = told(
        Swept(name="me", removed=("/w/c",), kept=kept), Swept(name="me", removed=(), kept=())
    )
    assert some.name == "sidecar.sweep"
    assert some.attributes == {
        "sidecar.name": "me",
        "sidecar.sweep.removed": 1,
        "sidecar.sweep.removed_paths": ("/w/c",),
        "sidecar.sweep.kept": 2,
        "sidecar.sweep.kept_paths": ["/w/a", "/w/b"],
        "sidecar.sweep.kept_reasons": ["dirty", "unmerged"],
    }
    assert none.attributes == {
        "sidecar.name": "me",
        "sidecar.sweep.removed": 0,
        "sidecar.sweep.kept": 0,
    }


def test_session_updates_are_part_of_their_run() -> None:
    (update,) = told(
        SessionUpdate(
            trace=RUN, name="me", agent_id="alice", harness="claude", work="w-1", update="plan"
        )
    )
    assert (update.name, update.trace_id, update.parent_id) == (
        "sidecar.session_update plan",
        "a" * 32,
        "b" * 16,
    )
    assert update.attributes == {
        "sidecar.name": "me",
        "sidecar.agent.id": "alice",
        "sidecar.span": "b" * 16,
        "sidecar.harness": "claude",
        "sidecar.work": "w-1",
        "sidecar.update": "plan",
    }


def test_a_kind_of_the_agents_own_names_no_span() -> None:
    (update,) = told(
        SessionUpdate(trace=RUN, name="me", agent_id="a", harness="h", work="w", update="x-7f3a")
    )
    assert update.name == "sidecar.session_update"
    assert update.attributes["sidecar.update"] == "x-7f3a"


def test_the_pieces_of_one_text_are_one_update() -> None:
    def update(kind: str, work: str = "w", trace: TraceContext = RUN) -> SessionUpdate:
        return SessionUpdate(
            trace=trace, name="me", agent_id="a", harness="h", work=work, update=kind
        )

    piece, tool = "agent_message_chunk", "tool_call_update"
    found = told(
        *[update(piece)] * 3,
        *[update(tool)] * 2,
        update(piece),
        update(piece, trace=TraceContext(f"00-{'c' * 32}-{'d' * 16}-01")),
    )
    assert [span.attributes["sidecar.update"] for span in found] == [
        piece,
        tool,
        tool,
        piece,
        piece,
    ]


@pytest.mark.parametrize(("decision", "error"), [("allow", None), ("deny", "egress/private")])
def test_dials(decision: str, error: str | None) -> None:
    (dial,) = told(
        DialDecided(
            decision=decision,
            rule="egress/private",
            reason="dial",
            target="http://10.0.0.1",
            class_="private",
            server="s",
            seconds=0.5,
        )
    )
    assert (dial.name, dial.error) == ("sidecar.egress", error)
    assert dial.ended - dial.began == pytest.approx(500_000_000, abs=50_000_000)
    assert dial.attributes == {
        "sidecar.decision": decision,
        "sidecar.rule": "egress/private",
        "sidecar.egress.reason": "dial",
        "sidecar.egress.class": "private",
        "sidecar.target": "http://10.0.0.1",
        "sidecar.server": "s",
    }
