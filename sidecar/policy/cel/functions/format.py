"""``string.format(list)`` of the strings extension, with bounds on what it writes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.functions.time import format_duration, format_timestamp
from sidecar.policy.cel.limits import Budget, check_string
from sidecar.policy.cel.types import LIST, STRING
from sidecar.policy.cel.values import (
    Duration,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    keys,
    lookup_key,
    type_name,
)

_CLAUSE: Final = re.compile(r"%(?:(%)|(?:\.([0-9]{1,3}))?([a-zA-Z])|(.?))", re.DOTALL)
_DEFAULT_PRECISION: Final = 6


class _Writer:
    """Collects pieces, and stops when there are too many characters."""

    __slots__ = ("_budget", "length", "pieces")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.pieces: list[str] = []
        self.length = 0

    def write(self, piece: str) -> None:
        self.length += len(piece)
        check_string(self.length)
        self._budget.text(len(piece))
        self.pieces.append(piece)


def _format(budget: Budget, template: str, args: list[Value]) -> str:
    out = _Writer(budget)
    used = at = 0
    for clause in _CLAUSE.finditer(template):
        out.write(template[at : clause.start()])
        at = clause.end()
        if clause[1]:
            out.write("%")
            continue
        write = _CLAUSES.get(clause[3] or "")
        if write is None:
            raise EvalError("invalid_argument", "format: unknown formatting clause")
        if used == len(args):
            raise EvalError("index_out_of_bounds", f"format: no argument {used}")
        budget.charge(1)
        precision = _DEFAULT_PRECISION if clause[2] is None else int(clause[2])
        write(out, args[used], precision)
        used += 1
    out.write(template[at:])
    return "".join(out.pieces)


def _wrong(clause: str, value: Value) -> EvalError:
    return EvalError("invalid_argument", f"format: {clause} does not take {type_name(value)}")


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _text(out: _Writer, value: Value, _: int) -> None:
    """``%s``: any value, lists and maps in full; keys of a map in order of their text."""
    kind = type(value)
    if kind is list:
        out.write("[")
        for i, item in enumerate(value):
            if i:
                out.write(", ")
            out._budget.charge(1)
            _text(out, item, 0)
        out.write("]")
    elif kind is dict:
        out.write("{")
        named = sorted((_scalar(key), lookup_key(key)) for key in keys(value))
        for i, (name, key) in enumerate(named):
            if i:
                out.write(", ")
            out._budget.charge(1)
            out.write(f"{name}: ")
            _text(out, value[key], 0)
        out.write("}")
    else:
        out.write(_scalar(value))


def _scalar(value: Value) -> str:
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is UInt:
        return _integer_text(value)
    if kind is float:
        return format(Decimal(repr(value)), "f") if math.isfinite(value) else _not_finite(value)
    if value is None:
        return "null"
    if kind is bytes:
        return str(value.decode("utf-8", "replace"))
    if kind is Timestamp:
        return format_timestamp(value)
    if kind is Duration:
        return format_duration(value)
    if kind is TypeValue:
        return str(value.name)
    raise _wrong("%s", value)


def _integer_text(value: int) -> str:
    if value.bit_length() > 64:
        raise EvalError("overflow", "format: an integer is beyond 64 bits")
    return str(int(value))


def _decimal(out: _Writer, value: Value, _: int) -> None:
    kind = type(value)
    if kind is int or kind is UInt:
        out.write(_integer_text(value))
    elif kind is float and not math.isfinite(value):
        out.write(_not_finite(value))
    else:
        raise _wrong("%d", value)


def _number(clause: str) -> Callable[[_Writer, Value, int], None]:
    def write(out: _Writer, value: Value, precision: int) -> None:
        if type(value) not in (float, int, UInt):
            raise _wrong(f"%{clause}", value)
        if type(value) is not float:
            _integer_text(value)
        number = float(value)
        out.write(
            format(number, f".{precision}{clause}")
            if math.isfinite(number)
            else _not_finite(number)
        )

    return write


def _base(clause: str, spec: str) -> Callable[[_Writer, Value, int], None]:
    def write(out: _Writer, value: Value, _: int) -> None:
        kind = type(value)
        if kind is bool and clause == "b":
            out.write("1" if value else "0")
        elif kind is int or kind is UInt:
            _integer_text(value)
            out.write(format(int(value), spec))
        elif kind in (str, bytes) and clause in "xX":
            check_string(2 * len(value))
            text = _octets(value).hex()
            out.write(text.upper() if clause == "X" else text)
        else:
            raise _wrong(f"%{clause}", value)

    return write


def _octets(value: str | bytes) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise EvalError("invalid_argument", "a string is not valid Unicode") from None


_CLAUSES: Final[dict[str, Callable[[_Writer, Value, int], None]]] = {
    "s": _text,
    "d": _decimal,
    "f": _number("f"),
    "e": _number("e"),
    "b": _base("b", "b"),
    "o": _base("o", "o"),
    "x": _base("x", "x"),
    "X": _base("X", "X"),
}

FUNCTIONS: Final = (Function("format", Overload((STRING, LIST), STRING, _format, member=True)),)
