"""Spans, whoever keeps them."""

from __future__ import annotations

from typing import Literal, Protocol

from sidecar.model import TraceContext

SpanKind = Literal["internal", "server", "client"]


class Span(Protocol):
    """One step of a call. ``set`` and ``end`` on an unsampled span cost next to nothing."""

    @property
    def context(self) -> TraceContext:
        """What to hand to the next hop."""
        ...

    @property
    def sampled(self) -> bool:
        """Whether attributes are kept: the caller builds none otherwise."""
        ...

    def set(self, key: str, value: str | int | float | bool) -> None: ...

    def end(self, error: str | None = None) -> None:
        """End it; ``error`` is the ``error.type`` by semantic convention."""
        ...


class Tracer(Protocol):
    """Starts spans."""

    def start(self, name: str, kind: SpanKind, parent: TraceContext) -> Span: ...


class PassingSpan:
    """A span that nobody keeps; the caller's own context goes on to the next hop."""

    __slots__ = ("context",)
    sampled = False

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def set(self, key: str, value: str | int | float | bool) -> None:
        """Nothing is kept."""

    def end(self, error: str | None = None) -> None:
        """Nothing is kept."""


class PassingTracer:
    """The default: no spans of our own, the caller's context carried on unchanged."""

    def start(self, name: str, kind: SpanKind, parent: TraceContext) -> Span:
        """A span with the parent's own context."""
        return PassingSpan(parent)
