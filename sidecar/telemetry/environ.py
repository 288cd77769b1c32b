"""Reading ``OTEL_*`` as OpenTelemetry's specification of SDK environment variables has it.

An empty value is one that is not set. A number that is none is told and its default is taken; what
decides where telemetry goes is an error instead, because nobody would miss what never arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger("sidecar.telemetry")


class SettingError(Exception):
    """A variable that nothing can be done with; ``variable`` is its name. Quotes no secret."""

    def __init__(self, variable: str, why: str) -> None:
        super().__init__(f"{variable}: {why}")
        self.variable = variable


def text(name: str, environ: Mapping[str, str]) -> str:
    """The value without spaces around it; empty for one that is not set."""
    return environ.get(name, "").strip()


def flag(name: str, environ: Mapping[str, str]) -> bool:
    """True for ``true`` in any case, and for nothing else."""
    value = text(name, environ).lower()
    if value not in ("", "true", "false"):
        log.warning("%s is neither true nor false; it counts as false", name)
    return value == "true"


def whole(name: str, environ: Mapping[str, str], default: int, *, least: int = 0) -> int:
    """A whole number."""
    value = text(name, environ)
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        log.warning("%s is not a whole number from %d on; %d is used", name, least, default)
        return default
    return number


def milliseconds(name: str, environ: Mapping[str, str], default: float, *, least: int = 0) -> float:
    """A time in milliseconds, as seconds; ``default`` is in seconds too."""
    return whole(name, environ, round(default * 1000), least=least) / 1000
