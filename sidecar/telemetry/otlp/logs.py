"""Log records in OTLP (opentelemetry-proto, logs/v1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.telemetry.otlp import proto
from sidecar.telemetry.otlp.proto import Attributes, Value
from sidecar.telemetry.resource import SCOPE

_RECORDS: Final = 2
DEBUG, INFO, WARN, ERROR, FATAL = 5, 9, 13, 17, 21
"""Severity numbers of the log data model."""


@dataclass(slots=True, eq=False)
class LogRecord:
    """One record. ``at`` is in nanoseconds since the epoch, ``trace_id`` and ``span_id`` are in
    hex or empty, ``event`` is the name of an event, empty for a mere line."""

    at: int
    severity: int
    text: str
    body: str
    attributes: Mapping[str, Value] = field(default_factory=dict)
    trace_id: str = ""
    span_id: str = ""
    sampled: bool = False
    event: str = ""


class LogEncoder:
    """``resource`` are the attributes of whoever tells."""

    def __init__(self, resource: Mapping[str, Value], version: str) -> None:
        self._resource = proto.resource(resource)
        self._scope = proto.scope(SCOPE, version)
        self._attributes = Attributes(6)

    def record(self, item: LogRecord) -> bytes:
        """One ``LogRecord``."""
        parts = [
            proto.fixed64(1, item.at),
            proto.fixed64(11, item.at),
            proto.number(2, item.severity),
            proto.string(3, item.text),
            proto.length(5, proto.any_value(item.body)),
            *self._attributes.fields(item.attributes),
        ]
        if item.trace_id:
            parts += (
                proto.fixed32(8, int(item.sampled)),
                proto.length(9, bytes.fromhex(item.trace_id)),
                proto.length(10, bytes.fromhex(item.span_id)),
            )
        if item.event:
            parts.append(proto.string(12, item.event))
        return b"".join(parts)

    def request(self, records: Sequence[bytes]) -> bytes:
        """The whole request."""
        return proto.scoped(self._resource, self._scope, _RECORDS, records)
