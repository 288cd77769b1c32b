"""Which spans are kept, and whose context goes on: by the environment, as the SDK would."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from sidecar.model import NO_TRACE, TraceContext
from sidecar.ports.tracer import PassingSpan, sampled
from sidecar.telemetry import sampling
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.sampling import always, ratio
from sidecar.telemetry.span import KeptSpan, SpanLimits
from sidecar.telemetry.tracer import KeepingTracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
ON = TraceContext(f"00-{TRACE}-00f067aa0ba902b7-01", "a=b", "who=me")
OFF = TraceContext(f"00-{TRACE}-00f067aa0ba902b7-00", "a=b", "who=me")


def tracer(environ: dict[str, str] | None = None) -> tuple[KeepingTracer, list[KeptSpan]]:
    kept: list[KeptSpan] = []
    environ = environ or {}
    made = KeepingTracer(sampling.of(environ), SpanLimits.of(environ), kept.append)
    return made, kept


def of(name: str, argument: str = "") -> dict[str, str]:
    return {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument}


def test_a_child_of_a_sampled_parent_is_part_of_its_trace() -> None:
    trace, kept = tracer()
    span = trace.start("x", "server", ON)
    assert span.sampled
    version, trace_id, span_id, flags = span.context.traceparent.split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "01")
    assert span_id != "00f067aa0ba902b7" and int(span_id, 16)
    assert (span.context.tracestate, span.context.baggage) == ("a=b", "who=me")
    span.end()
    assert [(s.trace_id, s.span_id, s.parent_id) for s in kept] == [
        (TRACE, span_id, "00f067aa0ba902b7")
    ]
    inner = trace.start("y", "internal", span.context)
    inner.end()
    assert kept[1].parent_id == span_id
    # Only what a server's span hangs below came over the wire.
    assert (kept[0].flags, kept[1].flags) == (0x301, 0x101)


def test_a_root_begins_a_trace_of_its_own() -> None:
    trace, kept = tracer()
    first, second = (trace.start("x", "server", TraceContext("", "", "who=me")) for _ in "ab")
    assert first.context.traceparent[3:35] != second.context.traceparent[3:35]
    assert first.context.baggage == "who=me"
    first.end()
    assert (kept[0].parent_id, kept[0].flags) == ("", 0x101)


def test_below_what_is_not_sampled_no_span_is_made_and_the_context_is_the_callers() -> None:
    trace, kept = tracer()
    span = trace.start("x", "server", OFF)
    assert type(span) is PassingSpan
    assert span.context is OFF
    span.end()
    assert kept == []


@pytest.mark.parametrize(
    ("environ", "root", "on", "off"),
    [
        ({}, True, True, False),
        (of("always_on"), True, True, True),
        (of("always_off"), False, False, False),
        (of("parentbased_always_on"), True, True, False),
        (of("parentbased_always_off"), False, True, False),
        (of("parentbased_traceidratio", "0"), False, True, False),
        (of("parentbased_traceidratio", "1.0"), True, True, False),
        (of("traceidratio", "0"), False, False, False),
        (of("traceidratio"), True, True, True),
        (of("Parentbased_Always_Off"), False, True, False),
    ],
)
def test_samplers_of_the_specification(
    environ: dict[str, str], root: bool, on: bool, off: bool
) -> None:
    trace, _ = tracer(environ)
    found = [trace.start("x", "server", parent) for parent in (NO_TRACE, ON, OFF)]
    assert [span.sampled for span in found] == [root, on, off]
    for span in found:
        # Whoever comes next does as we did.
        assert sampled(span.context) == span.sampled
    assert {span.context.traceparent[3:35] for span in found[1:]} == {TRACE}


@given(st.integers(0, (1 << 128) - 1), st.floats(0, 1))
def test_the_sdk_keeps_the_same_traces(trace_id: int, share: float) -> None:
    theirs = TraceIdRatioBased(share).should_sample(None, trace_id, "x")
    wanted = theirs.decision is Decision.RECORD_AND_SAMPLE
    assert ratio(share)(trace_id & ((1 << 64) - 1)) == wanted


def test_a_share_of_all_traces_is_kept() -> None:
    trace, _ = tracer(of("parentbased_traceidratio", "0.25"))
    kept = sum(trace.start("x", "server", NO_TRACE).sampled for _ in range(4000))
    assert 800 < kept < 1200


@pytest.mark.parametrize("argument", ["-1", "1.5", "nan", "half"])
def test_a_share_that_is_none_is_told_and_all_are_kept(
    argument: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = sampling.of(of("traceidratio", argument))
    assert found.root(1 << 63)
    assert "OTEL_TRACES_SAMPLER_ARG is not a number from 0 to 1" in caplog.text


SAMPLER = """
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

class Picky(Sampler):
    def __init__(self, argument):
        self.name = argument
    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None,
                      links=None, trace_state=None):
        if name == "breaks":
            raise RuntimeError("SECRET")
        kept = Decision.RECORD_AND_SAMPLE if name == self.name else Decision.DROP
        return SamplingResult(kept, {"picked.kind": str(kind), **(attributes or {})},
                              trace_state.add("picky", "1") if trace_state is not None else None)
    def get_description(self):
        return "picky"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a sampler, as pip would leave it."""
    (tmp_path / "picky_sampler.py").write_text(SAMPLER)
    about = tmp_path / "picky-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: picky\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[opentelemetry_traces_sampler]\npicky = picky_sampler:Picky\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "picky_sampler", raising=False)


@pytest.mark.usefixtures("installed")
def test_a_sampler_that_somebody_installed(caplog: pytest.LogCaptureFixture) -> None:
    trace, kept = tracer(of("picky", "wanted"))
    span = trace.start("wanted", "server", ON, attributes={"a": 1})
    assert span.sampled
    assert span.context.tracestate == "picky=1,a=b"
    span.end()
    assert kept[0].attributes == {"a": 1, "picked.kind": "SpanKind.SERVER"}
    other = trace.start("other", "server", ON)
    assert not other.sampled
    assert other.context.traceparent.endswith("-00")
    # What it breaks, it breaks for itself.
    assert not trace.start("breaks", "server", NO_TRACE).sampled
    assert "the sampler failed" in caplog.text


def test_a_sampler_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingError, match="OTEL_TRACES_SAMPLER: 'nope' is neither one of"):
        sampling.of(of("nope"))


# ---------------------------------------------------------------------------------- limits


def test_limits_of_spans() -> None:
    trace, kept = tracer(
        {
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "2",
            "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "3",
            "OTEL_SPAN_EVENT_COUNT_LIMIT": "1",
            "OTEL_SPAN_LINK_COUNT_LIMIT": "1",
            "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "1",
        }
    )
    span = trace.start("x", "server", NO_TRACE)
    for key in "abc":
        span.set(key, "12345")
    span.set("a", ["12345", "1"])
    span.event("one", {"k": "12345", "l": 1})
    span.event("two", {})
    span.link(ON)
    span.link(TraceContext(f"00-{TRACE}-{'1' * 16}-01"))
    span.end()
    (found,) = kept
    assert found.attributes == {"a": ["123", "1"], "b": "123"}
    assert [(e.name, e.attributes, e.dropped) for e in found.events] == [("one", {"k": "123"}, 1)]
    assert found.links == (ON,)
    assert (found.dropped_attributes, found.dropped_events, found.dropped_links) == (1, 1, 1)


def test_shared_limits_stand_in() -> None:
    environ = {"OTEL_ATTRIBUTE_COUNT_LIMIT": "7", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "9"}
    found = SpanLimits.of(environ)
    assert (found.attributes, found.length, found.event_attributes) == (7, 9, 7)
    assert SpanLimits.of({}) == SpanLimits(128, None, 128, 128, 128)


def test_a_span_is_over_when_it_has_ended() -> None:
    trace, kept = tracer()
    span = trace.start("x", "server", NO_TRACE, at=100)
    span.end("denied", "why", at=50)
    span.set("late", 1)
    span.link(ON)
    span.event("late", {})
    span.end("again")
    (found,) = kept
    # A clock that was set back makes no span end before it began.
    assert (found.began, found.ended) == (100, 100)
    assert (found.error, found.message) == ("denied", "why")
    assert (found.attributes, found.links, found.events) == ({}, (), ())


def test_a_link_is_kept_once_and_an_empty_one_not_at_all() -> None:
    trace, kept = tracer()
    span = trace.start("x", "server", NO_TRACE)
    for context in (NO_TRACE, ON, TraceContext(ON.traceparent[:-2] + "00"), ON):
        span.link(context)
    span.end()
    assert kept[0].links == (ON,)


def test_baggage_stays_where_it_is_not_propagated() -> None:
    trace = KeepingTracer(
        sampling.Sampling(True, always), SpanLimits(), lambda _: None, baggage=False
    )
    for parent in (ON, OFF):
        assert trace.start("x", "server", parent).context.baggage == ""


def test_numbers_of_the_environment_that_are_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        limits = SpanLimits.of({"OTEL_SPAN_LINK_COUNT_LIMIT": "many"})
    assert limits.links == 128
    assert "OTEL_SPAN_LINK_COUNT_LIMIT is not a whole number" in caplog.text
