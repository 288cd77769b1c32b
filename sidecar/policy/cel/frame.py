"""The state of one evaluation, and the shape of compiled code.

A frame is a plain ``dict``: the input's variables under their names, macro variables under
unique integers (slots), memoised definitions under ``@name``, the ``Budget`` under 0. All the
expressions of one decision may share a frame; it belongs to one thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.nodes import Span
from sidecar.policy.cel.values import Value

# What is in a frame is known by its key alone.
Frame: TypeAlias = dict[Any, Any]
Code: TypeAlias = Callable[[Frame], Value]

BUDGET: Final = 0
_slots = itertools.count(1)


def new_slot() -> int:
    """A key that no other expression of this process uses."""
    return next(_slots)


def new_frame(given: Mapping[str, Value], budget: Budget | None = None) -> Frame:
    """A frame over an input; its values are used as they are and never changed."""
    frame: Frame = dict(given)
    frame[BUDGET] = Budget() if budget is None else budget
    return frame


def failing(error: EvalError) -> Code:
    """Code that always ends in this error."""
    kind, message, line, column = error.kind, error.message, error.line, error.column

    def run(_: Frame) -> Value:
        raise EvalError(kind, message, line, column)

    return run


def constant(value: Value) -> Code:
    """Code that always has this value."""
    return lambda _: value


def placed(code: Code, span: Span) -> Code:
    """The same code; an error without a place gets this one."""
    line, column = span.line, span.column

    def run(frame: Frame) -> Value:
        try:
            return code(frame)
        except EvalError as error:
            raise error.at(line, column) from None

    return run
