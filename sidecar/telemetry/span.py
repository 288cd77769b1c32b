"""A span that is kept: as light as a span can be, because there are several in every call.

The SDK's costs five times as much before anybody looks at it; what is made of ours (OTLP, the
SDK's for a user's exporter) is made later, beside the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from sidecar.model import TraceContext
from sidecar.ports.tracer import SpanKind, Value
from sidecar.telemetry.environ import whole

Keep: TypeAlias = "Callable[[KeptSpan], None]"

HAS_REMOTE: Final = 0x100
REMOTE: Final = 0x200
"""Bits 8 and 9 of ``flags``: whether the parent's, or the link's, context came over the wire."""


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """``OTEL_SPAN_*_LIMIT`` and what stands in for them. ``length`` is in characters, ``None``
    for any."""

    attributes: int = 128
    length: int | None = None
    events: int = 128
    links: int = 128
    event_attributes: int = 128

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SpanLimits:
        """By the environment."""
        count = whole("OTEL_ATTRIBUTE_COUNT_LIMIT", environ, 128)
        length = whole("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", environ, -1)
        length = whole("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", environ, length)
        return cls(
            whole("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", environ, count),
            length if length >= 0 else None,
            whole("OTEL_SPAN_EVENT_COUNT_LIMIT", environ, 128),
            whole("OTEL_SPAN_LINK_COUNT_LIMIT", environ, 128),
            whole("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", environ, count),
        )


@dataclass(slots=True)
class Happened:
    """An event of a span; ``at`` is in nanoseconds since the epoch."""

    name: str
    at: int
    attributes: Mapping[str, Value]
    dropped: int = 0


class KeptSpan:
    """See :class:`sidecar.ports.tracer.Span`. Ids are hex, times nanoseconds since the epoch.

    ``flags`` are those of the span's own context, with what is known of the parent's.
    """

    __slots__ = (
        "_keep",
        "_limits",
        "attributes",
        "began",
        "context",
        "dropped_attributes",
        "dropped_events",
        "dropped_links",
        "ended",
        "error",
        "events",
        "flags",
        "kind",
        "links",
        "message",
        "name",
        "parent_id",
    )
    sampled = True

    # Positional: keywords would cost a tenth of all that making a span does.
    def __init__(  # noqa: PLR0917
        self,
        name: str,
        kind: SpanKind,
        context: TraceContext,
        parent_id: str,
        began: int,
        attributes: dict[str, Value],
        limits: SpanLimits,
        keep: Keep,
    ) -> None:
        self.name = name
        self.kind = kind
        self.context = context
        self.parent_id = parent_id
        self.began = began
        self.ended = 0
        self.attributes = attributes
        # Most spans have none, and few more than one or two.
        self.events: Sequence[Happened] = ()
        self.links: Sequence[TraceContext] = ()
        self.error: str | None = None
        self.message = ""
        # What a server's span has for a parent came over the wire; the rest is our own.
        self.flags = 1 | HAS_REMOTE | (REMOTE if parent_id and kind == "server" else 0)
        self.dropped_attributes = self.dropped_events = self.dropped_links = 0
        self._limits = limits
        self._keep = keep

    @property
    def trace_id(self) -> str:
        """Hex."""
        return self.context.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """Hex."""
        return self.context.traceparent[36:52]

    def set(self, key: str, value: Value) -> None:
        """See the port."""
        if self.ended:
            return
        attributes, limits = self.attributes, self._limits
        if len(attributes) >= limits.attributes and key not in attributes:
            self.dropped_attributes += 1
            return
        attributes[key] = value if limits.length is None else _cut(value, limits.length)

    def link(self, context: TraceContext) -> None:
        """See the port."""
        if self.ended or not context.traceparent:
            return
        if len(self.links) >= self._limits.links:
            self.dropped_links += 1
        elif context.traceparent[:52] not in (each.traceparent[:52] for each in self.links):
            self.links = (*self.links, context)

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        """See the port."""
        if self.ended:
            return
        limits = self._limits
        if len(self.events) >= limits.events:
            self.dropped_events += 1
            return
        kept = {
            key: value if limits.length is None else _cut(value, limits.length)
            for key, value in list(attributes.items())[: limits.event_attributes]
        }
        lost = len(attributes) - len(kept)
        self.events = (*self.events, Happened(name, time.time_ns(), kept, lost))

    def end(self, error: str | None = None, message: str = "", *, at: int | None = None) -> None:
        """See the port."""
        if self.ended:
            return
        # A clock that is set back must not make a span end before it began.
        self.ended = max(time.time_ns() if at is None else at, self.began, 1)
        if error is not None:
            self.error = error
            self.message = message
        self._keep(self)


def _cut(value: Value, length: int) -> Value:
    if isinstance(value, str):
        return value[:length]
    if isinstance(value, (bool, int, float)):
        return value
    return [each[:length] for each in value]
