"""Random expressions through our engine and two others: every disagreement is explained.

``SIDECAR_DIFFERENTIAL=10000 pytest tests/policy/cel/test_differential.py`` draws that many.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings

from sidecar.policy.cel import CelError, CelSyntaxError, CompileError, Environment, compile_text
from sidecar.policy.cel.celpy_reference import CelpyEngine
from sidecar.policy.cel.types import DYN
from sidecar.policy.cel.values import BoolKey, Duration, Timestamp, TypeValue
from tests.policy.cel.expressions import INPUT, anything, typed

cel = pytest.importorskip("cel_expr_python.cel", reason="cel-expr-python is not installed")

EXAMPLES = int(os.environ.get("SIDECAR_DIFFERENTIAL", "300"))
ENV = Environment(variables=dict.fromkeys(INPUT, DYN), checked=False)
ERROR = "error"
# What the other side cannot show: an optional, a type in a list.
UNSHOWN = "unshown"

_CONFIG = """
name: differential
extensions: [{name: strings}, {name: math}, {name: optional}, {name: bindings},
             {name: two-var-comprehensions}]
"""


def _shown(value: Any) -> Any:
    """A value so that both sides' agree when they mean the same; lists of maps are unordered."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        number = float(value)
        return "nan" if math.isnan(number) else number
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): _shown(item) for key, item in value.items()}
    if isinstance(value, Timestamp | Duration):
        return ("time", value.nanos // 1000)
    if isinstance(value, dt.datetime):
        return ("time", _micros(value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)))
    if isinstance(value, dt.timedelta):
        return ("time", _micros(value))
    if isinstance(value, TypeValue) or type(value).__name__ == "Type":
        return "type"
    if isinstance(value, str | bytes):
        return value
    return UNSHOWN


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, BoolKey) else key).lower()


def _micros(delta: dt.timedelta) -> int:
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def ours(expression: str) -> Any:
    try:
        program = compile_text(expression, ENV)
    except (CelSyntaxError, CompileError):
        return ERROR
    value = program(INPUT)
    return ERROR if isinstance(value, CelError) else _shown(value)


@pytest.fixture(scope="module")
def cpp() -> Any:
    """cel-cpp through cel-expr-python, unchecked, over the same input."""
    variables = dict.fromkeys(INPUT, cel.Type.DYN)
    env = cel.NewEnv(config=cel.NewEnvConfigFromYaml(_CONFIG), variables=variables)
    activation = env.Activation(INPUT)

    def evaluate(expression: str) -> Any:
        try:
            # In a list: reading a bare null drops a reference too many in this binding.
            result = env.compile(f"[{expression}]", disable_check=True).eval(activation)
        except RuntimeError:
            return ERROR
        if result.type() == cel.Type.ERROR:
            return ERROR
        try:
            (value,) = result.plain_value()
        except (AssertionError, TypeError):
            return UNSHOWN
        return _shown(value)

    return evaluate


def _same(mine: Any, theirs: Any) -> bool:
    """Whether two shown values are one; what a side cannot show is taken for the other's."""
    if UNSHOWN in (mine, theirs):
        return ERROR not in (mine, theirs)
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_same(mine[k], theirs[k]) for k in mine)
    return type(mine) is type(theirs) and bool(mine == theirs)


class Explained(NamedTuple):
    """Why another engine may differ: in expressions with ``pattern``, if ``failing`` fails."""

    pattern: str
    failing: str
    why: str


CEL_CPP = [
    Explained(r"\bu?int\(", "ours", "it converts booleans, and text with blanks or a plus sign"),
    Explained(
        r"\[\?|\.\?|optional",
        "theirs",
        "a field of an optional that holds no map ends its whole evaluation, && and || included;"
        " and it takes no uint or double in [?k] of a list",
    ),
    Explained(
        r"math\.(?:least|greatest)\(",
        "theirs",
        "a literal of a wrong type does not compile, even where it is never reached",
    ),
    Explained(r"substring\(", "theirs", "it refuses substring(n, size), the end of the text"),
    Explained(r"string\(timestamp", "", "it pads fractions of a second to 3, 6 or 9 digits"),
]


CEL_PYTHON = [
    Explained(
        r"\.(?:map|filter)\(",
        "theirs",
        "an error in the list that a macro runs over goes through && and ||",
    ),
]


def disagreement(expression: str, mine: Any, theirs: Any, excuses: list[Explained]) -> str | None:
    """What to say of two answers that differ without an explanation."""
    if _same(mine, theirs):
        return None
    failing = "ours" if mine == ERROR else "theirs" if theirs == ERROR else ""
    if any(e.failing == failing and re.search(e.pattern, expression) for e in excuses):
        return None
    return f"{expression}\n  ours   {mine!r}\n  theirs {theirs!r}"


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(expression=anything())
def test_no_unexplained_disagreement_with_cel_cpp(cpp: Any, expression: str) -> None:
    assert disagreement(expression, ours(expression), cpp(expression), CEL_CPP) is None


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(expression=typed())
def test_well_typed_expressions_agree_with_cel_cpp(cpp: Any, expression: str) -> None:
    assert disagreement(expression, ours(expression), cpp(expression), []) is None


@settings(max_examples=EXAMPLES // 2, suppress_health_check=list(HealthCheck))
@given(expression=typed())
def test_well_typed_expressions_agree_with_cel_python(expression: str) -> None:
    value = CelpyEngine().compile(expression)(INPUT)
    theirs = ERROR if isinstance(value, CelError) else _shown(value)
    assert disagreement(expression, ours(expression), theirs, CEL_PYTHON) is None
