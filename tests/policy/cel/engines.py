"""The engines that tests run side by side, each as a function of a conformance case."""

from __future__ import annotations

import functools
from typing import Any

from sidecar.policy.cel import (
    CelError,
    CelSyntaxError,
    CompileError,
    Environment,
    compile_text,
)
from sidecar.policy.cel.celpy_reference import CelpyEngine, CelpyExpression
from sidecar.policy.cel.types import DYN
from tests.policy.cel.conformance import Case, Failed


def ours(case: Case) -> Any:
    """The engine of this room."""
    env = Environment(
        variables=dict.fromkeys(case.variables, DYN),
        container=case.container,
        checked=not case.unchecked,
    )
    try:
        program = compile_text(case.expr, env)
    except (CelSyntaxError, CompileError) as error:
        raise Failed(str(error)) from None
    value = program(case.bindings)
    if isinstance(value, CelError):
        raise Failed(value.message)
    return value


@functools.lru_cache(maxsize=1)
def _celpy() -> CelpyEngine:
    return CelpyEngine()


def celpy(case: Case) -> Any:
    """cel-python's interpreter behind our adapter. It has no containers."""
    try:
        expression: CelpyExpression = _celpy().compile(case.expr)
    except CelSyntaxError as error:
        raise Failed(f"unexpected: {error}") from None
    value = expression(case.bindings)
    if isinstance(value, CelError):
        raise Failed(value.message)
    return value
