"""Conversions between types, ``type``, ``dyn`` and ``size``."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Final, TypeAlias

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.functions.time import SECOND, format_duration, format_timestamp
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    LIST,
    MAP,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    URL,
)
from sidecar.policy.cel.values import (
    INT_MAX,
    INT_MIN,
    TYPES,
    UINT_MAX,
    Timestamp,
    TypeValue,
    UInt,
    Url,
    Value,
    type_name,
    widen,
)

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,10})?|[+-]?(?:inf|infinity)|nan",
    re.ASCII | re.IGNORECASE,
)
_LONGEST_NUMBER: Final = 1000
_PRECISION: Final = 6
_TRUE: Final = frozenset(("1", "t", "true", "T", "TRUE", "True"))
_FALSE: Final = frozenset(("0", "f", "false", "F", "FALSE", "False"))


def _out_of_range(target: str) -> EvalError:
    return EvalError("overflow", f"a value is out of the range of {target}")


def _unreadable(target: str) -> EvalError:
    return EvalError("invalid_argument", f"a string cannot be read as {target}")


def to_int(_: Budget, value: Value) -> int:
    """From a number, truncating."""
    if type(value) is float:
        if not -(2.0**63) < value < 2.0**63:
            raise _out_of_range("int")
    elif not INT_MIN <= value <= INT_MAX:
        raise _out_of_range("int")
    return int(value)


def _int_of_string(_: Budget, text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise _unreadable("int")
    value = int(text)
    if not INT_MIN <= value <= INT_MAX:
        raise _out_of_range("int")
    return value


def _int_of_timestamp(_: Budget, value: Timestamp) -> int:
    return value.nanos // SECOND


def to_uint(_: Budget, value: Value) -> UInt:
    """From a number, truncating."""
    if type(value) is float:
        if not 0 <= value < 2.0**64:
            raise _out_of_range("uint")
    elif not 0 <= value <= UINT_MAX:
        raise _out_of_range("uint")
    return UInt(value)


def _uint_of_string(_: Budget, text: str) -> UInt:
    if _INTEGER.fullmatch(text) is None or text.startswith(("-", "+")):
        raise _unreadable("uint")
    value = int(text)
    if value > UINT_MAX:
        raise _out_of_range("uint")
    return UInt(value)


def _to_double(_: Budget, value: Value) -> float:
    return widen(value)


def _double_of_string(_: Budget, text: str) -> float:
    if len(text) > _LONGEST_NUMBER or _DOUBLE.fullmatch(text) is None:
        raise _unreadable("double")
    return float(text)


def _bool_of_string(_: Budget, text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _unreadable("bool")


def format_double(value: float) -> str:
    """A double in the shortest form that reads back as the same value, as C's ``%g``."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, point = _decimal(value)
    exponent = point - 1
    if exponent < -4 or exponent >= _PRECISION:
        mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{exponent:+03d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    whole = digits[:point].ljust(point, "0")
    return f"{sign}{whole}.{digits[point:]}" if len(digits) > point else f"{sign}{whole}"


def _decimal(value: float) -> tuple[str, str, int]:
    """Sign, shortest digits, and where the decimal point stands in them."""
    parts = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(parts.exponent, int)
    digits = "".join(map(str, parts.digits))
    point = 1 if digits == "0" else len(digits) + parts.exponent
    return "-" if parts.sign else "", digits, point


def _string_of_int(_: Budget, value: Value) -> str:
    if not INT_MIN <= value <= UINT_MAX:
        raise _out_of_range("int")
    return str(int(value))


def _string_of_bytes(budget: Budget, value: bytes) -> str:
    budget.text(len(value))
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvalError("invalid_argument", "the bytes are not valid UTF-8") from None


def _bytes_of_string(budget: Budget, value: str) -> bytes:
    budget.text(len(value))
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise EvalError("invalid_argument", "a string is not valid Unicode") from None


Address: TypeAlias = IPv4Address | IPv6Address | IPv4Interface | IPv6Interface


def _string_of_address(_: Budget, value: Address) -> str:
    return str(value)


def _string_of_url(_: Budget, value: Url) -> str:
    return value.text


def _type(_: Budget, value: Value) -> TypeValue:
    return TYPES.get(type_name(value)) or TypeValue(type_name(value))


def _same(_: Budget, value: Value) -> Value:
    return value


def _size(_: Budget, value: Value) -> int:
    return len(value)


_SIZED: Final = (STRING, BYTES, LIST, MAP)

FUNCTIONS: Final = (
    Function("dyn", Overload((DYN,), DYN, _same)),
    Function("type", Overload((DYN,), TYPE, _type)),
    Function(
        "size",
        *(Overload((t,), INT, _size, member=m) for m in (False, True) for t in _SIZED),
    ),
    Function(
        "int",
        *(Overload((t,), INT, to_int) for t in (INT, UINT, DOUBLE)),
        Overload((STRING,), INT, _int_of_string),
        Overload((TIMESTAMP,), INT, _int_of_timestamp),
    ),
    Function(
        "uint",
        *(Overload((t,), UINT, to_uint) for t in (INT, UINT, DOUBLE)),
        Overload((STRING,), UINT, _uint_of_string),
    ),
    Function(
        "double",
        *(Overload((t,), DOUBLE, _to_double) for t in (INT, UINT, DOUBLE)),
        Overload((STRING,), DOUBLE, _double_of_string),
    ),
    Function(
        "bool",
        Overload((BOOL,), BOOL, _same),
        Overload((STRING,), BOOL, _bool_of_string),
    ),
    Function(
        "string",
        Overload((STRING,), STRING, _same),
        Overload((BOOL,), STRING, lambda _, value: "true" if value else "false"),
        Overload((INT,), STRING, _string_of_int),
        Overload((UINT,), STRING, _string_of_int),
        Overload((DOUBLE,), STRING, lambda _, value: format_double(value)),
        Overload((BYTES,), STRING, _string_of_bytes),
        Overload((TIMESTAMP,), STRING, lambda _, value: format_timestamp(value)),
        Overload((DURATION,), STRING, lambda _, value: format_duration(value)),
        Overload((IP,), STRING, _string_of_address),
        Overload((CIDR,), STRING, _string_of_address),
        Overload((URL,), STRING, _string_of_url),
    ),
    Function(
        "bytes",
        Overload((BYTES,), BYTES, _same),
        Overload((STRING,), BYTES, _bytes_of_string),
    ),
)
