"""Timestamps and durations in nanoseconds; parsing is linear, zones come from zoneinfo."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable
from typing import Final
from zoneinfo import ZoneInfo

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.types import DURATION, INT, STRING, TIMESTAMP
from sidecar.policy.cel.values import INT_MAX, INT_MIN, Duration, Timestamp

SECOND: Final = 1_000_000_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST: Final = -62_135_596_800 * SECOND
_LAST: Final = 253_402_300_800 * SECOND - 1

_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_PART: Final = re.compile(r"(\d{1,20})(?:\.(\d{0,20}))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_FRACTION: Final = re.compile(r"\.(\d{1,20})(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_LONGEST: Final = 100
_READING_A_ZONE: Final = 10
_OFFSET: Final = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]{0,31}(?:/[A-Za-z0-9_+\-]{1,31}){0,2}", re.ASCII)


def _range(what: str) -> EvalError:
    return EvalError("overflow", f"a {what} is out of range")


def timestamp_of(nanos: int) -> Timestamp:
    """Nanoseconds since the epoch as a timestamp.

    Raises:
        EvalError: outside the years 1 to 9999.
    """
    if not _FIRST <= nanos <= _LAST:
        raise _range("timestamp")
    return Timestamp(nanos)


def duration_of(nanos: int) -> Duration:
    """Nanoseconds as a duration.

    Raises:
        EvalError: beyond a signed 64-bit integer.
    """
    if not INT_MIN <= nanos <= INT_MAX:
        raise _range("duration")
    return Duration(nanos)


def parse_timestamp(text: str) -> Timestamp:
    """RFC 3339, up to nanoseconds.

    Raises:
        EvalError: the text is no timestamp, or out of range.
    """
    match = _RFC3339.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise EvalError("invalid_argument", "a string is not an RFC 3339 timestamp")
    year, month, day, hour, minute, second, fraction, sign, off_hour, off_minute = match.groups()
    try:
        moment = dt.datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=dt.UTC
        )
    except ValueError:
        raise _range("timestamp") from None
    nanos = _since_epoch(moment) * SECOND + int((fraction or "").ljust(9, "0"))
    if sign:
        if int(off_hour) > 23 or int(off_minute) > 59:
            raise EvalError("invalid_argument", "a string is not an RFC 3339 timestamp")
        offset = (int(off_hour) * 3600 + int(off_minute) * 60) * SECOND
        nanos += -offset if sign == "+" else offset
    return timestamp_of(nanos)


def _since_epoch(moment: dt.datetime) -> int:
    """Whole seconds; exact, unlike ``datetime.timestamp``."""
    delta = moment - _EPOCH
    return delta.days * 86400 + delta.seconds


def format_timestamp(value: Timestamp) -> str:
    """RFC 3339 in UTC, with as many decimals as it has."""
    seconds, nanos = divmod(value.nanos, SECOND)
    moment = _EPOCH + dt.timedelta(seconds=seconds)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return (
        f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"
        f"T{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}{fraction}Z"
    )


def parse_duration(text: str) -> Duration:
    """``1h30m``, ``-1.5s``, ``10ms``: numbers with units, as Go writes them.

    Raises:
        EvalError: the text is no duration, or out of range.
    """
    if len(text) > _LONGEST:
        raise _not_a_duration()
    at = 1 if text[:1] in ("-", "+") else 0
    if text[at:] == "0":
        return Duration(0)
    total = 0
    if at == len(text):
        raise _not_a_duration()
    while at < len(text):
        match = _PART.match(text, at)
        if match is not None:
            whole, fraction, unit = match.groups()
        else:
            match = _FRACTION.match(text, at)
            if match is None:
                raise _not_a_duration()
            whole, (fraction, unit) = "0", match.groups()
        total += int(whole) * _UNITS[unit]
        if fraction:
            total += int(fraction) * _UNITS[unit] // 10 ** len(fraction)
        at = match.end()
    return duration_of(-total if text.startswith("-") else total)


def _not_a_duration() -> EvalError:
    return EvalError("invalid_argument", "a string is not a duration such as 1h30m or 1.5s")


def format_duration(value: Duration) -> str:
    """Seconds with a trailing ``s``, with as many decimals as it has."""
    sign = "-" if value.nanos < 0 else ""
    seconds, nanos = divmod(abs(value.nanos), SECOND)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{sign}{seconds}{fraction}s"


# -------------------------------------------------------------------------------- getters


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> dt.tzinfo:
    match = _OFFSET.fullmatch(name)
    if match is not None:
        sign, hours, minutes = match.groups()
        if int(hours) > 23 or int(minutes) > 59:
            raise _no_zone()
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes))
        return dt.timezone(-offset if sign == "-" else offset)
    if _ZONE.fullmatch(name) is None:
        raise _no_zone()
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise _no_zone() from None


def _no_zone() -> EvalError:
    return EvalError("invalid_argument", "a string names no time zone")


def _local(value: Timestamp, zone: str) -> dt.datetime:
    try:
        moment = _EPOCH + dt.timedelta(seconds=value.nanos // SECOND)
        return moment if zone == "UTC" else moment.astimezone(_zone(zone))
    except OverflowError:
        raise _range("timestamp") from None


def _getter(name: str, read: Callable[[dt.datetime], int]) -> Function:
    def in_utc(_: Budget, value: Timestamp) -> int:
        return read(_local(value, "UTC"))

    def in_zone(budget: Budget, value: Timestamp, zone: str) -> int:
        budget.charge(_READING_A_ZONE)
        return read(_local(value, zone))

    return Function(
        name,
        Overload((TIMESTAMP,), INT, in_utc, member=True),
        Overload((TIMESTAMP, STRING), INT, in_zone, member=True),
    )


def _milliseconds(_: Budget, value: Timestamp, zone: str = "UTC") -> int:
    return value.nanos % SECOND // 1_000_000


def _truncated(nanos: int, unit: int) -> int:
    return nanos // unit if nanos >= 0 else -(-nanos // unit)


def _total(name: str, unit: int) -> Function:
    def read(_: Budget, value: Duration) -> int:
        return _truncated(value.nanos, unit)

    return Function(name, Overload((DURATION,), INT, read, member=True))


def _duration_milliseconds(_: Budget, value: Duration) -> int:
    return _truncated(value.nanos, 1_000_000) - _truncated(value.nanos, SECOND) * 1000


FUNCTIONS: Final = (
    Function(
        "timestamp",
        Overload((STRING,), TIMESTAMP, lambda _, text: parse_timestamp(text)),
        Overload((INT,), TIMESTAMP, lambda _, seconds: timestamp_of(seconds * SECOND)),
        Overload((TIMESTAMP,), TIMESTAMP, lambda _, value: value),
    ),
    Function(
        "duration",
        Overload((STRING,), DURATION, lambda _, text: parse_duration(text)),
        Overload((DURATION,), DURATION, lambda _, value: value),
    ),
    _getter("getFullYear", lambda t: t.year),
    _getter("getMonth", lambda t: t.month - 1),
    _getter("getDate", lambda t: t.day),
    _getter("getDayOfMonth", lambda t: t.day - 1),
    _getter("getDayOfWeek", lambda t: t.isoweekday() % 7),
    _getter("getDayOfYear", lambda t: t.timetuple().tm_yday - 1),
    _getter("getHours", lambda t: t.hour),
    _getter("getMinutes", lambda t: t.minute),
    _getter("getSeconds", lambda t: t.second),
    _total("getHours", 3600 * SECOND),
    _total("getMinutes", 60 * SECOND),
    _total("getSeconds", SECOND),
    Function(
        "getMilliseconds",
        Overload((TIMESTAMP,), INT, _milliseconds, member=True),
        Overload((TIMESTAMP, STRING), INT, _milliseconds, member=True),
        Overload((DURATION,), INT, _duration_milliseconds, member=True),
    ),
)
