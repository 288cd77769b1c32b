"""Metrics on their way, every minute or as ``OTEL_METRIC_EXPORT_INTERVAL`` says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.telemetry.environ import SettingError, milliseconds, text
from sidecar.telemetry.metrics import Registry
from sidecar.telemetry.metrics_read import Preference, Reader, Reading, Told
from sidecar.telemetry.metrics_ways import OtlpWay, Ready, SdkWay, Way
from sidecar.telemetry.otlp.http import Sent

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

    def __init__(self, registry: Registry, way: Way, environ: Mapping[str, str]) -> None:
        """Raises SettingError: the environment asks for what cannot be had."""
        if text(_HISTOGRAM, environ) not in ("", "explicit_bucket_histogram"):
            log.warning("%s: histograms have explicit buckets here, and no others", _HISTOGRAM)
        self._interval = Interval.of(environ)
        self._timeout = min(way.timeout, self._interval.timeout)
        self._way = way
        self._reader = Reader(registry, preference(environ))
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()
        self._failing = False
        self.failed = 0
        """Exports that did not arrive."""

    async def start(self) -> None:
        """Begin to export. Raises SettingError: a certificate cannot be used."""
        await self._way.open()
        self._task = asyncio.create_task(self._run(), name="exporter of metrics")
        log.info("metrics are exported to %s", self._way.where)

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
        await self._way.close()

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
        readings: list[Reading] = []
        for reading in self._reader.read(told):
            if reading is None:
                await asyncio.sleep(0)
            else:
                readings.append(reading)
        sent = await self._deliver(await self._way.ready(readings))
        if not sent.why:
            self._reader.arrived(told)
        self._tell(sent)

    async def _deliver(self, ready: Ready) -> Sent:
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._timeout, FIRST_PAUSE
        while True:
            sent = await ready.send(end - loop.time())
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
                log.warning("metrics cannot be exported to %s: %s", self._way.where, sent.why)
        elif sent.rejected:
            log.warning("%s did not take %d data points", self._way.where, sent.rejected)
        elif self._failing:
            log.info("metrics are exported again")
        self._failing = bool(sent.why)


def way(exporter: str, name: str, environ: Mapping[str, str]) -> Way:
    """Where an exporter that the environment names leads; ``""`` is our own.

    Raises:
        SettingError: there is no such exporter.
    """
    return SdkWay(exporter, name, environ) if exporter else OtlpWay(name, environ)
