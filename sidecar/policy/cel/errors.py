"""What can go wrong: at load (``CelSyntaxError``, ``CompileError``) and while evaluating.

No message ever holds a value of the input: names of fields, functions and types only, and
what the policy's own text says. Lines and columns are 1-based.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from sidecar.ports.policy import ExpressionError

CelError: TypeAlias = ExpressionError

ErrorKind = Literal[
    "no_such_variable",
    "no_such_key",
    "no_such_overload",
    "index_out_of_bounds",
    "overflow",
    "divide_by_zero",
    "invalid_argument",
    "not_boolean",
    "budget",
    "limit",
    "internal",
]


class CelSyntaxError(Exception):
    """The text is not a CEL expression, or passes a limit of its size or depth."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"{line}:{column} {message}")
        self.message = message
        self.line = line
        self.column = column


class Finding(msgspec.Struct, frozen=True):
    """One thing that a check of an expression found; ``warning`` ones may load."""

    code: str
    line: int
    column: int
    message: str
    warning: bool = False


class CompileError(Exception):
    """The expression parses but cannot be compiled: every reason, in the text's order."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(f"{f.line}:{f.column} {f.message}" for f in findings))
        self.findings = tuple(findings)


class EvalError(Exception):
    """An error value of CEL, which ``&&``, ``||``, ``all`` and ``exists`` may absorb.

    ``line`` 0 means that the operation did not know where it stands; the nearest
    enclosing operation fills its own place in.
    """

    def __init__(self, kind: ErrorKind, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.line = line
        self.column = column

    def at(self, line: int, column: int) -> EvalError:
        """The same error, placed here unless it has a place already."""
        if not self.line:
            self.line = line
            self.column = column
        return self


class Stopped(Exception):
    """Evaluation was stopped: nothing in an expression absorbs it.

    ``kind`` is ``budget`` (too many steps) or ``limit`` (a value grew too large).
    """

    def __init__(self, kind: Literal["budget", "limit"], message: str) -> None:
        super().__init__(message)
        self.kind: Literal["budget", "limit"] = kind
        self.message = message


def as_value(error: Exception, line: int, column: int) -> CelError:
    """The error as an expression's result. Anything unforeseen is ``internal``.

    What an unforeseen exception says is left out: it may quote a value of the input.
    """
    if isinstance(error, EvalError):
        return CelError(error.kind, error.line or line, error.column or column, error.message)
    if isinstance(error, Stopped):
        return CelError(error.kind, line, column, error.message)
    if isinstance(error, RecursionError):
        return CelError("limit", line, column, "a value is nested too deeply to be evaluated")
    message = f"the evaluator failed ({type(error).__name__})"
    return CelError("internal", line, column, message)
