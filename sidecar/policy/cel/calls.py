"""Code for calls of functions: dispatch on types, and shorter ways for constant arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.frame import BUDGET, Code, Frame
from sidecar.policy.cel.functions.glob import glob
from sidecar.policy.cel.functions.regex import Test, pattern
from sidecar.policy.cel.functions.registry import Dispatch
from sidecar.policy.cel.limits import FREE_TEXT
from sidecar.policy.cel.nodes import Span
from sidecar.policy.cel.values import Optional, Value, no_overload


def call(dispatch: Dispatch, args: Sequence[Code], span: Span) -> Code:
    """A call whose implementation depends on the types of its arguments."""
    line, column = span.line, span.column
    exact, find = dispatch.exact, dispatch.find
    if len(args) == 1:
        (only,) = args

        def run_one(frame: Frame) -> Value:
            try:
                a = only(frame)
                return (exact.get((type(a),)) or find(a))(frame[BUDGET], a)
            except EvalError as error:
                raise error.at(line, column) from None

        return run_one
    if len(args) == 2:
        first, second = args

        def run_two(frame: Frame) -> Value:
            try:
                a = first(frame)
                b = second(frame)
                return (exact.get((type(a), type(b))) or find(a, b))(frame[BUDGET], a, b)
            except EvalError as error:
                raise error.at(line, column) from None

        return run_two

    def run(frame: Frame) -> Value:
        try:
            values = [arg(frame) for arg in args]
            return find(*values)(frame[BUDGET], *values)
        except EvalError as error:
            raise error.at(line, column) from None

    return run


def with_constant(name: str, subject: Code, value: Value, span: Span) -> Code | None:
    """``subject.name("constant")`` in a shorter way, where there is one.

    Raises:
        BadPattern: the constant of ``matches`` or ``glob`` is no pattern.
    """
    if type(value) is not str:
        return None
    if name == "matches":
        return _tested(name, pattern(value), subject, span)
    if name == "glob":
        return _tested(name, glob(value), subject, span)
    make = _SHORT.get(name)
    return None if make is None else make(subject, value, span)


def _tested(name: str, test: Test, subject: Code, span: Span) -> Code:
    line, column = span.line, span.column

    def run(frame: Frame) -> bool:
        value = subject(frame)
        if type(value) is not str:
            raise no_overload(name, value, "").at(line, column)
        if len(value) > FREE_TEXT:
            frame[BUDGET].text(2 * len(value))
        try:
            return test(value)
        except EvalError as error:
            raise error.at(line, column) from None

    return run


def _starts_with(subject: Code, prefix: str, span: Span) -> Code:
    line, column = span.line, span.column

    def run(frame: Frame) -> bool:
        value = subject(frame)
        if type(value) is str:
            return value.startswith(prefix)
        raise no_overload("startsWith", value, prefix).at(line, column)

    return run


def _ends_with(subject: Code, suffix: str, span: Span) -> Code:
    line, column = span.line, span.column

    def run(frame: Frame) -> bool:
        value = subject(frame)
        if type(value) is str:
            return value.endswith(suffix)
        raise no_overload("endsWith", value, suffix).at(line, column)

    return run


def _contains(subject: Code, part: str, span: Span) -> Code:
    line, column = span.line, span.column

    def run(frame: Frame) -> bool:
        value = subject(frame)
        if type(value) is str:
            if len(value) > FREE_TEXT:
                frame[BUDGET].text(len(value))
            return part in value
        raise no_overload("contains", value, part).at(line, column)

    return run


_SHORT: Final[dict[str, Callable[[Code, str, Span], Code]]] = {
    "startsWith": _starts_with,
    "endsWith": _ends_with,
    "contains": _contains,
}


def or_value(target: Code, other: Code, span: Span) -> Code:
    """``target.orValue(other)``: the argument is evaluated only when the target is absent."""

    def run(frame: Frame) -> Value:
        value = target(frame)
        if type(value) is not Optional:
            raise no_overload("orValue", value).at(span.line, span.column)
        return value.value if value.present else other(frame)

    return run


def or_optional(target: Code, other: Code, span: Span) -> Code:
    """``target.or(other)``: the argument is evaluated only when the target is absent."""

    def run(frame: Frame) -> Value:
        value = target(frame)
        if type(value) is Optional and value.present:
            return value
        result = other(frame) if type(value) is Optional else None
        if type(result) is not Optional:
            raise no_overload("or", value, result).at(span.line, span.column)
        return result

    return run
