"""The SDK's way out: our spans as its own, for exporters that a user installed.

Imported only where something of the SDK's is configured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.span import TraceState

import sidecar
from sidecar.model import TraceContext
from sidecar.telemetry.apart import CONSOLE, Apart, load, made
from sidecar.telemetry.otlp.http import Sent
from sidecar.telemetry.otlp.proto import Value
from sidecar.telemetry.otlp.trace import ERROR_TYPE
from sidecar.telemetry.resource import SCOPE
from sidecar.telemetry.span import REMOTE, KeptSpan

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter

CLOSE_WAIT: Final = 1.0
"""Seconds that an exporter has to end."""
_KINDS: Final = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
}


def span_context(traceparent: str, tracestate: str, *, remote: bool) -> SpanContext:
    """A context of ours as the API has it."""
    return SpanContext(
        int(traceparent[3:35], 16),
        int(traceparent[36:52], 16),
        remote,
        TraceFlags(int(traceparent[53:55], 16)),
        TraceState.from_header([tracestate]) if tracestate else TraceState(),
    )


def context_of(parent: TraceContext) -> Context | None:
    """The parent as samplers take it; ``None`` for a new trace."""
    if not parent.traceparent:
        return None
    about = span_context(parent.traceparent, parent.tracestate, remote=True)
    return trace.set_span_in_context(NonRecordingSpan(about))


class Readable:
    """Turns our spans into the SDK's."""

    def __init__(self, resource: Mapping[str, Value]) -> None:
        self._resource = Resource(dict(resource))
        self._scope = InstrumentationScope(SCOPE, sidecar.__version__)

    def of(self, span: KeptSpan) -> ReadableSpan:
        """One of them. What does not fit into the SDK's limits is not cut again."""
        about = span.context
        own = span_context(about.traceparent, about.tracestate, remote=False)
        parent = None
        if span.parent_id:
            above = f"00-{span.trace_id}-{span.parent_id}-{about.traceparent[53:55]}"
            parent = span_context(above, about.tracestate, remote=bool(span.flags & REMOTE))
        attributes = dict(span.attributes)
        status = Status()
        if span.error is not None:
            attributes[ERROR_TYPE] = span.error
            status = Status(StatusCode.ERROR, span.message or None)
        return ReadableSpan(
            name=span.name,
            context=own,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=[Event(each.name, dict(each.attributes), each.at) for each in span.events],
            links=[
                Link(span_context(each.traceparent, each.tracestate, remote=True))
                for each in span.links
            ],
            kind=_KINDS[span.kind],
            status=status,
            start_time=span.began,
            end_time=span.ended,
            instrumentation_scope=self._scope,
        )


class SdkExporter:
    """An exporter of the SDK's, in threads that nothing waits for."""

    def __init__(self, name: str, exporter: SpanExporter, readable: Readable) -> None:
        self.name = name
        self._exporter = exporter
        self._readable = readable
        self._apart = Apart(name)

    def begin(self) -> SdkBatch:
        """An empty batch."""
        return SdkBatch(self)

    async def export(self, spans: list[KeptSpan], timeout: float) -> Sent:
        """Never raises. When it takes longer than so many seconds, it goes on without us."""
        return await self._apart.run(partial(self._export, spans), timeout)

    async def close(self) -> None:
        """End the exporter; one that hangs is left."""
        await self._apart.run(self._shutdown, CLOSE_WAIT)

    def _export(self, spans: list[KeptSpan]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export([self._readable.of(each) for each in spans])
        return result is SpanExportResult.SUCCESS

    def _shutdown(self) -> bool:
        self._exporter.shutdown()
        return True


class SdkBatch:
    """Spans for one call of ``export``."""

    __slots__ = ("_exporter", "_spans")

    def __init__(self, exporter: SdkExporter) -> None:
        self._exporter = exporter
        self._spans: list[KeptSpan] = []

    def add(self, item: KeptSpan) -> None:
        self._spans.append(item)

    async def send(self, timeout: float) -> Sent:
        return await self._exporter.export(self._spans, timeout)


def exporter(name: str, readable: Readable) -> SdkExporter:
    """``console`` (to standard error), or what an entry point
    ``opentelemetry_traces_exporter`` gives.

    Raises:
        SettingError: there is none, or it cannot be made.
    """
    if name == CONSOLE:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        # Standard output belongs to the protocol, or to the one line of `sidecar run`.
        return SdkExporter(name, ConsoleSpanExporter(out=sys.stderr), readable)
    found = cast("SpanExporter", made("traces", name, load("traces", name)))
    return SdkExporter(name, found, readable)
