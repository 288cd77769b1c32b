"""Spans, whoever keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Final, Literal, Protocol, TypeAlias

from sidecar.model import NO_TRACE, TraceContext

SpanKind = Literal["internal", "server", "client"]

Value: TypeAlias = str | bool | int | float | Sequence[str]
"""What an attribute may be."""


class Work:
    """Work on behalf of a span, until ``over``."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def over(self) -> None:
        """It is done: what this task began and still runs works for nobody's span."""
        self.context = NO_TRACE


class Current:
    """The span on whose behalf this task works, for what is not handed one: log lines, dials.

    Tasks have what was current where they were begun. Spans are given their parent.
    """

    def __init__(self) -> None:
        self._work: ContextVar[Work | None] = ContextVar("sidecar_work", default=None)

    def get(self) -> TraceContext:
        """Empty for none."""
        work = self._work.get()
        return NO_TRACE if work is None else work.context

    def begin(self, context: TraceContext) -> Work:
        """From now on in this task, until ``over`` of what is returned."""
        work = Work(context)
        self._work.set(work)
        return work

    def set(self, context: TraceContext) -> Token[Work | None]:
        """From now on in this task, until ``reset``."""
        return self._work.set(Work(context))

    def reset(self, token: Token[Work | None]) -> None:
        """As it was before ``set``."""
        self._work.reset(token)


CURRENT: Final = Current()


SAMPLED: Final = frozenset("13579bdf")
"""The last hex digit of a ``traceparent`` whose flags have ``sampled`` among them (W3C)."""


def sampled(context: TraceContext) -> bool:
    """Whether the trace is kept by those along the way who keep it at all (the flag
    ``sampled``)."""
    return context.traceparent[54:55] in SAMPLED


class Span(Protocol):
    """One step of a call. ``set``, ``link``, ``event`` and ``end`` on an unsampled span cost next
    to nothing, and after ``end`` change nothing."""

    @property
    def context(self) -> TraceContext:
        """What to hand to the next hop."""
        ...

    @property
    def sampled(self) -> bool:
        """Whether attributes are kept: the caller builds none otherwise."""
        ...

    def set(self, key: str, value: Value) -> None: ...

    def link(self, context: TraceContext) -> None:
        """It has to do with another span, which is not its parent. Empty contexts are ignored."""
        ...

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        """Something happened in it, now."""
        ...

    def end(self, error: str | None = None, message: str = "", *, at: int | None = None) -> None:
        """End it; ``error`` is the ``error.type`` by semantic convention, ``message`` a text for
        people, which quotes nothing of what was sent. ``at`` is in nanoseconds since the epoch,
        now if it is not given."""
        ...


class Tracer(Protocol):
    """Starts spans."""

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext,
        *,
        at: int | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        """A span that begins now, or ``at`` nanoseconds since the epoch.

        An empty ``parent`` begins a new trace. ``attributes`` are those that it begins with,
        which a sampler may look at; leave them out where making them costs something.
        """
        ...


class PassingSpan:
    """A span that nobody keeps; the caller's own context goes on to the next hop."""

    __slots__ = ("context",)
    sampled = False

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def set(self, key: str, value: Value) -> None:
        """Nothing is kept."""

    def link(self, context: TraceContext) -> None:
        """Nothing is kept."""

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        """Nothing is kept."""

    def end(self, error: str | None = None, message: str = "", *, at: int | None = None) -> None:
        """Nothing is kept."""


class PassingTracer:
    """The default: no spans of our own, the caller's context carried on unchanged."""

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext,
        *,
        at: int | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        """A span with the parent's own context."""
        return PassingSpan(parent)
