"""The SDK's way out for log records: our own as its, for exporters that a user installed.

Imported only where something of the SDK's is configured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from opentelemetry._logs import LogRecord as SdkRecord
from opentelemetry._logs import SeverityNumber
from opentelemetry.context.context import Context as SdkContext
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import sidecar
from sidecar.model import TraceContext
from sidecar.telemetry.apart import CONSOLE, Apart, load, made
from sidecar.telemetry.otlp.http import Sent
from sidecar.telemetry.otlp.logs import LogRecord
from sidecar.telemetry.otlp.proto import Value
from sidecar.telemetry.resource import SCOPE
from sidecar.telemetry.sdk import context_of

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter

EMPTY: Final = SdkContext()
CLOSE_WAIT: Final = 1.0
"""Seconds that an exporter has to end."""


class SdkLogs:
    """``console`` (to standard error), or what an entry point ``opentelemetry_logs_exporter``
    gives."""

    def __init__(self, name: str, about: Mapping[str, Value]) -> None:
        """``about`` are the attributes of whoever tells. Raises SettingError."""
        self._apart = Apart(name)
        self._exporter = _exporter(name)
        self._resource = Resource(dict(about))
        self._scope = InstrumentationScope(SCOPE, sidecar.__version__)

    def begin(self) -> SdkLogBatch:
        """An empty batch."""
        return SdkLogBatch(self)

    async def export(self, records: list[LogRecord], timeout: float) -> Sent:
        """Never raises. When it takes longer than so many seconds, it goes on without us."""

        def work() -> bool:
            from opentelemetry.sdk._logs.export import LogRecordExportResult

            result = self._exporter.export([self._readable(each) for each in records])
            return result is LogRecordExportResult.SUCCESS

        return await self._apart.run(work, timeout)

    async def close(self) -> None:
        """End the exporter; one that hangs is left."""

        def work() -> bool:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
            return True

        await self._apart.run(work, CLOSE_WAIT)

    def _readable(self, item: LogRecord) -> ReadableLogRecord:
        record = SdkRecord(
            timestamp=item.at,
            observed_timestamp=item.at,
            context=_context(item),
            severity_text=item.text,
            severity_number=SeverityNumber(item.severity),
            body=item.body,
            attributes=dict(item.attributes),
            event_name=item.event or None,
        )
        return ReadableLogRecord(record, self._resource, self._scope)


class SdkLogBatch:
    """Records for one call of ``export``."""

    __slots__ = ("_exporter", "_records")

    def __init__(self, exporter: SdkLogs) -> None:
        self._exporter = exporter
        self._records: list[LogRecord] = []

    def add(self, item: LogRecord) -> None:
        """One more."""
        self._records.append(item)

    async def send(self, timeout: float) -> Sent:
        """See ``batches.Batch``."""
        return await self._exporter.export(self._records, timeout)


def _context(item: LogRecord) -> SdkContext:
    """Its own span's, or none: never that of whoever exports."""
    flags = "01" if item.sampled else "00"
    parent = f"00-{item.trace_id}-{item.span_id}-{flags}" if item.trace_id else ""
    return context_of(TraceContext(parent)) or EMPTY


def _exporter(name: str) -> LogRecordExporter:
    if name == CONSOLE:
        from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter

        # Standard output belongs to the protocol, or to the one line of `sidecar run`.
        return ConsoleLogRecordExporter(out=sys.stderr)
    return cast("LogRecordExporter", made("logs", name, load("logs", name)))
