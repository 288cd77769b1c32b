"""The trace context in the headers of a request (W3C trace context, W3C baggage)."""

from __future__ import annotations

from multidict import CIMultiDictProxy, istr

from sidecar.mcp import meta
from sidecar.model import NO_TRACE, TraceContext

_PARENT, _STATE, _BAGGAGE = map(istr, (meta.TRACEPARENT, meta.TRACESTATE, meta.BAGGAGE))


def trace_of(headers: CIMultiDictProxy[str]) -> TraceContext:
    """What the headers say; a ``traceparent`` that comes twice is none."""
    parents, baggage = headers.getall(_PARENT, ()), headers.getall(_BAGGAGE, ())
    if not parents and not baggage:
        return NO_TRACE
    # Both of the others are lists that may be spread over several lines.
    state = ",".join(headers.getall(_STATE, ()))
    parent = parents[0] if len(parents) == 1 else None
    return meta.trace(parent, state or None, ",".join(baggage) or None)
