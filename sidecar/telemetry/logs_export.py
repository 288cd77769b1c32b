"""Log lines, the access log and the audit trail to a receiver of OTLP."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

import sidecar
from sidecar import logs
from sidecar.events import CallFinished
from sidecar.ports.tracer import CURRENT
from sidecar.semconv import Key, Mcp
from sidecar.telemetry import resource
from sidecar.telemetry.audit_chain import Head, chained
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.logs_access import NAME, clipped
from sidecar.telemetry.otlp import settings
from sidecar.telemetry.otlp.batches import Batches, BatchLimits, OtlpBatch
from sidecar.telemetry.otlp.http import OtlpHttp
from sidecar.telemetry.otlp.logs import DEBUG, ERROR, FATAL, INFO, WARN, LogEncoder, LogRecord
from sidecar.telemetry.otlp.proto import Value
from sidecar.telemetry.traces import OTLP, exporters

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

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """``name`` is the service's where the environment says no other.

        Raises:
            SettingError: the environment asks for what cannot be had.
        """
        if settings.protocol("logs", environ) != settings.HTTP:
            raise SettingError(
                "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
                "logs are sent over http/protobuf; set it so, for them alone if need be",
            )
        about = settings.settings("logs", environ)
        encoder = LogEncoder(resource.attributes(name, environ), sidecar.__version__)
        http = OtlpHttp(about)
        self._http = http
        limits = BatchLimits.of("OTEL_BLRP", environ, about.timeout)
        self.batches: Final[Batches[LogRecord]] = Batches(
            "log records", lambda: OtlpBatch(encoder, http), limits, where=about.shown
        )
        self._handler = _Handler(self.batches)

    async def start(self, *, lines: bool) -> None:
        """Begin to export; ``lines``: whatever is logged too. Raises SettingError."""
        await self._http.open()
        self.batches.start()
        log.info("log records are exported to %s", self.batches.where)
        if lines:
            logging.getLogger().addHandler(self._handler)

    async def close(self) -> None:
        """Export what waits; bounded. Idempotent."""
        logging.getLogger().removeHandler(self._handler)
        await self.batches.close()
        await self._http.close()

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
        self.batches.put(
            LogRecord(
                time.time_ns(),
                INFO,
                "INFO",
                text,
                {key: value for key, value in said.items() if value != ""},
                ids.get("trace_id", ""),
                ids.get("span_id", ""),
                event.trace.traceparent.endswith("01"),
                CALL,
            )
        )


class OtlpTrail:
    """The audit trail as log records: chained as in a file, from the start of this process on.

    What the receiver does not take is lost, and counted: nobody waits for it.
    """

    def __init__(self, batches: Batches[LogRecord]) -> None:
        self._batches = batches
        self.head = Head()

    def append(self, records: Sequence[bytes]) -> Head:
        """Hand them over."""
        for record in records:
            line, self.head = chained(self.head, record)
            now = time.time_ns()
            said: dict[str, Value] = {"sidecar.audit.seq": self.head.seq}
            body = line[:-1].decode()
            self._batches.put(LogRecord(now, INFO, "INFO", body, said, event=AUDIT))
        return self.head

    def sync(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class _Handler(logging.Handler):
    """Whatever is logged, but for what exporting says of itself: that would never end."""

    def __init__(self, batches: Batches[LogRecord]) -> None:
        super().__init__()
        self._batches = batches

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
        self._batches.put(
            LogRecord(
                int(record.created * 1e9),
                severity,
                record.levelname,
                record.getMessage(),
                said,
                ids.get("trace_id", ""),
                ids.get("span_id", ""),
                trace.traceparent.endswith("01"),
            )
        )


def of(name: str, environ: Mapping[str, str]) -> LogsExport | None:
    """The exporter that the environment asks for, ``None`` where it asks for none.

    Raises:
        SettingError: it asks for what cannot be had.
    """
    wanted = exporters("logs", environ)
    if not wanted:
        return None
    for each in wanted:
        if each not in (OTLP, "otlp_proto_http"):
            raise SettingError("OTEL_LOGS_EXPORTER", f"{each!r} is not spoken here; use otlp")
    return LogsExport(name, environ)
