"""Code for ``&&``, ``||``, ``!`` and ``?:`` with CEL's treatment of errors.

``a && b`` is false as soon as one side is false, whatever the other side is, an error or no
boolean at all; ``a || b`` likewise with true. Only when no side decides is an error an error.
A stop (budget, limit) is no CEL error and passes through.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.frame import Code, Frame
from sidecar.policy.cel.nodes import Span
from sidecar.policy.cel.values import Value, type_name


def not_boolean(value: Value, what: str, span: Span) -> EvalError:
    """The error of a value where only true and false make sense."""
    message = f"no such overload: {what} takes a bool, not {type_name(value)}"
    return EvalError("no_such_overload", message, span.line, span.column)


def all_of(operands: Sequence[Code], spans: Sequence[Span]) -> Code:
    """``a && b && …``; with one operand, only the check that it is a boolean."""
    pairs = tuple(zip(operands, spans, strict=True))

    def run(frame: Frame) -> bool:
        failure: EvalError | None = None
        try:
            for operand, span in pairs:
                try:
                    value = operand(frame)
                except EvalError as error:
                    failure = failure or error
                    continue
                if value is False:
                    return False
                if value is not True:
                    failure = failure or not_boolean(value, "&&", span)
            if failure is not None:
                raise failure
            return True
        finally:
            failure = None  # its traceback holds this frame

    return run


def any_of(operands: Sequence[Code], spans: Sequence[Span]) -> Code:
    """``a || b || …``; with one operand, only the check that it is a boolean."""
    pairs = tuple(zip(operands, spans, strict=True))

    def run(frame: Frame) -> bool:
        failure: EvalError | None = None
        try:
            for operand, span in pairs:
                try:
                    value = operand(frame)
                except EvalError as error:
                    failure = failure or error
                    continue
                if value is True:
                    return True
                if value is not False:
                    failure = failure or not_boolean(value, "||", span)
            if failure is not None:
                raise failure
            return False
        finally:
            failure = None  # its traceback holds this frame

    return run


def negation(operand: Code, span: Span) -> Code:
    """``!a``."""

    def run(frame: Frame) -> bool:
        value = operand(frame)
        if value is True:
            return False
        if value is False:
            return True
        raise not_boolean(value, "!", span)

    return run


def choice(condition: Code, then: Code, otherwise: Code, span: Span) -> Code:
    """``a ? b : c``: only the chosen branch is evaluated."""

    def run(frame: Frame) -> Value:
        value = condition(frame)
        if value is True:
            return then(frame)
        if value is False:
            return otherwise(frame)
        raise not_boolean(value, "?:", span)

    return run
