"""Instruments of our own: a dictionary and a few additions on the path of a call.

An instrument has its attributes' names once, and each series their values as a tuple of texts,
an empty one for an attribute that is absent. How many series there are is bounded: what comes
beyond is counted in one series that says so (``otel.metric.overflow``, as the SDK does it).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from sidecar.ports.tracer import SAMPLED

T = TypeVar("T")

Values: TypeAlias = tuple[str, ...]
"""The values of a series, in the order of its instrument's keys."""
Gauged: TypeAlias = Iterable[tuple[Values, float]]

SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""The bounds that the conventions for MCP advise, each included in the bucket below it."""
SHORT: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""For what should take no time."""
LONG: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)
"""For what people take their time over, and for how long sessions last."""
MOST_SERIES: Final = 2000
"""Of one instrument, the one of what is beyond included."""
OVERFLOW: Final = "otel.metric.overflow"
OTHER: Final = "_OTHER"
"""The value of an attribute that has had too many."""

Exemplar: TypeAlias = tuple[float, str, str, float]
"""A value, the trace and the span in which it was measured, and when (seconds since the epoch)."""


class Known:
    """The values that an attribute may have: the first so many; then ``_OTHER``."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value itself, or ``_OTHER``."""
        known = self._known
        if value in known or not value:
            return value
        if len(known) >= self._most:
            return OTHER
        known.add(value)
        return value

    def forget(self, value: str) -> None:
        """It makes room for another."""
        self._known.discard(value)


class Buckets:
    """One series of a histogram. ``counts`` has one more than there are bounds."""

    __slots__ = ("counts", "exemplars", "total")

    def __init__(self, bounds: int) -> None:
        self.counts = [0] * (bounds + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    @property
    def count(self) -> int:
        return sum(self.counts)


class Instrument:
    """What all have in common. ``unit`` is UCUM, as OpenTelemetry has it."""

    kind: Literal["histogram", "counter", "gauge"]

    def __init__(self, name: str, unit: str, about: str, keys: Sequence[str]) -> None:
        self.name: Final = name
        self.unit: Final = unit
        self.about: Final = about
        self.keys: Final = tuple(keys)
        self.began: Final = time.time_ns()

    def attributes(self, values: Values) -> list[tuple[str, str]]:
        """The attributes of a series; ``()`` stands for all that are beyond the bound."""
        if not values and self.keys:
            return [(OVERFLOW, "true")]
        return [(key, value) for key, value in zip(self.keys, values, strict=True) if value]


def dropped(series: dict[Values, T], at: int, value: str) -> list[Values]:
    """Drop every series that has this value at a place of its tuple; returns which these were."""
    gone = [values for values in series if values and values[at] == value]
    for values in gone:
        del series[values]
    return gone


class Histogram(Instrument):
    """Durations in seconds."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        unit: str,
        about: str,
        keys: Sequence[str] = (),
        *,
        bounds: Sequence[float] = SECONDS,
        most: int = MOST_SERIES,
    ) -> None:
        super().__init__(name, unit, about, keys)
        self.bounds: Final = tuple(bounds)
        self.series: Final[dict[Values, Buckets]] = {}
        self._most = most

    def record(self, values: Values, seconds: float, traceparent: str = "") -> None:
        """One measurement; ``traceparent`` of the span in which it was taken, if it is kept."""
        self.measure(self.begin(values), seconds, traceparent)

    def measure(self, series: Buckets, seconds: float, traceparent: str = "") -> None:
        """The same, of a series that ``begin`` gave."""
        bucket = bisect_left(self.bounds, seconds)
        series.counts[bucket] += 1
        series.total += seconds
        if traceparent and traceparent[54:55] in SAMPLED:
            trace, span = traceparent[3:35], traceparent[36:52]
            series.exemplars[bucket] = (seconds, trace, span, time.time())

    def begin(self, values: Values) -> Buckets:
        """The series of these values, or that of what is beyond. It may be kept, until the
        series are dropped."""
        series = self.series.get(values)
        if series is None:
            if len(self.series) >= self._most - 1:
                values = ()
            series = self.series.get(values)
            if series is None:
                series = self.series[values] = Buckets(len(self.bounds))
        return series


class Counter(Instrument):
    """Grows."""

    kind = "counter"

    def __init__(
        self,
        name: str,
        unit: str,
        about: str,
        keys: Sequence[str] = (),
        *,
        most: int = MOST_SERIES,
    ) -> None:
        super().__init__(name, unit, about, keys)
        self.series: Final[dict[Values, float]] = {}
        self._most = most

    def add(self, values: Values, by: float = 1) -> None:
        """So many more."""
        self.series[self.begin(values)] += by

    def begin(self, values: Values) -> Values:
        """The values themselves, or those of what is beyond; the series is there."""
        series = self.series
        if values not in series:
            if len(series) >= self._most - 1:
                values = ()
            series.setdefault(values, 0)
        return values

    def read(self) -> Gauged:
        """Every series."""
        return list(self.series.items())


class Observed(Instrument):
    """What is asked for when somebody looks: a gauge, or a counter that somebody else keeps."""

    def __init__(
        self,
        kind: Literal["counter", "gauge"],
        name: str,
        unit: str,
        about: str,
        keys: Sequence[str] = (),
        *,
        ask: Callable[[], Gauged],
        most: int = MOST_SERIES,
    ) -> None:
        super().__init__(name, unit, about, keys)
        self.kind = kind
        self._ask = ask
        self._most = most

    def read(self) -> Gauged:
        """Every series, as many as are bounded."""
        found: dict[Values, float] = {}
        for values, number in self._ask():
            if values not in found and len(found) >= self._most - 1:
                found[()] = found.get((), 0) + number
            else:
                found[values] = number
        return list(found.items())


class Registry:
    """All instruments, in the order in which they were made."""

    def __init__(self) -> None:
        self._instruments: dict[str, Instrument] = {}

    def __iter__(self) -> Iterator[Instrument]:
        return iter(tuple(self._instruments.values()))

    def add(self, instrument: Instrument) -> None:
        """Raises ValueError when there is one of that name."""
        if instrument.name in self._instruments:
            raise ValueError(f"there is an instrument {instrument.name}")
        self._instruments[instrument.name] = instrument

    def histogram(
        self,
        name: str,
        unit: str,
        about: str,
        keys: Sequence[str] = (),
        *,
        bounds: Sequence[float] = SECONDS,
    ) -> Histogram:
        """A new histogram."""
        made = Histogram(name, unit, about, keys, bounds=bounds)
        self.add(made)
        return made

    def counter(self, name: str, unit: str, about: str, keys: Sequence[str] = ()) -> Counter:
        """A new counter."""
        made = Counter(name, unit, about, keys)
        self.add(made)
        return made

    def gauge(
        self,
        name: str,
        unit: str,
        about: str,
        keys: Sequence[str] = (),
        *,
        ask: Callable[[], Gauged],
    ) -> None:
        """A new gauge; ``ask`` gives its series when somebody looks."""
        self.add(Observed("gauge", name, unit, about, keys, ask=ask))

    def counted(
        self,
        name: str,
        unit: str,
        about: str,
        keys: Sequence[str] = (),
        *,
        ask: Callable[[], Gauged],
    ) -> None:
        """A new counter that somebody else keeps."""
        self.add(Observed("counter", name, unit, about, keys, ask=ask))


def single(number: float) -> Gauged:
    """The one series of an instrument without attributes."""
    return [((), number)]


def by(numbers: Mapping[str, float]) -> Gauged:
    """The series of an instrument with one attribute."""
    return [((key,), number) for key, number in numbers.items()]
