"""Log lines, the access log and the audit trail to a receiver of OTLP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import sidecar
from sidecar import logs
from sidecar.events import CallFinished
from sidecar.ports.tracer import CURRENT, sampled
from sidecar.semconv import Key, Mcp
from sidecar.telemetry import resource
from sidecar.telemetry.apart import foreign
from sidecar.telemetry.audit_chain import Head, chained
from sidecar.telemetry.logs_access import NAME, clipped
from sidecar.telemetry.otlp import settings
from sidecar.telemetry.otlp.batches import Batch, Batches, BatchLimits, OtlpBatch
from sidecar.telemetry.otlp.http import OtlpHttp
from sidecar.telemetry.otlp.logs import DEBUG, ERROR, FATAL, INFO, WARN, LogEncoder, LogRecord
from sidecar.telemetry.otlp.proto import Value
from sidecar.telemetry.otlp.settings import DEFAULT_TIMEOUT

log = logging.getLogger("sidecar.telemetry")

AUDIT: Final = "sidecar.audit"
"""The event's name of a record of the audit trail."""
CALL: Final = "sidecar.call"
"""The event's name of a line of the access log."""
_OURSELVES: Final = log.name
_SEVERITIES: Final = (
    (logging.CRITICAL, FATAL),
    (logging.ERROR, ERROR),
    (logging.WARNING, WARN),
    (logging.INFO, INFO),
)


class LogsExport:
    """``start`` inside the loop, ``close`` at the end of it."""

    def __init__(self, exporters: Sequence[str], name: str, environ: Mapping[str, str]) -> None:
        """``exporters`` as ``OTEL_LOGS_EXPORTER`` names them; ``name`` is the service's where the
        environment says no other.

        Raises:
            SettingError: the environment asks for what cannot be had.
        """
        self.batches: Final[list[Batches[LogRecord]]] = []
        """One for each exporter, with what waits and what was lost."""
        self._opening: list[OtlpHttp] = []
        self._closing = AsyncExitStack()
        self._about = resource.attributes(name, environ)
        for each in exporters:
            self._add(foreign("logs", each, environ), environ)
        self._handler = _Handler(self.put)

    def _add(self, exporter: str, environ: Mapping[str, str]) -> None:
        begin: Callable[[], Batch[LogRecord]]
        if exporter:
            from sidecar.telemetry.sdk_logs import SdkLogs

            sdk = SdkLogs(exporter, self._about)
            begin, timeout, where = sdk.begin, 3 * DEFAULT_TIMEOUT, f"the exporter {exporter}"
            self._closing.push_async_callback(sdk.close)
        else:
            about = settings.settings("logs", environ)
            encoder, http = LogEncoder(self._about, sidecar.__version__), OtlpHttp(about)

            def begin() -> Batch[LogRecord]:
                return OtlpBatch(encoder, http)

            timeout, where = about.timeout, about.shown
            self._opening.append(http)
            self._closing.push_async_callback(http.close)
        limits = BatchLimits.of("OTEL_BLRP", environ, timeout)
        self.batches.append(Batches("log records", begin, limits, where=where))

    def put(self, record: LogRecord) -> None:
        """Never waits; from any thread."""
        for each in self.batches:
            each.put(record)

    async def start(self, *, lines: bool) -> None:
        """Begin to export; ``lines``: whatever is logged too. Raises SettingError."""
        for http in self._opening:
            await http.open()
        for batches in self.batches:
            batches.start()
            log.info("log records are exported to %s", batches.where)
        if lines:
            logging.getLogger().addHandler(self._handler)

    async def close(self) -> None:
        """Export what waits; bounded. Idempotent."""
        logging.getLogger().removeHandler(self._handler)
        await asyncio.gather(*(batches.close() for batches in self.batches))
        await self._closing.aclose()

    def access(self, event: CallFinished, text: str) -> None:
        """A line of the access log."""
        said: dict[str, Value] = {
            "logger": NAME,
            Key.CALL: event.call,
            Mcp.METHOD: event.method,
            Key.SERVER: event.server,
            Key.TARGET: clipped(event.target),
            Key.PRINCIPAL: event.principal,
            Key.DECISION: event.decision,
            Key.RULE: event.rule,
            Key.OUTCOME: event.outcome,
            Key.ATTEMPTS: event.attempts,
            "duration": round(event.seconds, 6),
        }
        if event.session:
            said[Mcp.SESSION] = event.session
        if event.error:
            said[Mcp.ERROR_TYPE] = event.error
        ids = logs.ids(event.trace)
        self.put(
            LogRecord(
                time.time_ns(),
                INFO,
                "INFO",
                text,
                {key: value for key, value in said.items() if value != ""},
                ids.get("trace_id", ""),
                ids.get("span_id", ""),
                sampled(event.trace),
                CALL,
            )
        )


class OtlpTrail:
    """The audit trail as log records: chained as in a file, from the start of this process on.

    What the receiver does not take is lost, and counted: nobody waits for it.
    """

    def __init__(self, put: Callable[[LogRecord], None]) -> None:
        self._put = put
        self.head = Head()

    def append(self, records: Sequence[bytes]) -> Head:
        """Hand them over."""
        for record in records:
            line, self.head = chained(self.head, record)
            now = time.time_ns()
            said: dict[str, Value] = {"sidecar.audit.seq": self.head.seq}
            body = line[:-1].decode()
            self._put(LogRecord(now, INFO, "INFO", body, said, event=AUDIT))
        return self.head

    def sync(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class _Handler(logging.Handler):
    """Whatever is logged, but for what exporting says of itself: that would never end."""

    def __init__(self, put: Callable[[LogRecord], None]) -> None:
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        """Never waits."""
        if record.name == _OURSELVES:
            return
        trace = CURRENT.get()
        ids = logs.ids(trace)
        said: dict[str, Value] = {"logger": record.name}
        error = logs.exception(record)
        if error:
            said["exception.type"] = type(record.exc_info[1]).__name__ if record.exc_info else ""
            said["exception.stacktrace"] = error
        severity = next((n for least, n in _SEVERITIES if record.levelno >= least), DEBUG)
        self._put(
            LogRecord(
                int(record.created * 1e9),
                severity,
                record.levelname,
                record.getMessage(),
                said,
                ids.get("trace_id", ""),
                ids.get("span_id", ""),
                sampled(trace),
            )
        )
