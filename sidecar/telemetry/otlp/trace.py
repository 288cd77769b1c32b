"""Spans in OTLP (opentelemetry-proto, trace/v1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sidecar.ports.tracer import SpanKind
from sidecar.telemetry.otlp import proto
from sidecar.telemetry.otlp.proto import Attributes, Value
from sidecar.telemetry.resource import SCOPE
from sidecar.telemetry.span import HAS_REMOTE, REMOTE, KeptSpan

_KINDS: Final[Mapping[SpanKind, bytes]] = {
    "internal": proto.number(6, 1),
    "server": proto.number(6, 2),
    "client": proto.number(6, 3),
}
_IDS: Final = (b"\x0a\x10", b"\x12\x08", b"\x22\x08")
"""The heads of ``trace_id``, ``span_id`` and ``parent_span_id``: bytes of a known length."""
_BEGAN, _ENDED, _FLAGS = proto.tag(7, 1), proto.tag(8, 1), proto.tag(16, 5)
_SPANS: Final = 2
_ERROR: Final = proto.number(3, 2)
ERROR_TYPE: Final = "error.type"


class SpanEncoder:
    """``resource`` are the attributes of whoever tells."""

    def __init__(self, resource: Mapping[str, Value], version: str) -> None:
        self._resource = proto.resource(resource)
        self._scope = proto.scope(SCOPE, version)
        self._attributes = Attributes(9)
        self._of_events = Attributes(3)

    def record(self, item: KeptSpan) -> bytes:
        """One ``Span``."""
        trace, span, above = _IDS
        parts = [trace, bytes.fromhex(item.trace_id), span, bytes.fromhex(item.span_id)]
        state = item.context.tracestate
        if state:
            parts.append(proto.string(3, state))
        if item.parent_id:
            parts += (above, bytes.fromhex(item.parent_id))
        parts += (
            proto.string(5, item.name),
            _KINDS[item.kind],
            _BEGAN,
            item.began.to_bytes(8, "little"),
            _ENDED,
            item.ended.to_bytes(8, "little"),
        )
        parts += self._attributes.fields(item.attributes)
        if item.dropped_attributes:
            parts.append(proto.number(10, item.dropped_attributes))
        for happened in item.events:
            inside = [proto.fixed64(1, happened.at), proto.string(2, happened.name)]
            inside += self._of_events.fields(happened.attributes)
            if happened.dropped:
                inside.append(proto.number(4, happened.dropped))
            parts.append(proto.length(11, b"".join(inside)))
        if item.dropped_events:
            parts.append(proto.number(12, item.dropped_events))
        for link in item.links:
            parts.append(proto.length(13, _link(link.traceparent, link.tracestate)))
        if item.dropped_links:
            parts.append(proto.number(14, item.dropped_links))
        if item.error is not None:
            parts.append(self._attributes.one(ERROR_TYPE, item.error))
            said = proto.string(2, item.message) if item.message else b""
            parts.append(proto.length(15, said + _ERROR))
        parts += (_FLAGS, item.flags.to_bytes(4, "little"))
        return b"".join(parts)

    def request(self, records: Sequence[bytes]) -> bytes:
        """An ``ExportTraceServiceRequest``."""
        return proto.scoped(self._resource, self._scope, _SPANS, records)


def _link(traceparent: str, tracestate: str) -> bytes:
    flags = int(traceparent[53:55], 16) | HAS_REMOTE | REMOTE
    return b"".join(
        (
            proto.length(1, bytes.fromhex(traceparent[3:35])),
            proto.length(2, bytes.fromhex(traceparent[36:52])),
            proto.string(3, tracestate) if tracestate else b"",
            proto.fixed32(6, flags),
        )
    )
