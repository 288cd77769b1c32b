"""Metrics to a receiver of OTLP, every minute or as ``OTEL_METRIC_EXPORT_INTERVAL`` says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sidecar
from sidecar.telemetry import resource
from sidecar.telemetry.environ import SettingError, milliseconds, text
from sidecar.telemetry.metrics import Registry
from sidecar.telemetry.otlp import settings
from sidecar.telemetry.otlp.http import OtlpHttp, Sent
from sidecar.telemetry.otlp.metrics import MetricEncoder, Preference, Told

log = logging.getLogger("sidecar.telemetry")

FIRST_PAUSE: Final = 1.0
"""Seconds before a request is sent again, doubled each time."""
CLOSE_LIMIT: Final = 2.0
"""Seconds that the last export takes at most."""
_PREFERENCE: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_HISTOGRAM: Final = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"


@dataclass(frozen=True, slots=True)
class Interval:
    """``every`` seconds; one export takes at most ``timeout`` seconds."""

    every: float = 60.0
    timeout: float = 30.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Interval:
        """By ``OTEL_METRIC_EXPORT_*``."""
        default = cls()
        every = milliseconds("OTEL_METRIC_EXPORT_INTERVAL", environ, default.every, least=1)
        timeout = milliseconds("OTEL_METRIC_EXPORT_TIMEOUT", environ, default.timeout, least=1)
        return cls(max(every, 0.01), min(timeout, max(every, 1.0)))


def preference(environ: Mapping[str, str]) -> Preference:
    """Raises SettingError."""
    match text(_PREFERENCE, environ).lower():
        case "" | "cumulative":
            return "cumulative"
        case "delta":
            return "delta"
        case "lowmemory":
            return "lowmemory"
        case other:
            raise SettingError(_PREFERENCE, f"{other!r} is none of cumulative, delta, lowmemory")


class MetricsExport:
    """``start`` inside the loop, ``close`` at the end of it."""

    def __init__(self, registry: Registry, name: str, environ: Mapping[str, str]) -> None:
        """``name`` is the service's where the environment says no other.

        Raises:
            SettingError: the environment asks for what cannot be had.
        """
        about = settings.settings("metrics", environ)
        if text(_HISTOGRAM, environ) not in ("", "explicit_bucket_histogram"):
            log.warning("%s: histograms have explicit buckets here, and no others", _HISTOGRAM)
        self._registry = registry
        self._interval = Interval.of(environ)
        self._timeout = min(about.timeout, self._interval.timeout)
        self._http = OtlpHttp(about)
        self._encoder = MetricEncoder(
            resource.attributes(name, environ), sidecar.__version__, preference(environ)
        )
        self._where = about.shown
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()
        self._failing = False
        self.failed = 0
        """Exports that did not arrive."""

    async def start(self) -> None:
        """Begin to export. Raises SettingError: a certificate cannot be used."""
        await self._http.open()
        self._task = asyncio.create_task(self._run(), name="exporter of metrics")
        log.info("metrics are exported to %s", self._where)

    async def close(self) -> None:
        """Export once more; bounded. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._end.set()
        _, late = await asyncio.wait([task], timeout=CLOSE_LIMIT)
        if late:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._http.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._end.is_set():
            due = max(due + self._interval.every, loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._end.wait()
            try:
                await self._export()
            except Exception:
                # One that fails must not be the last.
                log.exception("exporting metrics failed")

    async def _export(self) -> None:
        told = Told(time.time_ns())
        records: list[bytes] = []
        for record in self._encoder.metrics(self._registry, told):
            if record is None:
                await asyncio.sleep(0)
            else:
                records.append(record)
        sent = await self._deliver(self._encoder.request(records))
        if not sent.why:
            self._encoder.arrived(told)
        self._tell(sent)

    async def _deliver(self, body: bytes) -> Sent:
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._timeout, FIRST_PAUSE
        while True:
            sent = await self._http.send(body, end - loop.time())
            wait = pause if sent.after is None else sent.after
            pause *= 2
            if not sent.again or self._end.is_set() or loop.time() + wait >= end:
                return sent
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._end.wait()

    def _tell(self, sent: Sent) -> None:
        if sent.why:
            self.failed += 1
            if not self._failing:
                log.warning("metrics cannot be exported to %s: %s", self._where, sent.why)
        elif sent.rejected:
            log.warning("%s did not take %d data points", self._where, sent.rejected)
        elif self._failing:
            log.info("metrics are exported again")
        self._failing = bool(sent.why)
