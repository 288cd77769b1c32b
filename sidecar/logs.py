"""Log lines on stderr: JSON for programs, text for people at a terminal.

Nothing logs an argument value, a header or a secret. A line that is written on behalf of a
request carries its trace (``trace_id``, ``span_id``), so that the two lead to each other.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

import msgspec

from sidecar.config.types import LogConfig
from sidecar.model import NO_TRACE, TraceContext
from sidecar.ports.tracer import CURRENT

OWN: Final = "sidecar"
"""The root of our loggers; of others' only warnings are told."""
LEVEL_VARIABLE: Final = "SIDECAR_LOG_LEVEL"
FORMAT_VARIABLE: Final = "SIDECAR_LOG_FORMAT"
LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_FORMATS: Final = ("auto", "json", "text")

log = logging.getLogger("sidecar")
_encode = msgspec.json.Encoder().encode


class Lines(logging.StreamHandler[TextIO]):
    """Our one handler on stderr."""


def configure(
    config: LogConfig | None = None,
    environ: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
) -> None:
    """One handler on stderr for everything of ours; libraries only from WARNING on.

    ``SIDECAR_LOG_LEVEL`` and ``SIDECAR_LOG_FORMAT`` win over the configuration. May be called
    again, with other settings.
    """
    config = config or LogConfig()
    environ = os.environ if environ is None else environ
    shape = shape_of(config, environ, told=False)
    stream = stream or sys.stderr
    handler = Lines(stream)
    handler.setFormatter(Json() if as_json(shape, stream) else Text())
    root = logging.getLogger()
    ours = any(isinstance(each, Lines) for each in root.handlers)
    for each in list(root.handlers):
        # What somebody else put there before would tell everything twice.
        if isinstance(each, Lines) or not ours:
            root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    level = _variable(LEVEL_VARIABLE, environ, tuple(LEVELS)) or config.level
    logging.getLogger(OWN).setLevel(LEVELS[level])
    # Told once there is somewhere to tell it.
    shape_of(config, environ)


def shape_of(
    config: LogConfig, environ: Mapping[str, str] | None = None, *, told: bool = True
) -> str:
    """``auto``, ``json`` or ``text``; the environment wins. ``told``: also that it is wrong."""
    environ = os.environ if environ is None else environ
    return _variable(FORMAT_VARIABLE, environ, _FORMATS, told=told) or config.format


def as_json(shape: str, stream: TextIO) -> bool:
    """Whether lines are JSON; ``auto``: unless it is a terminal."""
    return shape == "json" or (shape == "auto" and not stream.isatty())


def _variable(
    name: str, environ: Mapping[str, str], choices: tuple[str, ...], *, told: bool = True
) -> str:
    value = environ.get(name, "").strip().lower()
    if value in choices:
        return value
    if value and told:
        log.warning("%s is none of %s; it is ignored", name, ", ".join(choices))
    return ""


class Text(logging.Formatter):
    """``13:46:45 INFO sidecar.policy: …``"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")


class Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {
            "time": moment(record.created),
            "level": level_name(record.levelno),
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= ids(CURRENT.get())
        error = exception(record)
        if error:
            said["exception"] = error
        return encoded(said)


def encoded(said: Mapping[str, object]) -> str:
    """One line of JSON. Half a surrogate pair, which UTF-8 has no bytes for, becomes ``?``."""
    try:
        return _encode(said).decode()
    except UnicodeEncodeError:
        whole = {
            key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for key, value in said.items()
        }
        return _encode(whole).decode()


def exception(record: logging.LogRecord) -> str:
    """The traceback of a record that has one."""
    if record.exc_info is None or record.exc_info[1] is None:
        return ""
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")


def level_name(number: int) -> Literal["debug", "info", "warning", "error", "critical"]:
    """A level as JSON lines tell it."""
    if number >= logging.CRITICAL:
        return "critical"
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def moment(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def ids(trace: TraceContext) -> dict[str, str]:
    """Trace and span of a context, as OpenTelemetry's logs in JSON call them."""
    parent = trace.traceparent
    if trace is NO_TRACE or len(parent) < 55:
        return {}
    return {"trace_id": parent[3:35], "span_id": parent[36:52]}
