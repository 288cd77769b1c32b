"""What is told of instruments at one moment: all of it, or what is new since the last time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from sidecar.telemetry.metrics import (
    Buckets,
    Counter,
    Exemplar,
    Histogram,
    Instrument,
    Observed,
    Registry,
    Values,
)

Preference: TypeAlias = Literal["cumulative", "delta", "lowmemory"]

SLICE: Final = 64
"""Series that are read in one turn of the loop."""


@dataclass(frozen=True, slots=True)
class Point:
    """One series. ``began`` and ``at`` are in nanoseconds since the epoch; of a histogram,
    ``number`` is the sum and ``counts`` are those of its buckets."""

    attributes: Sequence[tuple[str, str]]
    began: int
    at: int
    number: float
    counts: Sequence[int] = ()
    exemplars: Sequence[Exemplar] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One instrument with all its series; ``delta`` says that they tell what is new alone."""

    instrument: Instrument
    delta: bool
    points: Sequence[Point]


@dataclass(slots=True)
class _Seen:
    """What was told of a series last, where only what is new is told."""

    counts: tuple[int, ...] = ()
    total: float = 0.0


@dataclass(slots=True)
class Told:
    """What one export told, to be kept when it arrived. ``at`` is in nanoseconds."""

    at: int
    seen: dict[tuple[str, Values], _Seen] = field(default_factory=dict)


class Reader:
    """Under ``delta``, and for what we count ourselves under ``lowmemory``, each reading tells
    what is new since the last that arrived."""

    def __init__(self, registry: Registry, preference: Preference = "cumulative") -> None:
        self._registry = registry
        self._preference = preference
        self._last: dict[tuple[str, Values], _Seen] = {}
        self._last_at = 0

    def arrived(self, told: Told) -> None:
        """The receiver has it: what comes next is what is new since then."""
        if self._preference != "cumulative":
            self._last, self._last_at = told.seen, told.at

    def read(self, told: Told) -> Iterator[Reading | None]:
        """Instruments that have something to tell; ``None`` between them is a place to let others
        have their turn."""
        for instrument in self._registry:
            delta = self._delta(instrument)
            points: list[Point] = []
            for number, point in enumerate(self._points(instrument, told, delta), 1):
                if point is not None:
                    points.append(point)
                if number % SLICE == 0:
                    yield None
            if points:
                yield Reading(instrument, delta, points)
            yield None

    def _delta(self, instrument: Instrument) -> bool:
        if self._preference == "cumulative" or instrument.kind == "gauge":
            return False
        # By the specification, lowmemory is cumulative for counters that are asked for.
        return self._preference == "delta" or not isinstance(instrument, Observed)

    def _points(self, instrument: Instrument, told: Told, delta: bool) -> Iterator[Point | None]:
        if isinstance(instrument, Histogram):
            for values, series in list(instrument.series.items()):
                yield self._histogram(instrument, values, series, told, delta)
        elif isinstance(instrument, Counter | Observed):
            for values, number in instrument.read():
                yield self._number(instrument, values, number, told, delta)

    def _began(self, instrument: Instrument, delta: bool) -> int:
        return self._last_at if delta and self._last_at else instrument.began

    def _histogram(
        self, instrument: Histogram, values: Values, series: Buckets, told: Told, delta: bool
    ) -> Point | None:
        counts, total = tuple(series.counts), series.total
        exemplars = tuple(series.exemplars.values())
        if delta:
            key = (instrument.name, values)
            told.seen[key] = _Seen(counts, total)
            before = self._last.get(key)
            if before is not None:
                if counts == before.counts:
                    return None
                counts = tuple(n - m for n, m in zip(counts, before.counts, strict=True))
                total -= before.total
        began = self._began(instrument, delta)
        return Point(instrument.attributes(values), began, told.at, total, counts, exemplars)

    def _number(
        self, instrument: Instrument, values: Values, number: float, told: Told, delta: bool
    ) -> Point | None:
        if delta:
            key = (instrument.name, values)
            told.seen[key] = _Seen((), number)
            before = self._last.get(key)
            if before is not None:
                number -= before.total
                if not number:
                    return None
        began = self._began(instrument, delta)
        return Point(instrument.attributes(values), began, told.at, number)
