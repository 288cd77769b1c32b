"""Why an expression has its value: what each part of it was, in the order of the text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sidecar.policy.cel.compile import compile_tree
from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import CelError, EvalError, as_value
from sidecar.policy.cel.frame import Code, Frame, new_frame
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.nodes import Has, Literal, Node, Select, Span, dotted, walk
from sidecar.policy.cel.values import Value, plain

MAX_VALUES = 10
"""Values kept of a part that is evaluated more than once (inside a macro): the first ones."""


class Step(msgspec.Struct):
    """One part of the expression. ``values`` holds a ``CelError`` where the part failed.

    ``times`` is how often it was evaluated; a part that was not reached has no values.
    """

    text: str
    line: int
    column: int
    start: int
    end: int
    values: list[Value]
    times: int = 0


class Explanation(msgspec.Struct, frozen=True):
    """An expression's result, and its parts: outer ones before the parts inside them."""

    result: Value
    steps: tuple[Step, ...]
    budget_used: int


def explain(
    text: str,
    tree: Node,
    env: Environment,
    given: Mapping[str, Value],
    budget: Budget | None = None,
) -> Explanation:
    """Evaluate and watch every part. Slow; the result is the same as without watching.

    Raises:
        CompileError: the expression does not compile in this environment.
    """
    steps: list[Step] = []
    # Of ``a.b.c`` the whole is shown, not ``a`` and ``a.b``.
    quiet = {id(node.operand) for node in walk(tree) if isinstance(node, Select | Has)}

    def watch(node: Node, code: Code) -> Code:
        if isinstance(node, Literal) or (id(node) in quiet and dotted(node) is not None):
            return code
        step = _step(text, node.span)
        steps.append(step)
        return _watched(code, step)

    code = compile_tree(tree, env, watch)
    budget = Budget() if budget is None else budget
    result: Value
    try:
        result = code(new_frame(given, budget))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the expression's result
        result = as_value(error, tree.span.line, tree.span.column)
    steps.sort(key=lambda step: (step.start, -step.end))
    return Explanation(result, tuple(steps), budget.used)


def _step(text: str, span: Span) -> Step:
    return Step(text[span.start : span.end], span.line, span.column, span.start, span.end, [])


def _watched(code: Code, step: Step) -> Code:
    def run(frame: Frame) -> Value:
        step.times += 1
        try:
            value = code(frame)
        except EvalError as error:
            if len(step.values) < MAX_VALUES:
                step.values.append(as_value(error, step.line, step.column))
            raise
        if len(step.values) < MAX_VALUES:
            step.values.append(value)
        return value

    return run


def render(explanation: Explanation, width: int = 60) -> str:
    """An explanation as text: a line a part, indented below what it is part of."""
    lines: list[str] = []
    open_ends: list[int] = []
    for step in explanation.steps:
        while open_ends and open_ends[-1] <= step.start:
            open_ends.pop()
        indent = "  " * len(open_ends)
        open_ends.append(step.end)
        shown = " ".join(step.text.split())
        lines.append(f"{indent}{_short(shown, width)} = {_values(step, width)}")
    return "\n".join(lines)


def _values(step: Step, width: int) -> str:
    if not step.times:
        return "(not evaluated)"
    shown = ", ".join(_short(_value(value), width) for value in step.values)
    more = step.times - len(step.values)
    return f"{shown}, … ({step.times} times)" if more > 0 else shown


def _value(value: Value) -> str:
    if isinstance(value, CelError):
        return f"error: {value.message}"
    try:
        return msgspec.json.encode(plain(value)).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "(a value that cannot be shown)"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
