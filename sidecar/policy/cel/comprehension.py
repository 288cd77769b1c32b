"""Code for the macros that run over a list or a map, and for ``cel.bind`` and its kin.

The steps of a run are charged before it starts, so that a list which is too long is refused
at once; what an early stop leaves over is given back.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.frame import BUDGET, Code, Frame
from sidecar.policy.cel.limits import check_list
from sidecar.policy.cel.logic import not_boolean
from sidecar.policy.cel.nodes import MacroKind, Span
from sidecar.policy.cel.values import (
    NONE,
    BoolKey,
    Optional,
    Value,
    keys,
    map_key,
    no_overload,
)


class Loop:
    """A run over ``source``; ``slots`` hold the macro's one or two variables."""

    __slots__ = ("condition", "kind", "slots", "source", "span")

    def __init__(
        self,
        kind: MacroKind,
        source: Code,
        slots: Sequence[int],
        *,
        condition: Code | None,
        span: Span,
    ) -> None:
        self.kind: MacroKind = kind
        self.source = source
        self.slots = tuple(slots)
        self.condition = condition
        self.span = span

    def each(self, frame: Frame) -> Iterable[Value]:
        """Sets the variables, and yields every element (or pair) that passes the condition."""
        value = self.source(frame)
        condition = self.condition
        if len(self.slots) == 1:
            (slot,) = self.slots
            items = self.elements(value)
            frame[BUDGET].charge(len(items))
            for item in items:
                frame[slot] = item
                if condition is None or self._passes(frame, condition):
                    yield item
            return
        first, second = self.slots
        pairs = self.pairs(value)
        frame[BUDGET].charge(len(value))
        for pair in pairs:
            frame[first], frame[second] = pair
            if condition is None or self._passes(frame, condition):
                yield pair

    def elements(self, value: Value) -> list[Value]:
        """What a macro with one variable runs over: elements, or keys."""
        if type(value) is list:
            return value
        if type(value) is dict:
            return keys(value)
        raise self._cannot_run(value)

    def pairs(self, value: Value) -> Iterable[tuple[Value, Value]]:
        """What a macro with two variables runs over: index and element, or key and value."""
        if type(value) is list:
            return enumerate(value)
        if type(value) is dict:
            return ((k.value if type(k) is BoolKey else k, v) for k, v in value.items())
        raise self._cannot_run(value)

    def _cannot_run(self, value: Value) -> EvalError:
        return no_overload(f"{self.kind}()", value).at(self.span.line, self.span.column)

    def _passes(self, frame: Frame, condition: Code) -> bool:
        value = condition(frame)
        if value is True or value is False:
            return value is True
        raise self.not_boolean(value)

    def not_boolean(self, value: Value) -> EvalError:
        """The error of a condition that is neither true nor false."""
        return not_boolean(value, f"{self.kind}()", self.span)


def comprehension(loop: Loop, step: Code | None) -> Code:
    """Code of ``source.kind(names…, condition, step)``."""
    kind = loop.kind
    if kind in ("all", "exists"):
        return _quantifier(loop) if len(loop.slots) == 1 else _pair_quantifier(loop)
    if kind == "exists_one":
        return lambda frame: sum(1 for _ in loop.each(frame)) == 1
    if kind == "filter":
        return lambda frame: list(loop.each(frame))
    assert step is not None
    if kind == "transformMap":
        return _transform_map(loop, loop.slots[0], step)
    if kind == "transformMapEntry":
        return _transform_entries(loop, step)
    return lambda frame: [step(frame) for _ in loop.each(frame)]


def _quantifier(loop: Loop) -> Code:
    """``all`` (stops at false) and ``exists`` (stops at true) over one variable."""
    source, condition, (slot,) = loop.source, loop.condition, loop.slots
    assert condition is not None
    stop = loop.kind == "exists"
    go = not stop

    def run(frame: Frame) -> bool:
        items = source(frame)
        if type(items) is not list:
            items = loop.elements(items)
        budget = frame[BUDGET]
        budget.charge(len(items))
        failure: EvalError | None = None
        rest = iter(items)
        try:
            for frame[slot] in rest:
                try:
                    value = condition(frame)
                except EvalError as error:
                    failure = failure or error
                    continue
                if value is stop:
                    budget.left += operator.length_hint(rest)
                    return bool(stop)
                if value is not go:
                    failure = failure or loop.not_boolean(value)
            if failure is not None:
                raise failure
            return go
        finally:
            failure = None  # its traceback holds this frame

    return run


def _pair_quantifier(loop: Loop) -> Code:
    """``all`` and ``exists`` over two variables."""
    source, condition, (first, second) = loop.source, loop.condition, loop.slots
    assert condition is not None
    stop = loop.kind == "exists"
    go = not stop

    def run(frame: Frame) -> bool:
        value = source(frame)
        pairs = loop.pairs(value)
        budget = frame[BUDGET]
        budget.charge(len(value))
        failure: EvalError | None = None
        done = 0
        try:
            for frame[first], frame[second] in pairs:
                done += 1
                try:
                    result = condition(frame)
                except EvalError as error:
                    failure = failure or error
                    continue
                if result is stop:
                    budget.left += len(value) - done
                    return bool(stop)
                if result is not go:
                    failure = failure or loop.not_boolean(result)
            if failure is not None:
                raise failure
            return go
        finally:
            failure = None  # its traceback holds this frame

    return run


def _transform_map(loop: Loop, key: int, step: Code) -> Code:
    def run(frame: Frame) -> dict[Value, Value]:
        return {map_key(frame[key]): step(frame) for _ in loop.each(frame)}

    return run


def _transform_entries(loop: Loop, step: Code) -> Code:
    def run(frame: Frame) -> dict[Value, Value]:
        made: dict[Value, Value] = {}
        for _ in loop.each(frame):
            entries = step(frame)
            if type(entries) is not dict:
                raise no_overload("transformMapEntry", entries)
            frame[BUDGET].charge(len(entries))
            for key, value in entries.items():
                if key in made:
                    raise EvalError("invalid_argument", "a key comes twice in a map")
                made[key] = value
            check_list(len(made))
        return made

    return run


# ---------------------------------------------------------------------- bind, block, optMap


class _Failed:
    """A memoised error."""

    __slots__ = ("error",)

    def __init__(self, error: EvalError) -> None:
        self.error = error


_UNREAD: Final = object()


def memoised(key: str | int, code: Code) -> Code:
    """Code that is evaluated when first read; its value or error is kept in the frame."""

    def run(frame: Frame) -> Value:
        value = frame.get(key, _UNREAD)
        if value is _UNREAD:
            try:
                value = code(frame)
            except EvalError as error:
                value = _Failed(error.with_traceback(None))
            frame[key] = value
        if type(value) is _Failed:
            kept = value.error
            raise EvalError(kept.kind, kept.message, kept.line, kept.column)
        return value

    return run


def scoped(slots: Sequence[int], body: Code) -> Code:
    """``cel.bind`` and ``cel.block``: forgets what the slots held in an earlier round."""
    keys_of_slots = tuple(slots)

    def run(frame: Frame) -> Value:
        for slot in keys_of_slots:
            frame.pop(slot, None)
        return body(frame)

    return run


def opt_map(target: Code, slot: int, body: Code, flat: bool, span: Span) -> Code:
    """``target.optMap(name, body)`` and ``optFlatMap``."""
    name = "optFlatMap" if flat else "optMap"

    def run(frame: Frame) -> Optional:
        value = target(frame)
        if type(value) is not Optional:
            raise no_overload(name, value).at(span.line, span.column)
        if not value.present:
            return NONE
        frame[slot] = value.value
        result = body(frame)
        if not flat:
            return Optional(result)
        if type(result) is not Optional:
            raise no_overload(name, result).at(span.line, span.column)
        return result

    return run
