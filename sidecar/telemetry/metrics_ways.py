"""Ways that metrics go: our own OTLP over HTTP, or an exporter of the SDK's or somebody's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

import sidecar
from sidecar.telemetry import resource
from sidecar.telemetry.apart import CONSOLE, Apart, load, made
from sidecar.telemetry.metrics import Exemplar, Histogram
from sidecar.telemetry.metrics_read import Point, Reading
from sidecar.telemetry.otlp import settings
from sidecar.telemetry.otlp.http import OtlpHttp, Sent
from sidecar.telemetry.otlp.metrics import MetricEncoder
from sidecar.telemetry.otlp.proto import Value

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
    from opentelemetry.sdk.metrics import export as sdk

CLOSE_WAIT = 1.0
"""Seconds that an exporter of somebody else has to end."""


class Ready(Protocol):
    """Everything that one export tells, ready to be sent, and sent again."""

    async def send(self, timeout: float) -> Sent:
        """Within so many seconds. Never raises."""
        ...


class Way(Protocol):
    """Where metrics go."""

    where: str
    timeout: float

    async def open(self) -> None:
        """Raises SettingError."""
        ...

    async def ready(self, readings: list[Reading]) -> Ready:
        """Encode them; others have their turn meanwhile."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


class OtlpWay:
    """OTLP over HTTP, encoded by ourselves."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """Raises SettingError."""
        about = settings.settings("metrics", environ)
        self.where, self.timeout = about.shown, about.timeout
        self._http = OtlpHttp(about)
        self._encoder = MetricEncoder(resource.attributes(name, environ), sidecar.__version__)

    async def open(self) -> None:
        """See the protocol."""
        await self._http.open()

    async def ready(self, readings: list[Reading]) -> Ready:
        """See the protocol."""
        records = []
        for reading in readings:
            records.append(self._encoder.record(reading))
            await asyncio.sleep(0)
        return _Body(self._http, self._encoder.request(records))

    async def close(self) -> None:
        """See the protocol."""
        await self._http.close()


class _Body:
    def __init__(self, http: OtlpHttp, body: bytes) -> None:
        self._http = http
        self._body = body

    async def send(self, timeout: float) -> Sent:
        """See the protocol."""
        return await self._http.send(self._body, timeout)


class SdkWay:
    """An exporter of the SDK's (``console``, to standard error; gRPC), or of somebody else's, by
    the entry point ``opentelemetry_metrics_exporter``."""

    timeout = 30.0

    def __init__(self, exporter: str, name: str, environ: Mapping[str, str]) -> None:
        """Raises SettingError."""
        self.where = f"the exporter {exporter}"
        self._apart = Apart(exporter)
        self._exporter = _exporter(exporter)
        self._about = resource.attributes(name, environ)

    async def open(self) -> None:
        """Nothing to do."""

    async def ready(self, readings: list[Reading]) -> Ready:
        """See the protocol."""
        return _Data(self, readings)

    async def send(self, readings: list[Reading], timeout: float) -> Sent:
        """Have it export them. Never raises."""

        def work() -> bool:
            from opentelemetry.sdk.metrics.export import MetricExportResult

            data = metrics_data(readings, self._about)
            result = self._exporter.export(data, timeout_millis=timeout * 1000)
            return result is MetricExportResult.SUCCESS

        return await self._apart.run(work, timeout)

    async def close(self) -> None:
        """End the exporter; one that hangs is left."""

        def work() -> bool:
            self._exporter.shutdown(timeout_millis=CLOSE_WAIT * 1000)
            return True

        await self._apart.run(work, CLOSE_WAIT)


class _Data:
    def __init__(self, way: SdkWay, readings: list[Reading]) -> None:
        self._way = way
        self._readings = readings

    async def send(self, timeout: float) -> Sent:
        """See the protocol."""
        return await self._way.send(self._readings, timeout)


def _exporter(name: str) -> sdk.MetricExporter:
    if name == CONSOLE:
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

        # Standard output belongs to the protocol, or to the one line of `sidecar run`.
        return ConsoleMetricExporter(out=sys.stderr)
    return cast("sdk.MetricExporter", made("metrics", name, load("metrics", name)))


def metrics_data(readings: list[Reading], about: Mapping[str, Value]) -> sdk.MetricsData:
    """Readings as the SDK has them."""
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = InstrumentationScope(resource.SCOPE, sidecar.__version__)
    told = [
        sdk.Metric(each.instrument.name, each.instrument.about, each.instrument.unit, _data(each))
        for each in readings
    ]
    scoped = sdk.ScopeMetrics(scope, told, "")
    return sdk.MetricsData([sdk.ResourceMetrics(Resource(dict(about)), [scoped], "")])


def _data(reading: Reading) -> sdk.Histogram | sdk.Gauge | sdk.Sum:
    from opentelemetry.sdk.metrics import export as sdk

    kinds = sdk.AggregationTemporality
    temporality = kinds.DELTA if reading.delta else kinds.CUMULATIVE
    instrument = reading.instrument
    if isinstance(instrument, Histogram):
        points = [
            sdk.HistogramDataPoint(
                dict(each.attributes),
                each.began,
                each.at,
                sum(each.counts),
                each.number,
                each.counts,
                instrument.bounds,
                *_ends(each, instrument),
                [_exemplar(exemplar) for exemplar in each.exemplars],
            )
            for each in reading.points
        ]
        return sdk.Histogram(points, temporality)
    numbers = [
        sdk.NumberDataPoint(dict(each.attributes), each.began, each.at, each.number)
        for each in reading.points
    ]
    if instrument.kind == "gauge":
        return sdk.Gauge(numbers)
    return sdk.Sum(numbers, temporality, is_monotonic=True)


def _ends(point: Point, instrument: Histogram) -> tuple[float, float]:
    """The least and the greatest value, which the SDK's shape has and we do not count: as near as
    the buckets know."""
    full = [at for at, count in enumerate(point.counts) if count]
    if not full:
        return 0.0, 0.0
    bounds = (0.0, *instrument.bounds)
    return bounds[full[0]], bounds[min(full[-1] + 1, len(bounds) - 1)]


def _exemplar(exemplar: Exemplar) -> SdkExemplar:
    from opentelemetry.sdk.metrics import Exemplar as Made

    value, trace, span, when = exemplar
    return Made({}, value, round(when * 1e9), int(span, 16), int(trace, 16))
