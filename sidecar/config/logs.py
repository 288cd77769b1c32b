"""``log``: what is told on stderr, and how."""

from __future__ import annotations

from typing import Literal, cast

from sidecar.config.record import Field, Got, Record, every
from sidecar.config.shapes import Choice, Flag
from sidecar.config.types import LogConfig


class Log:
    """Fields of ``log``."""

    LEVEL = Field(
        "level",
        Choice("debug", "info", "warning", "error"),
        LogConfig().level,
        "The least that is told of.",
    )
    FORMAT = Field(
        "format",
        Choice("auto", "json", "text"),
        LogConfig().format,
        "json, text, or auto: text at a terminal and JSON elsewhere.",
    )
    ACCESS = Field(
        "access", Flag(), LogConfig().access, "true: a line for each call, without its arguments."
    )


def _log(got: Got) -> LogConfig:
    # The choices have been checked; a shape cannot tell the type of its words.
    return LogConfig(
        cast("Literal['debug', 'info', 'warning', 'error']", got[Log.LEVEL]),
        cast("Literal['auto', 'json', 'text']", got[Log.FORMAT]),
        got[Log.ACCESS],
    )


LOG = Record("a mapping", every(Log), _log)
