"""Metrics in OTLP (opentelemetry-proto, metrics/v1)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from sidecar.telemetry.metrics import Exemplar, Histogram
from sidecar.telemetry.metrics_read import Point, Reading
from sidecar.telemetry.otlp import proto
from sidecar.telemetry.otlp.proto import Attributes, Value
from sidecar.telemetry.resource import SCOPE

_METRICS: Final = 2
_DELTA, _CUMULATIVE = proto.number(2, 1), proto.number(2, 2)
_MONOTONIC: Final = proto.number(3, 1)


class MetricEncoder:
    """``resource`` are the attributes of whoever tells."""

    def __init__(self, resource: Mapping[str, Value], version: str) -> None:
        self._resource = proto.resource(resource)
        self._scope = proto.scope(SCOPE, version)
        self._of_numbers = Attributes(7)
        self._of_histograms = Attributes(9)

    def request(self, records: Sequence[bytes]) -> bytes:
        """The whole request."""
        return proto.scoped(self._resource, self._scope, _METRICS, records)

    def record(self, reading: Reading) -> bytes:
        """One ``Metric``."""
        instrument = reading.instrument
        temporality = _DELTA if reading.delta else _CUMULATIVE
        if isinstance(instrument, Histogram):
            bounds = instrument.bounds
            told = proto.length(7, struct.pack(f"<{len(bounds)}d", *bounds))
            points = [proto.length(1, self._histogram(each, told)) for each in reading.points]
            data = proto.length(9, b"".join(points) + temporality)
        else:
            gauge = instrument.kind == "gauge"
            numbers = b"".join(
                proto.length(1, self._number(each, 0 if gauge else each.began))
                for each in reading.points
            )
            if gauge:
                data = proto.length(5, numbers)
            else:
                data = proto.length(7, numbers + temporality + _MONOTONIC)
        head = proto.string(1, instrument.name) + proto.string(2, instrument.about)
        return head + proto.string(3, instrument.unit) + data

    def _histogram(self, point: Point, bounds: bytes) -> bytes:
        parts = [
            *self._of_histograms.fields(dict(point.attributes)),
            proto.fixed64(2, point.began),
            proto.fixed64(3, point.at),
            proto.fixed64(4, sum(point.counts)),
            proto.double(5, point.number),
            proto.length(6, struct.pack(f"<{len(point.counts)}Q", *point.counts)),
            bounds,
        ]
        parts += [proto.length(8, _exemplar(each)) for each in point.exemplars]
        return b"".join(parts)

    def _number(self, point: Point, began: int) -> bytes:
        number = point.number
        parts = [
            *self._of_numbers.fields(dict(point.attributes)),
            proto.fixed64(2, began) if began else b"",
            proto.fixed64(3, point.at),
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
