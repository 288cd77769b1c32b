"""Requests that are no calls, measured: a span that tells how long it lasted."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sidecar.events import Bus, RequestFinished
from sidecar.model import TraceContext
from sidecar.ports.tracer import Span, Value


class Timed:
    """A span that publishes ``RequestFinished`` at its end."""

    __slots__ = ("_began", "_bus", "_method", "_span")

    def __init__(self, span: Span, method: str, bus: Bus) -> None:
        self._span = span
        self._method = method
        self._bus = bus
        self._began = time.perf_counter()

    @property
    def context(self) -> TraceContext:
        """See the port."""
        return self._span.context

    @property
    def sampled(self) -> bool:
        """See the port."""
        return self._span.sampled

    def set(self, key: str, value: Value) -> None:
        """See the port."""
        self._span.set(key, value)

    def link(self, context: TraceContext) -> None:
        """See the port."""
        self._span.link(context)

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        """See the port."""
        self._span.event(name, attributes)

    def end(self, error: str | None = None, message: str = "", *, at: int | None = None) -> None:
        """See the port."""
        self._span.end(error, message, at=at)
        self._bus.publish(
            RequestFinished(
                trace=self._span.context,
                method=self._method,
                seconds=time.perf_counter() - self._began,
                error=error or "",
            )
        )
