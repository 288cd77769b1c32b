"""Code that reads: variables, fields, ``has``, indexes; through optionals where there are any.

The common case, fields of JSON objects below a variable, is one closure of chained lookups.
Whatever goes wrong in it (a missing key, a value that is no map, an optional) is done again,
slowly and exactly, by ``select``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.frame import Code, Frame
from sidecar.policy.cel.nodes import Span
from sidecar.policy.cel.values import NONE, Optional, UInt, Value, lookup_key, type_name

Step = tuple[str, Span]
_ABSENT: Final = object()


def variable(key: str | int, name: str, span: Span, steps: Sequence[Step]) -> Code:
    """``name.a.b``: a variable and the fields below it."""

    def slowly(frame: Frame) -> Value:
        value = frame.get(key, _ABSENT)
        if value is _ABSENT:
            message = f"the variable {name} is not set here"
            raise EvalError("no_such_variable", message, span.line, span.column)
        for field, where in steps:
            value = select(value, field, where)
        return value

    fields = [field for field, _ in steps]
    if not fields:

        def read(frame: Frame) -> Value:
            try:
                return frame[key]
            except KeyError:
                return slowly(frame)

        return read
    if len(fields) == 1:
        (only,) = fields

        def read_one(frame: Frame) -> Value:
            try:
                return frame[key][only]
            except (KeyError, TypeError, IndexError):
                return slowly(frame)

        return read_one
    if len(fields) == 2:
        first, second = fields

        def read_two(frame: Frame) -> Value:
            try:
                return frame[key][first][second]
            except (KeyError, TypeError, IndexError):
                return slowly(frame)

        return read_two

    def read_all(frame: Frame) -> Value:
        try:
            value = frame[key]
            for field in fields:
                value = value[field]
            return value
        except (KeyError, TypeError, IndexError):
            return slowly(frame)

    return read_all


def select(value: Value, field: str, span: Span) -> Value:
    """``value.field`` in full.

    Raises:
        EvalError: the map has no such key, or the value has no fields.
    """
    kind = type(value)
    if kind is dict:
        try:
            return value[field]
        except KeyError:
            message = f"no such key: {field}"
            raise EvalError("no_such_key", message, span.line, span.column) from None
    if kind is Optional:
        return optional_select(value, field, span)
    message = f"no such overload: .{field} of {type_name(value)}"
    raise EvalError("no_such_overload", message, span.line, span.column)


def optional_select(value: Value, field: str, span: Span) -> Optional:
    """``value.?field``: absent when the value is absent or has no such key."""
    if type(value) is Optional:
        if not value.present:
            return NONE
        value = value.value
    if type(value) is not dict:
        message = f"no such overload: .?{field} of {type_name(value)}"
        raise EvalError("no_such_overload", message, span.line, span.column)
    found = value.get(field, _ABSENT)
    return NONE if found is _ABSENT else Optional(found)


def field_of(operand: Code, field: str, span: Span, optional: bool) -> Code:
    """``operand.field`` or ``operand.?field`` of any operand."""
    if optional:
        return lambda frame: optional_select(operand(frame), field, span)

    def read(frame: Frame) -> Value:
        value = operand(frame)
        try:
            return value[field]
        except (KeyError, TypeError, IndexError):
            return select(value, field, span)

    return read


def has(operand: Code, field: str, span: Span) -> Code:
    """``has(operand.field)``."""

    def present(frame: Frame) -> bool:
        value = operand(frame)
        if type(value) is Optional:
            if not value.present:
                return False
            value = value.value
        if type(value) is dict:
            return field in value
        message = f"no such overload: has(.{field}) of {type_name(value)}"
        raise EvalError("no_such_overload", message, span.line, span.column)

    return present


def index_of(operand: Code, key: Code, span: Span, optional: bool) -> Code:
    """``operand[key]`` or ``operand[?key]``."""
    if optional:
        return lambda frame: optional_index(operand(frame), key(frame), span)
    return lambda frame: index(operand(frame), key(frame), span)


def key_of(operand: Code, key: str, span: Span, optional: bool) -> Code:
    """``operand["key"]`` or ``operand[?"key"]`` with a constant string."""
    if optional:
        return lambda frame: optional_index(operand(frame), key, span)

    def read(frame: Frame) -> Value:
        value = operand(frame)
        try:
            return value[key]
        except (KeyError, TypeError, IndexError):
            return index(value, key, span)

    return read


def index(value: Value, key: Value, span: Span) -> Value:
    """``value[key]``: an element of a list by number, of a map by key.

    Raises:
        EvalError: there is none, or the types do not go together.
    """
    if type(value) is Optional:
        return optional_index(value, key, span)
    found = _lookup(value, key, span, "[]")
    if found is not _ABSENT:
        return found
    if type(value) is list:
        message = f"index out of bounds in a list of {len(value)}"
        raise EvalError("index_out_of_bounds", message, span.line, span.column)
    raise EvalError("no_such_key", "no such key in the map", span.line, span.column)


def optional_index(value: Value, key: Value, span: Span) -> Optional:
    """``value[?key]``: absent when there is no such element."""
    if type(value) is Optional:
        if not value.present:
            return NONE
        value = value.value
    found = _lookup(value, key, span, "[?]")
    return NONE if found is _ABSENT else Optional(found)


def _lookup(value: Value, key: Value, span: Span, name: str) -> Value:
    kind = type(value)
    if kind is dict:
        return value.get(lookup_key(key), _ABSENT)
    if kind is list:
        number = int(key) if type(key) is float and key.is_integer() else key
        if type(number) is int or type(number) is UInt:
            return value[number] if 0 <= number < len(value) else _ABSENT
    message = f"no such overload: {name} of {type_name(value)} by {type_name(key)}"
    raise EvalError("no_such_overload", message, span.line, span.column)
