"""Every key of ``telemetry``. Where it goes is said by ``OTEL_*`` variables alone."""

from __future__ import annotations

from sidecar.config.record import Field, Record, every
from sidecar.config.servers import GLOBS
from sidecar.config.shapes import Flag
from sidecar.config.types import CaptureConfig, TelemetryConfig


class Captured:
    """Fields of ``telemetry.capture``."""

    ARGUMENTS = Field("arguments", Flag(), False, "true: spans of tool calls hold their arguments.")
    RESULTS = Field("results", Flag(), False, "true: spans of tool calls hold what was answered.")
    REDACT = Field(
        "redact",
        GLOBS,
        (),
        "What of both is hidden, besides parking.redact; globs over names and dotted paths.",
    )


CAPTURE = Record(
    "a mapping",
    every(Captured),
    lambda got: CaptureConfig(
        arguments=got[Captured.ARGUMENTS],
        results=got[Captured.RESULTS],
        redact=got[Captured.REDACT],
    ),
)


class Telemetry:
    """Fields of ``telemetry``."""

    CAPTURE = Field(
        "capture", CAPTURE, CaptureConfig(), "What of calls goes on spans; nothing by default."
    )


TELEMETRY = Record(
    "a mapping",
    every(Telemetry),
    lambda got: TelemetryConfig(capture=got[Telemetry.CAPTURE]),
    hints=dict.fromkeys(
        ("endpoint", "exporter", "otlp", "headers", "sampler"),
        "OTEL_* variables say where telemetry goes, such as OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
)
