"""Spans on the wire: what we encode by hand is what the SDK's own encoder makes of the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from sidecar import __version__
from sidecar.model import TraceContext
from sidecar.ports.tracer import SpanKind, Value
from sidecar.telemetry.otlp import proto
from sidecar.telemetry.otlp.trace import SpanEncoder
from sidecar.telemetry.sdk import Readable
from sidecar.telemetry.span import Happened, KeptSpan, SpanLimits
from tests.telemetry.spans import spans_of

RESOURCE: dict[str, Value] = {"service.name": "x", "many": ["a", "b"], "n": 3}


def span(
    name: str = "tools/call s__x",
    kind: SpanKind = "server",
    parent_id: str = "",
    state: str = "",
    attributes: dict[str, Value] | None = None,
    began: int = 1_700_000_000_000_000_001,
) -> KeptSpan:
    context = TraceContext(f"00-{'1234567890abcdef' * 2}-{'0' * 15}f-01", state)
    return KeptSpan(
        name, kind, context, parent_id, began, attributes or {}, SpanLimits(), lambda _: None
    )


def ours(*spans: KeptSpan) -> ExportTraceServiceRequest:
    encoder = SpanEncoder(RESOURCE, __version__)
    body = encoder.request([encoder.record(each) for each in spans])
    return ExportTraceServiceRequest.FromString(body)


def theirs(*spans: KeptSpan) -> ExportTraceServiceRequest:
    readable = Readable(RESOURCE)
    return encode_spans([readable.of(each) for each in spans])


def same(*spans: KeptSpan) -> None:
    found, wanted = ours(*spans), theirs(*spans)
    for request in (found, wanted):
        for whole in request.resource_spans:
            for scope in whole.scope_spans:
                for each in scope.spans:
                    # Only the order of attributes is another, and the SDK leaves out the flag
                    # that says "sampled" and a link's state, and writes a status that says nothing.
                    each.attributes.sort(key=lambda pair: pair.key)
                    each.status.SetInParent()
                    for flagged in (each, *each.links):
                        flagged.flags &= ~0xFF
                    for link in each.links:
                        link.trace_state = ""
    assert found == wanted


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
values = st.one_of(
    texts,
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.lists(texts, max_size=4),
)
keys = st.text("abc._", min_size=1, max_size=12)
moments = st.integers(1, (1 << 63) - 1)


@given(
    texts.filter(bool),
    st.sampled_from(["internal", "server", "client"]),
    st.sampled_from(["", "00000000000000aa"]),
    st.sampled_from(["", "a=b,c=d"]),
    st.dictionaries(keys, values, max_size=5),
    st.dictionaries(keys, values, max_size=2),
    st.sampled_from([None, "-32050", "tool_error"]),
    texts,
    moments,
)
def test_the_sdk_encodes_the_same(
    name: str,
    kind: SpanKind,
    parent: str,
    state: str,
    attributes: dict[str, Value],
    inside: dict[str, Value],
    error: str | None,
    message: str,
    began: int,
) -> None:
    made = span(name, kind, parent, state, attributes, began)
    made.events = [Happened("happened", began, inside)]
    made.link(TraceContext(f"00-{'a' * 32}-{'b' * 16}-01", "x=y"))
    made.end(error, message, at=began + 5)
    same(made)


def test_a_whole_batch_and_a_cache_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto.Attributes, "MOST", 3)
    made = [span(attributes={"n": str(n), "same": "x"}) for n in range(50)]
    for each in made:
        each.end()
    assert [s.attributes["n"] for s in spans_of(ours(*made))] == [str(n) for n in range(50)]
    same(*made)


def test_what_has_no_utf8_and_what_was_left_out() -> None:
    made = span(attributes={"half": "\ud800", "long": "x" * 1000})
    made.dropped_attributes, made.dropped_events, made.dropped_links = 1, 2, 300
    made.end()
    (found,) = spans_of(ours(made))
    assert found.attributes == {"half": "?", "long": "x" * 1000}
    raw = found.raw
    counts = (raw.dropped_attributes_count, raw.dropped_events_count, raw.dropped_links_count)
    assert counts == (1, 2, 300)


@given(st.integers(0, (1 << 63) - 1), texts)
def test_what_was_rejected_is_read(count: int, why: str) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=count, error_message=why)
    answer = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    assert proto.rejected(answer) == (count, why)
    assert proto.rejected(b"") == (0, "")


@given(st.binary(max_size=60))
def test_any_answer_is_survived(answer: bytes) -> None:
    count, why = proto.rejected(answer)
    assert isinstance(count, int) and isinstance(why, str)
