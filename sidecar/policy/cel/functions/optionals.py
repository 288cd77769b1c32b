"""Optionals and sets. ``or`` and ``orValue`` evaluate their argument only when it is needed,
which the compiler sees to; here they stand for their signatures."""

from __future__ import annotations

from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget, check_list
from sidecar.policy.cel.types import BOOL, DYN, LIST, OPTIONAL
from sidecar.policy.cel.values import NONE, Optional, Value, contains, is_zero, no_overload


def _of_non_zero(_: Budget, value: Value) -> Optional:
    return NONE if is_zero(value) else Optional(value)


def _value(_: Budget, optional: Optional) -> Value:
    if not optional.present:
        raise EvalError("invalid_argument", "value() of an absent optional")
    return optional.value


def _or(_: Budget, optional: Optional, other: Optional) -> Optional:
    return optional if optional.present else other


def _or_value(_: Budget, optional: Optional, other: Value) -> Value:
    return optional.value if optional.present else other


def _unwrap(budget: Budget, values: list[Value]) -> list[Value]:
    budget.items(len(values))
    check_list(len(values))
    for value in values:
        if type(value) is not Optional:
            raise no_overload("optional.unwrap", value)
    return [value.value for value in values if value.present]


def _all_in(budget: Budget, values: list[Value], container: list[Value]) -> bool:
    budget.charge(len(values))
    return all(contains(container, value, budget) for value in values)


def _intersects(budget: Budget, a: list[Value], b: list[Value]) -> bool:
    budget.charge(len(a))
    return any(contains(b, value, budget) for value in a)


FUNCTIONS: Final = (
    Function("optional.of", Overload((DYN,), OPTIONAL, lambda _, value: Optional(value))),
    Function("optional.ofNonZeroValue", Overload((DYN,), OPTIONAL, _of_non_zero)),
    Function("optional.none", Overload((), OPTIONAL, lambda _: NONE)),
    Function("optional.unwrap", Overload((LIST,), LIST, _unwrap)),
    Function("unwrapOpt", Overload((LIST,), LIST, _unwrap, member=True)),
    Function("hasValue", Overload((OPTIONAL,), BOOL, lambda _, o: o.present, member=True)),
    Function("value", Overload((OPTIONAL,), DYN, _value, member=True)),
    Function("or", Overload((OPTIONAL, OPTIONAL), OPTIONAL, _or, member=True)),
    Function("orValue", Overload((OPTIONAL, DYN), DYN, _or_value, member=True)),
    Function("sets.contains", Overload((LIST, LIST), BOOL, lambda n, a, b: _all_in(n, b, a))),
    Function(
        "sets.equivalent",
        Overload((LIST, LIST), BOOL, lambda n, a, b: _all_in(n, b, a) and _all_in(n, a, b)),
    ),
    Function("sets.intersects", Overload((LIST, LIST), BOOL, _intersects)),
)
