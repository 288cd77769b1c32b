"""Tracing as the environment asks for it: the tracer, and where its spans go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import sidecar
from sidecar.events import Bus
from sidecar.ports.tracer import PassingTracer, Tracer
from sidecar.telemetry import resource, sampling
from sidecar.telemetry.environ import flag, text
from sidecar.telemetry.otlp import settings
from sidecar.telemetry.otlp.batches import Batch, Batches, BatchLimits, OtlpBatch
from sidecar.telemetry.otlp.http import OtlpHttp
from sidecar.telemetry.otlp.settings import DEFAULT_TIMEOUT, Signal
from sidecar.telemetry.otlp.trace import SpanEncoder
from sidecar.telemetry.span import Keep, KeptSpan, SpanLimits
from sidecar.telemetry.spans import EventSpans
from sidecar.telemetry.tracer import KeepingTracer

log = logging.getLogger("sidecar.telemetry")

OTLP: Final = "otlp"


def exporters(signal: Signal, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Which exporters a signal has: what ``OTEL_*_EXPORTER`` names, ``otlp`` where it names none
    and an endpoint is set, else nothing. Nothing with ``OTEL_SDK_DISABLED`` too."""
    if flag("OTEL_SDK_DISABLED", environ):
        return ()
    named = text(f"OTEL_{signal.upper()}_EXPORTER", environ)
    if not named:
        return (OTLP,) if settings.given(signal, environ) else ()
    found = dict.fromkeys(name.strip() for name in named.split(","))
    return tuple(name for name in found if name not in ("", "none"))


class Traces:
    """``tracer`` at once; ``start`` inside the loop, ``close`` at the end of it."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """``name`` is the service's where the environment says no other.

        Raises:
            SettingError: the environment asks for what cannot be had.
        """
        self.batches: list[Batches[KeptSpan]] = []
        """One for each exporter, with what waits and what was lost."""
        self._opening: list[OtlpHttp] = []
        self._closing = AsyncExitStack()
        self._about = resource.attributes(name, environ)
        for each in exporters("traces", environ):
            self._add(each, environ)
        self.tracer: Tracer = KeepingTracer(
            sampling.of(environ),
            SpanLimits.of(environ),
            _keep(self.batches),
            baggage=_baggage(environ),
        )

    def _add(self, name: str, environ: Mapping[str, str]) -> None:
        # Imported where telemetry is on: what finds others' exporters costs memory.
        from sidecar.telemetry.apart import foreign

        exporter = foreign("traces", name, environ)
        if exporter:
            self._add_sdk(exporter, environ)
        else:
            self._add_http(environ)

    def _add_http(self, environ: Mapping[str, str]) -> None:
        about = settings.settings("traces", environ)
        http = OtlpHttp(about)
        encoder = SpanEncoder(self._about, sidecar.__version__)
        limits = BatchLimits.of("OTEL_BSP", environ, about.timeout)
        self._opening.append(http)
        self._closing.push_async_callback(http.close)
        self._queue(lambda: OtlpBatch(encoder, http), limits, about.shown)

    def _add_sdk(self, name: str, environ: Mapping[str, str]) -> None:
        from sidecar.telemetry.sdk import Readable, exporter

        made = exporter(name, Readable(self._about))
        limits = BatchLimits.of("OTEL_BSP", environ, 3 * DEFAULT_TIMEOUT)
        self._closing.push_async_callback(made.close)
        self._queue(made.begin, limits, f"the exporter {name}")

    def _queue(self, begin: Callable[[], Batch[KeptSpan]], limits: BatchLimits, where: str) -> None:
        self.batches.append(Batches("spans", begin, limits, where=where))

    async def start(self) -> None:
        """Begin to export. Connects to nobody yet.

        Raises:
            SettingError: a certificate cannot be used.
        """
        for http in self._opening:
            await http.open()
        for batches in self.batches:
            batches.start()
            log.info("spans are exported to %s", batches.where)

    async def close(self) -> None:
        """Export what waits; bounded (see ``batches``). Idempotent."""
        await asyncio.gather(*(batches.close() for batches in self.batches))
        await self._closing.aclose()


def _baggage(environ: Mapping[str, str]) -> bool:
    """Whether ``OTEL_PROPAGATORS`` has baggage go on. What is not W3C's has no place in MCP."""
    named = text("OTEL_PROPAGATORS", environ).lower() or "tracecontext,baggage"
    found = {each.strip() for each in named.split(",")}
    strange = sorted(found - {"tracecontext", "baggage", "none", ""})
    if strange or "tracecontext" not in found:
        log.warning(
            "OTEL_PROPAGATORS: MCP carries W3C trace contexts, always%s",
            f"; {', '.join(strange)} is not spoken" if strange else "",
        )
    return "baggage" in found


def _keep(batches: Sequence[Batches[KeptSpan]]) -> Keep:
    if len(batches) == 1:
        return batches[0].put

    def keep(span: KeptSpan) -> None:
        for each in batches:
            each.put(span)

    return keep


class Tracing:
    """What the app has of tracing, whether there is any or not: ``tracer`` for what hands
    contexts on, ``kept`` for what only makes spans (``None``: nobody keeps them)."""

    def __init__(self, name: str, bus: Bus, environ: Mapping[str, str]) -> None:
        """``name`` is the service's where the environment says no other.

        Raises:
            SettingError: the environment asks for what cannot be had.
        """
        on = bool(exporters("traces", environ))
        self.traces: Final = Traces(name, environ) if on else None
        self.kept: Final = self.traces.tracer if self.traces is not None else None
        self.tracer: Final[Tracer] = self.kept or PassingTracer()
        self._events = EventSpans(bus, self.kept) if self.kept is not None else None

    @property
    def batches(self) -> Sequence[Batches[KeptSpan]]:
        """What waits to be exported, and what was lost, for each exporter."""
        return self.traces.batches if self.traces is not None else ()

    async def start(self) -> None:
        """Inside the loop. Raises SettingError."""
        if self.traces is not None:
            await self.traces.start()

    async def close(self) -> None:
        """Last of all: what ended before is exported, in a few seconds at most. Idempotent."""
        if self._events is not None:
            self._events.close()
        if self.traces is not None:
            await self.traces.close()
