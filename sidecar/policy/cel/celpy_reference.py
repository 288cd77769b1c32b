"""``celpy``: cel-python's own interpreter behind the same port, hardened. A reference, not a
fast path: it costs 0.1 to 10 ms an evaluation, and it lacks most extensions and CEL's
comparison of numbers across types.

What is done about it, because its input is hostile:

* only the interpreter, never its compiled runner, which shares state between threads;
* a new evaluator for every evaluation, so that threads share nothing but the parsed tree;
* text, its nesting, and the depth, size and integers of the input are checked beforehand;
* every visit of a node is counted and the clock is looked at, and what stops an evaluation is
  no ``Exception``, so nothing inside absorbs it;
* ``duration``, ``timestamp`` and ``matches`` are ours: linear, and silent on bad patterns;
* its messages hold the whole input, so none of them is passed on, and its debug log is off;
* it raises the process's recursion limit; that is put back.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sidecar.policy.cel.errors import CelError, CelSyntaxError, EvalError
from sidecar.policy.cel.functions.regex import BadPattern, pattern
from sidecar.policy.cel.functions.time import SECOND, parse_duration, parse_timestamp
from sidecar.policy.cel.limits import MAX_SOURCE
from sidecar.policy.cel.values import (
    INT_MAX,
    INT_MIN,
    Duration,
    Timestamp,
    TypeValue,
    UInt,
    Value,
)

if TYPE_CHECKING:
    from lark import Token, Tree

# A value or an evaluator of cel-python, which types them loosely.
Foreign: TypeAlias = Any

MAX_TREE_DEPTH: Final = 400
"""Levels of cel-python's tree; a level of an expression is about eleven of them."""
MAX_INPUT_DEPTH: Final = 64
MAX_INPUT_VALUES: Final = 10_000
MAX_VISITS: Final = 500_000
MAX_SECONDS: Final = 1.0
_CLOCK_EVERY: Final = 512
_MICROSECOND: Final = 1000


class _Stop(BaseException):
    """Ends an evaluation; not an ``Exception``, so that cel-python cannot absorb it."""


class CelpyEngine:
    """``ExpressionEngine`` of cel-python's interpreter."""

    name = "celpy"

    def __init__(self, *, complete: bool = False) -> None:
        """``complete`` refuses expressions with functions that cel-python lacks. They are errors
        of an evaluation in CEL, and in a policy a rule that denies whatever it is asked."""
        self._complete = complete

    def compile(self, text: str) -> CelpyExpression:
        """Parse one expression.

        Raises:
            CelSyntaxError: cel-python cannot parse it, lacks a function of it (see ``complete``),
                or it passes a limit.
        """
        if len(text) > MAX_SOURCE:
            raise CelSyntaxError(f"the expression is longer than {MAX_SOURCE} characters", 1, 1)
        limit = sys.getrecursionlimit()
        try:
            import celpy
            from celpy import celparser

            logging.getLogger("celpy").setLevel(logging.WARNING)
            environment = celpy.Environment()
        finally:
            sys.setrecursionlimit(limit)
        try:
            tree = environment.compile(text)
        except celparser.CELParseError as error:
            message = "cel-python cannot parse this"
            raise CelSyntaxError(message, error.line or 1, error.column or 1) from None
        if _deeper_than(tree, MAX_TREE_DEPTH):
            raise CelSyntaxError("the expression is nested too deeply", 1, 1)
        unknown = next((n for n in _called(tree) if n not in _known()), None)
        if self._complete and unknown is not None:
            message = f"cel-python has no function {unknown}"
            raise CelSyntaxError(message, unknown.line or 1, unknown.column or 1)
        return CelpyExpression(text, tree)


class CelpyExpression:
    """One expression; safe from any thread."""

    __slots__ = ("_tree", "text")

    def __init__(self, text: str, tree: Tree[Any]) -> None:
        self.text = text
        self._tree = tree

    def __call__(self, given: Mapping[str, Value]) -> Value:
        """The value for an input, or a ``CelError``. Only booleans are told apart from 0 and 1
        by the caller's ``is True``: cel-python's own types do not leave this function."""
        from celpy.evaluation import CELEvalError

        try:
            _check_input(given)
            context = {name: _to_celpy(value) for name, value in given.items()}
            return _from_celpy(_evaluator(self._tree).evaluate(context))
        except _Stop:
            return CelError("budget", 1, 1, "the evaluation takes too long")
        except RecursionError:
            return CelError("limit", 1, 1, "the expression or its input is nested too deeply")
        except EvalError as error:
            return CelError(error.kind, 1, 1, error.message)
        except CELEvalError as error:
            message = "cel-python: the expression has no value for this input"
            return CelError("invalid_argument", error.line or 1, error.column or 1, message)
        except Exception as error:  # noqa: BLE001 - cel-python lets many others through
            return CelError("internal", 1, 1, f"cel-python failed ({type(error).__name__})")


def _evaluator(tree: Tree[Any]) -> Foreign:
    import celpy
    from celpy.evaluation import Activation, Evaluator

    deadline = time.monotonic() + MAX_SECONDS
    visits = 0

    class Bounded(Evaluator):
        """Counts its visits; the evaluators of macros count together with it."""

        def visit(self, tree: Tree[Any]) -> Foreign:
            nonlocal visits
            visits += 1
            if visits > MAX_VISITS:
                raise _Stop
            if visits % _CLOCK_EVERY == 0 and time.monotonic() > deadline:
                raise _Stop
            return super().visit(tree)

        def sub_evaluator(self, ast: Tree[Any]) -> Evaluator:
            return Bounded(ast, activation=self.activation)

    activation = Activation(annotations=dict(celpy.googleapis), functions=_functions())
    return Bounded(tree, activation)


def _functions() -> dict[str, Callable[..., Foreign]]:
    """Our own versions of what is unsafe in cel-python; they raise what it turns into errors."""
    from celpy import celtypes

    def duration(value: Foreign) -> Foreign:
        if isinstance(value, celtypes.DurationType):
            return value
        return _guarded(lambda: _to_celpy(parse_duration(str(value))))

    def timestamp(value: Foreign) -> Foreign:
        if isinstance(value, celtypes.TimestampType):
            return value
        if isinstance(value, int):
            return _guarded(lambda: _to_celpy(Timestamp(int(value) * SECOND)))
        return _guarded(lambda: _to_celpy(parse_timestamp(str(value))))

    def matches(text: Foreign, regex: Foreign) -> Foreign:
        if not isinstance(text, str) or not isinstance(regex, str):
            raise TypeError("no such overload")
        return _guarded(lambda: celtypes.BoolType(pattern(str(regex))(str(text))))

    def contains(text: Foreign, part: Foreign) -> Foreign:
        # A sum of strings is a plain ``str`` there, which has no such method.
        if isinstance(text, str) and isinstance(part, str):
            return celtypes.BoolType(str(part) in str(text))
        raise TypeError("no such overload")

    return {
        "duration": duration,
        "timestamp": timestamp,
        "matches": matches,
        "contains": contains,
    }


_MACROS: Final = frozenset(
    ("all", "dyn", "exists", "exists_one", "filter", "has", "map", "min", "reduce")
)


@functools.cache
def _known() -> frozenset[str]:
    from celpy.evaluation import base_functions

    return frozenset((*base_functions, *_functions())) | _MACROS


def _called(tree: Tree[Any]) -> Iterator[Token]:
    """The name of every function that an expression calls."""
    for node in tree.iter_subtrees():
        if node.data in ("member_dot_arg", "ident_arg", "dot_ident_arg"):
            for each in node.children:
                if getattr(each, "type", "") == "IDENT":
                    yield cast("Token", each)


def _guarded(call: Callable[[], Foreign]) -> Foreign:
    """cel-python makes an error value of a ``ValueError``, and lets the others through."""
    try:
        return call()
    except (EvalError, BadPattern, OverflowError) as error:
        raise ValueError(str(error)) from None


def _deeper_than(tree: Tree[Any], limit: int) -> bool:
    level: list[Any] = [tree]
    depth = 0
    while level:
        depth += 1
        if depth > limit:
            return True
        level = [child for node in level for child in node.children if hasattr(child, "children")]
    return False


def _check_input(given: Mapping[str, Value]) -> None:
    """Refuse what cel-python cannot take, before it meets it.

    Raises:
        EvalError: too deep, too large, or an integer beyond 64 bits.
    """
    level: list[Value] = list(given.values())
    seen = 0
    for _ in range(MAX_INPUT_DEPTH):
        seen += len(level)
        if seen > MAX_INPUT_VALUES:
            raise EvalError("limit", f"the input has more than {MAX_INPUT_VALUES} values")
        below: list[Value] = []
        for value in level:
            if type(value) is list:
                below += value
            elif type(value) is dict:
                below += value.values()
            elif type(value) is int and not INT_MIN <= value <= INT_MAX:
                raise EvalError("overflow", "an integer of the input is beyond 64 bits")
        if not below:
            return
        level = below
    raise EvalError("limit", f"the input is nested deeper than {MAX_INPUT_DEPTH} levels")


def _to_celpy(value: Value) -> Foreign:
    from celpy import celtypes

    match value:
        case None:
            return None
        case bool():
            return celtypes.BoolType(value)
        case UInt():
            return celtypes.UintType(value)
        case int():
            return celtypes.IntType(value)
        case float():
            return celtypes.DoubleType(value)
        case str():
            return celtypes.StringType(value)
        case bytes():
            return celtypes.BytesType(value)
        case list():
            return celtypes.ListType([_to_celpy(item) for item in value])
        case dict():
            return celtypes.MapType({_to_celpy(k): _to_celpy(v) for k, v in value.items()})
        case Timestamp():
            seconds, nanos = divmod(value.nanos, SECOND)
            epoch = celtypes.TimestampType(1970, 1, 1, tzinfo=dt.UTC)
            return epoch + celtypes.DurationType(seconds=seconds, nanos=nanos)
        case Duration():
            seconds, nanos = divmod(value.nanos, SECOND)
            return celtypes.DurationType(seconds=seconds, nanos=nanos)
    raise EvalError("invalid_argument", f"cel-python has no values of {type(value).__name__}")


def _from_celpy(value: Foreign) -> Value:
    from celpy import celtypes

    if value is None or type(value) in (bool, str, int, float, bytes):
        return value
    if isinstance(value, celtypes.BoolType):
        return bool(value)
    if isinstance(value, celtypes.UintType):
        return UInt(value)
    if isinstance(value, celtypes.IntType):
        return int(value)
    if isinstance(value, celtypes.DoubleType):
        return float(value)
    if isinstance(value, celtypes.StringType):
        return str(value)
    if isinstance(value, celtypes.BytesType):
        return bytes(value)
    if isinstance(value, list):
        return [_from_celpy(item) for item in value]
    if isinstance(value, dict):
        return {_from_celpy(key): _from_celpy(item) for key, item in value.items()}
    if isinstance(value, dt.datetime):
        return Timestamp(_micros(value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)))
    if isinstance(value, dt.timedelta):
        return Duration(_micros(value))
    if isinstance(value, type):
        name = value.__name__.removesuffix("Type").lower()
        return TypeValue({"null": "null_type"}.get(name, name))
    raise EvalError("invalid_argument", "cel-python gave a value that has no meaning here")


def _micros(delta: dt.timedelta) -> int:
    return ((delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds) * _MICROSECOND
