"""Metrics in OTLP (opentelemetry-proto, metrics/v1)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
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
from sidecar.telemetry.otlp import proto
from sidecar.telemetry.otlp.proto import Attributes, Value
from sidecar.telemetry.resource import SCOPE

Preference: TypeAlias = Literal["cumulative", "delta", "lowmemory"]

_METRICS: Final = 2
_DELTA, _CUMULATIVE = proto.number(2, 1), proto.number(2, 2)
_MONOTONIC: Final = proto.number(3, 1)


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


class MetricEncoder:
    """``resource`` are the attributes of whoever tells. Under ``delta``, and for histograms and
    counters under ``lowmemory``, each export tells what is new since the last that arrived."""

    def __init__(
        self, resource: Mapping[str, Value], version: str, preference: Preference = "cumulative"
    ) -> None:
        self._resource = proto.resource(resource)
        self._scope = proto.scope(SCOPE, version)
        self._of_numbers = Attributes(7)
        self._of_histograms = Attributes(9)
        self._preference = preference
        self._last: dict[tuple[str, Values], _Seen] = {}
        self._last_at = 0

    def request(self, records: Sequence[bytes]) -> bytes:
        """The whole request."""
        return proto.scoped(self._resource, self._scope, _METRICS, records)

    def arrived(self, told: Told) -> None:
        """The receiver has it: what comes next is what is new since then."""
        if self._preference != "cumulative":
            self._last, self._last_at = told.seen, told.at

    def metrics(self, registry: Registry, told: Told) -> Iterator[bytes | None]:
        """A ``Metric`` each; ``None`` between them is a place to let others have their turn."""
        for instrument in registry:
            points: list[bytes] = []
            for point in self._points(instrument, told):
                points.append(proto.length(1, point))
                if len(points) % 64 == 0:
                    yield None
            if points:
                yield self._metric(instrument, points)
            yield None

    def _delta(self, instrument: Instrument) -> bool:
        if self._preference == "cumulative" or instrument.kind == "gauge":
            return False
        # By the specification, lowmemory is cumulative for counters that are asked for.
        return self._preference == "delta" or not isinstance(instrument, Observed)

    def _metric(self, instrument: Instrument, points: Sequence[bytes]) -> bytes:
        temporality = _DELTA if self._delta(instrument) else _CUMULATIVE
        match instrument.kind:
            case "histogram":
                data = proto.length(9, b"".join(points) + temporality)
            case "counter":
                data = proto.length(7, b"".join(points) + temporality + _MONOTONIC)
            case "gauge":
                data = proto.length(5, b"".join(points))
        head = proto.string(1, instrument.name) + proto.string(2, instrument.about)
        return head + proto.string(3, instrument.unit) + data

    def _points(self, instrument: Instrument, told: Told) -> Iterator[bytes]:
        delta = self._delta(instrument)
        if isinstance(instrument, Histogram):
            for values, series in list(instrument.series.items()):
                point = self._histogram(instrument, values, series, told, delta)
                if point:
                    yield point
        elif isinstance(instrument, Counter | Observed):
            for values, number in instrument.read():
                point = self._number(instrument, values, number, told, delta)
                if point:
                    yield point

    def _times(self, instrument: Instrument, told: Told, delta: bool) -> bytes:
        began = self._last_at if delta and self._last_at else instrument.began
        return proto.fixed64(2, began) + proto.fixed64(3, told.at)

    def _histogram(
        self, instrument: Histogram, values: Values, series: Buckets, told: Told, delta: bool
    ) -> bytes:
        counts, total = tuple(series.counts), series.total
        exemplars = list(series.exemplars.values())
        if delta:
            key = (instrument.name, values)
            told.seen[key] = _Seen(counts, total)
            before = self._last.get(key)
            if before is not None:
                if counts == before.counts:
                    return b""
                counts = tuple(n - m for n, m in zip(counts, before.counts, strict=True))
                total -= before.total
        bounds = instrument.bounds
        parts = [
            *self._of_histograms.fields(dict(instrument.attributes(values))),
            self._times(instrument, told, delta),
            proto.fixed64(4, sum(counts)),
            proto.double(5, total),
            proto.length(6, struct.pack(f"<{len(counts)}Q", *counts)),
            proto.length(7, struct.pack(f"<{len(bounds)}d", *bounds)),
        ]
        parts += [proto.length(8, _exemplar(each)) for each in exemplars]
        return b"".join(parts)

    def _number(
        self, instrument: Instrument, values: Values, number: float, told: Told, delta: bool
    ) -> bytes:
        if delta:
            key = (instrument.name, values)
            told.seen[key] = _Seen((), number)
            before = self._last.get(key)
            if before is not None:
                number -= before.total
                if not number:
                    return b""
        parts = [
            *self._of_numbers.fields(dict(instrument.attributes(values))),
            self._times(instrument, told, delta),
            proto.double(4, number) if isinstance(number, float) else proto.fixed64(6, number),
        ]
        return b"".join(parts)


def _exemplar(exemplar: Exemplar) -> bytes:
    value, trace, span, when = exemplar
    return b"".join(
        (
            proto.fixed64(2, round(when * 1e9)),
            proto.double(3, value),
            proto.length(4, bytes.fromhex(span)),
            proto.length(5, bytes.fromhex(trace)),
        )
    )
