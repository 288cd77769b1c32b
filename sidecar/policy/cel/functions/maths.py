"""CEL's math extension."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.types import BOOL, DOUBLE, DYN, INT, LIST, UINT
from sidecar.policy.cel.values import (
    INT_MAX,
    INT_MIN,
    NUMBERS,
    UINT_MAX,
    UInt,
    Value,
    no_overload,
    number_order,
    widen,
)


def _extreme(name: str, sign: int) -> Function:
    def of(values: list[Value]) -> Value:
        if not values:
            raise EvalError("invalid_argument", f"{name}() of an empty list")
        best = values[0]
        for value in values:
            if type(value) not in NUMBERS:
                raise no_overload(name, value)
            if number_order(value, best) == sign:
                best = value
        return best

    def of_arguments(_: Budget, *values: Value) -> Value:
        return of(list(values))

    def of_list(budget: Budget, values: list[Value]) -> Value:
        budget.items(4 * len(values))
        return of(values)

    return Function(
        name,
        Overload((LIST,), DYN, of_list),
        Overload((INT,), INT, of_arguments, variadic=True),
        Overload((UINT,), UINT, of_arguments, variadic=True),
        Overload((DOUBLE,), DOUBLE, of_arguments, variadic=True),
        Overload((DYN,), DYN, of_arguments, variadic=True),
    )


def _rounding(name: str, call: Callable[[float], float]) -> Function:
    def run(_: Budget, value: float) -> float:
        return float(call(value)) if math.isfinite(value) else value

    return Function(name, Overload((DOUBLE,), DOUBLE, run))


def _round_half_away(value: float) -> float:
    whole = float(math.trunc(value))
    return whole + math.copysign(1.0, value) if abs(value - whole) >= 0.5 else whole


def _test(name: str, call: Callable[[float], bool]) -> Function:
    def run(_: Budget, value: float) -> bool:
        return call(value)

    return Function(name, Overload((DOUBLE,), BOOL, run))


def _abs(_: Budget, value: int) -> int:
    if value < -INT_MAX:
        raise EvalError("overflow", "math.abs() overflows")
    return abs(value)


def _sign(_: Budget, value: Value) -> Value:
    if type(value) is float:
        return value if math.isnan(value) else float((value > 0) - (value < 0))
    return type(value)((value > 0) - (value < 0))


def _sqrt(_: Budget, value: Value) -> float:
    number = widen(value)
    return math.sqrt(number) if number >= 0 else math.nan


def _signed(bits: int) -> int:
    bits &= UINT_MAX
    return bits - 2**64 if bits > INT_MAX else bits


def _within(value: int) -> int:
    if not INT_MIN <= value <= UINT_MAX:
        raise EvalError("overflow", "an integer is beyond 64 bits")
    return value


def _bits(name: str, call: Callable[[int, int], int]) -> Function:
    def signed(_: Budget, a: int, b: int) -> int:
        return _signed(call(_within(a), _within(b)))

    def unsigned(_: Budget, a: int, b: int) -> UInt:
        return UInt(call(a, b))

    return Function(name, Overload((INT, INT), INT, signed), Overload((UINT, UINT), UINT, unsigned))


def _shift(name: str, call: Callable[[int, int], int]) -> Function:
    def shifted(value: int, offset: int) -> int:
        if offset < 0:
            raise EvalError("invalid_argument", f"{name}() by a negative offset")
        return call(value & UINT_MAX, offset) & UINT_MAX if offset < 64 else 0

    def signed(_: Budget, value: int, offset: int) -> int:
        return _signed(shifted(_within(value), offset))

    def unsigned(_: Budget, value: int, offset: int) -> UInt:
        return UInt(shifted(value, offset))

    return Function(name, Overload((INT, INT), INT, signed), Overload((UINT, INT), UINT, unsigned))


FUNCTIONS: Final = (
    _extreme("math.greatest", 1),
    _extreme("math.least", -1),
    _rounding("math.ceil", math.ceil),
    _rounding("math.floor", math.floor),
    _rounding("math.trunc", math.trunc),
    _rounding("math.round", _round_half_away),
    _test("math.isNaN", math.isnan),
    _test("math.isInf", math.isinf),
    _test("math.isFinite", math.isfinite),
    Function(
        "math.abs",
        Overload((INT,), INT, _abs),
        Overload((UINT,), UINT, lambda _, value: value),
        Overload((DOUBLE,), DOUBLE, lambda _, value: abs(value)),
    ),
    Function("math.sign", *(Overload((t,), t, _sign) for t in (INT, UINT, DOUBLE))),
    Function("math.sqrt", *(Overload((t,), DOUBLE, _sqrt) for t in (INT, UINT, DOUBLE))),
    _bits("math.bitAnd", lambda a, b: a & b),
    _bits("math.bitOr", lambda a, b: a | b),
    _bits("math.bitXor", lambda a, b: a ^ b),
    Function(
        "math.bitNot",
        Overload((INT,), INT, lambda _, value: _signed(~_within(value))),
        Overload((UINT,), UINT, lambda _, value: UInt(~value & UINT_MAX)),
    ),
    _shift("math.bitShiftLeft", lambda value, offset: value << offset),
    _shift("math.bitShiftRight", lambda value, offset: value >> offset),
)
