"""The tracer: starts spans, keeps those that are sampled, and hands every context on."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from sidecar.model import TraceContext
from sidecar.ports.tracer import PassingSpan, Span, SpanKind, Value, sampled
from sidecar.telemetry.sampling import Sampling
from sidecar.telemetry.span import Keep, KeptSpan, SpanLimits

_bits = random.getrandbits


class KeepingTracer:
    """See :class:`sidecar.ports.tracer.Tracer`. ``keep`` gets each span that has ended, and
    must not block."""

    def __init__(
        self, sampling: Sampling, limits: SpanLimits, keep: Keep, *, baggage: bool = True
    ) -> None:
        """``baggage``: whether that of callers goes on."""
        self._baggage = baggage
        self._sampling = sampling
        self._limits = limits
        self._keep = keep

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext,
        *,
        at: int | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        """See the port."""
        if parent.baggage and not self._baggage:
            parent = TraceContext(parent.traceparent, parent.tracestate)
        sampling = self._sampling
        if sampling.custom is not None:
            return self._asked(name, kind, parent, at, attributes or {})
        above = parent.traceparent
        if above:
            if sampling.parent:
                if not sampled(parent):
                    return PassingSpan(parent)
            elif not sampling.root(int(above[19:35], 16)):
                return PassingSpan(_under(parent, above[3:35], "00"))
            trace_id = above[3:35]
        else:
            trace_id = f"{_bits(128) or 1:032x}"
            if not sampling.root(int(trace_id[16:], 16)):
                return PassingSpan(_under(parent, trace_id, "00"))
        return self._kept(
            name, kind, _under(parent, trace_id, "01"), above, at=at, attributes=attributes
        )

    def _kept(
        self,
        name: str,
        kind: SpanKind,
        context: TraceContext,
        above: str,
        *,
        at: int | None,
        attributes: Mapping[str, Value] | None,
    ) -> KeptSpan:
        span = KeptSpan(
            name,
            kind,
            context,
            above[36:52],
            time.time_ns() if at is None else at,
            {},
            self._limits,
            self._keep,
        )
        if attributes:
            for key, value in attributes.items():
                span.set(key, value)
        return span

    def _asked(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext,
        at: int | None,
        attributes: Mapping[str, Value],
    ) -> Span:
        ask, above = self._sampling.custom, parent.traceparent
        assert ask is not None
        trace_id = above[3:35] or f"{_bits(128) or 1:032x}"
        verdict = ask(name, kind, parent, trace_id, attributes)
        context = _under(parent, trace_id, "01" if verdict.kept else "00", verdict.tracestate)
        if not verdict.kept:
            return PassingSpan(context)
        given = {**attributes, **verdict.attributes}
        return self._kept(name, kind, context, above, at=at, attributes=given)


def _under(
    parent: TraceContext, trace_id: str, flags: str, tracestate: str | None = None
) -> TraceContext:
    return TraceContext(
        f"00-{trace_id}-{_bits(64) or 1:016x}-{flags}",
        parent.tracestate if tracestate is None else tracestate,
        parent.baggage,
    )
