"""Code for arithmetic, comparison and ``in``, with short cuts where one side is constant."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.frame import BUDGET, Code, Frame
from sidecar.policy.cel.functions.time import duration_of, timestamp_of
from sidecar.policy.cel.limits import Budget, check_list, check_string
from sidecar.policy.cel.nodes import BinaryOp, Span
from sidecar.policy.cel.values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    Duration,
    Timestamp,
    UInt,
    Value,
    compare,
    contains,
    equal,
    no_overload,
)

_EXACT: Final = 2**53


def _overflow() -> EvalError:
    return EvalError("overflow", "the result does not fit into 64 bits")


def _ranged(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise _overflow()


def _unsigned(value: int) -> UInt:
    if 0 <= value <= UINT_MAX:
        return UInt(value)
    raise _overflow()


# ----------------------------------------------------------------------------- arithmetic


def add(a: Value, b: Value, budget: Budget) -> Value:
    """``a + b`` of numbers, strings, bytes, lists and times."""
    kind = type(a)
    if kind is type(b):
        if kind is int:
            return _ranged(a + b)
        if kind is float:
            return a + b
        if kind is str or kind is bytes:
            length = len(a) + len(b)
            check_string(length)
            budget.text(length)
            return a + b
        if kind is list:
            length = len(a) + len(b)
            check_list(length)
            budget.items(length)
            return a + b
        if kind is UInt:
            return _unsigned(int(a) + int(b))
        if kind is Duration:
            return duration_of(a.nanos + b.nanos)
    elif (kind is Timestamp and type(b) is Duration) or (kind is Duration and type(b) is Timestamp):
        return timestamp_of(a.nanos + b.nanos)
    raise no_overload("+", a, b)


def subtract(a: Value, b: Value, _: Budget) -> Value:
    """``a - b`` of numbers and times."""
    kind = type(a)
    if kind is type(b):
        if kind is int:
            return _ranged(a - b)
        if kind is float:
            return a - b
        if kind is UInt:
            return _unsigned(int(a) - int(b))
        if kind is Duration or kind is Timestamp:
            return duration_of(a.nanos - b.nanos)
    elif kind is Timestamp and type(b) is Duration:
        return timestamp_of(a.nanos - b.nanos)
    raise no_overload("-", a, b)


def multiply(a: Value, b: Value, _: Budget) -> Value:
    """``a * b`` of numbers."""
    kind = type(a)
    if kind is type(b):
        if kind is int:
            # Beyond 64 bits the product of two huge integers of the input costs without end.
            if not (INT_MIN <= a <= INT_MAX and INT_MIN <= b <= INT_MAX):
                raise _overflow()
            return _ranged(a * b)
        if kind is float:
            return a * b
        if kind is UInt:
            return _unsigned(int(a) * int(b))
    raise no_overload("*", a, b)


def divide(a: Value, b: Value, _: Budget) -> Value:
    """``a / b``: integers truncate towards zero, doubles follow IEEE 754."""
    kind = type(a)
    if kind is type(b):
        if kind is int or kind is UInt:
            if b == 0:
                raise EvalError("divide_by_zero", "divide by zero")
            a, b = int(a), int(b)
            quotient = abs(a) // abs(b)
            if kind is UInt:
                return UInt(quotient)
            return _ranged(quotient if (a < 0) is (b < 0) else -quotient)
        if kind is float:
            if b:
                return a / b
            if a == 0 or math.isnan(a):
                return math.nan
            return math.copysign(math.inf, a) * math.copysign(1.0, b)
    raise no_overload("/", a, b)


def modulo(a: Value, b: Value, _: Budget) -> Value:
    """``a % b`` of integers, with the sign of ``a``."""
    kind = type(a)
    if kind is type(b) and (kind is int or kind is UInt):
        if b == 0:
            raise EvalError("divide_by_zero", "modulus by zero")
        a, b = int(a), int(b)
        remainder = abs(a) % abs(b)
        if kind is UInt:
            return UInt(remainder)
        return _ranged(-remainder if a < 0 else remainder)
    raise no_overload("%", a, b)


def negate(operand: Code) -> Code:
    """``-a`` of integers and doubles."""

    def run(frame: Frame) -> Value:
        value = operand(frame)
        if type(value) is int:
            return _ranged(-value)
        if type(value) is float:
            return -value
        raise no_overload("-", value)

    return run


def _order(name: str, outcomes: frozenset[int]) -> Callable[[Value, Value, Budget], bool]:
    def run(a: Value, b: Value, budget: Budget) -> bool:
        return compare(name, a, b, budget) in outcomes

    return run


def not_equal(a: Value, b: Value, budget: Budget) -> bool:
    """``a != b``."""
    return not equal(a, b, budget)


def member(a: Value, b: Value, budget: Budget) -> bool:
    """``a in b``."""
    return contains(b, a, budget)


OPERATORS: Final[dict[BinaryOp, Callable[[Value, Value, Budget], Value]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": modulo,
    "==": equal,
    "!=": not_equal,
    "in": member,
    "<": _order("<", frozenset((-1,))),
    "<=": _order("<=", frozenset((-1, 0))),
    ">": _order(">", frozenset((1,))),
    ">=": _order(">=", frozenset((1, 0))),
}

_COMPARE: Final[dict[BinaryOp, Callable[[Value, Value], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def binary(op: BinaryOp, left: Code, right: Code, span: Span) -> Code:
    """``left op right`` in general."""
    call = OPERATORS[op]
    line, column = span.line, span.column

    def run(frame: Frame) -> Value:
        try:
            return call(left(frame), right(frame), frame[BUDGET])
        except EvalError as error:
            raise error.at(line, column) from None

    return run


def with_constant(op: BinaryOp, left: Code, value: Value, span: Span) -> Code | None:
    """``left op constant`` in a shorter way, where there is one."""
    kind = type(value)
    if op in ("==", "!="):
        return _equals_constant(op == "==", left, value)
    if op == "in" and kind is list and all(type(item) is str for item in value):
        return _in_strings(left, frozenset(value))
    if op in _COMPARE and kind is int and -_EXACT <= value <= _EXACT:
        return _compared_to(op, left, value, span)
    return None


def _equals_constant(wanted: bool, left: Code, value: Value) -> Code | None:
    kind = type(value)
    if kind is str:
        if wanted:
            return lambda frame: left(frame) == value
        return lambda frame: left(frame) != value
    if value is None or kind is bool:
        if wanted:
            return lambda frame: left(frame) is value
        return lambda frame: left(frame) is not value
    if kind is int and -_EXACT < value < _EXACT:

        def run(frame: Frame) -> bool:
            found = left(frame)
            return (type(found) is not bool and found == value) is wanted

        return run
    return None


def _in_strings(left: Code, choices: frozenset[str]) -> Code:
    def run(frame: Frame) -> bool:
        value = left(frame)
        return type(value) is str and value in choices

    return run


def _compared_to(op: BinaryOp, left: Code, constant: int, span: Span) -> Code:
    compared = _COMPARE[op]
    slow = OPERATORS[op]
    line, column = span.line, span.column

    def run(frame: Frame) -> bool:
        value = left(frame)
        if type(value) is int or type(value) is float:
            return compared(value, constant)
        try:
            return bool(slow(value, constant, frame[BUDGET]))
        except EvalError as error:
            raise error.at(line, column) from None

    return run
