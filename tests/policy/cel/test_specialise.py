"""Folding changes no result: same value, same error, at the same place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.policy.cel import CelError, Environment, compile_text, new_frame, parse
from sidecar.policy.cel.compile import compile_tree
from sidecar.policy.cel.errors import as_value
from sidecar.policy.cel.specialise import specialised
from sidecar.policy.cel.types import DYN
from tests.kit.examples import examples
from tests.policy.cel.conformance import tagged
from tests.policy.cel.expressions import INPUT, anything

ENV = Environment(variables=dict.fromkeys(INPUT, DYN), checked=False)
KNOWN: list[dict[str, Any]] = [
    {"tool": INPUT["tool"]},
    {"args": INPUT["args"]},
    {"tool": INPUT["tool"], "session": INPUT["session"]},
    {"tool.name": "delete_repo", "args.i": 5, "args.m": {"k": 1}},
    INPUT,
]


def unfolded(expression: str) -> Any:
    tree = parse(expression)
    try:
        return compile_tree(tree, ENV)(new_frame(INPUT))
    except Exception as error:  # noqa: BLE001 - as Program does
        return as_value(error, tree.span.line, tree.span.column)


@settings(max_examples=examples(150))
@given(expression=anything(), known=st.sampled_from(KNOWN))
@example("tool.name || session.trust", KNOWN[3])
@example("session.labels[tool.server]", INPUT)
@example("args.m[?tool.name].orValue(tool.nope)", KNOWN[2])
@example("cel.bind(b, has(args.li), tool.name && [])", KNOWN[0])
def test_the_result_is_the_same(expression: str, known: dict[str, Any]) -> None:
    expected = unfolded(expression)
    program = compile_text(expression, ENV)
    special = program.specialise(known)
    rest = {name: value for name, value in INPUT.items() if name not in known}
    for value in (program(INPUT), special(rest)):
        if isinstance(expected, CelError):
            assert value == expected
        else:
            assert tagged(value) == tagged(expected)


def constant(text: str, known: dict[str, Any], env: Environment = ENV) -> Any:
    program = compile_text(text, env).specialise(known)
    return program({}) if program.constant else "open"


TOOL = {"name": "delete_repo", "server": "github", "annotations": {}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('tool.name == "delete_repo"', True),
        ('tool.server == "slack" && args.url.matches("x")', False),
        ('args.url.matches("x") && tool.server == "slack"', False),
        ('tool.server == "github" || args.nope', True),
        ('tool.server == "github" && args.force', "open"),
        ("has(tool.annotations.read_only)", False),
        ("tool.annotations.?read_only.orValue(true)", True),
        ('has(tool.annotations.read_only) ? args.x == 1 : "a" == "a"', True),
        ('["delete_repo"].exists(n, n == tool.name)', True),
        ("args.l.exists(n, n == tool.name)", "open"),
        ('tool.name in ["a", "delete_repo"]', True),
        ("cel.bind(n, tool.name, n.size() > 3)", True),
        ("tool.annotations.read_only", "open"),  # an error, kept for when it is reached
        ("tool.nope || true", True),
        ("1 / 0 == 1", "open"),
    ],
)
def test_what_is_decided_beforehand(text: str, value: Any) -> None:
    assert constant(text, {"tool": TOOL}) == value


def test_a_field_below_a_variable_may_be_known_alone() -> None:
    known = {"tool.name": "x", "tool.hints.read_only": False}
    assert constant('tool.name == "x" && !tool.hints.read_only', known) is True
    assert constant("has(tool.name)", known) is True
    assert constant("tool.server == 'x'", known) == "open"
    assert constant("tool == {'name': 'x'}", known) == "open"


def test_a_macro_variable_hides_a_known_name() -> None:
    text = "args.l.all(tool, tool.name == 'y')"
    special = compile_text(text, ENV).specialise({"tool": TOOL})
    assert special({"args": {"l": [{"name": "y"}]}}) is True
    hidden = "[{'name': 'y'}].all(tool, .tool.name == 'delete_repo')"
    assert constant(hidden, {"tool": TOOL}) is True


def test_what_is_left_is_shorter_and_still_has_to_be_boolean() -> None:
    special = compile_text('tool.server == "github" && args.force', ENV).specialise({"tool": TOOL})
    assert special.references == {"args.force"}
    assert special({"args": {"force": True}}) is True
    value = special({"args": {"force": 1}})
    assert isinstance(value, CelError)
    assert value.kind == "no_such_overload"


def test_definitions_are_folded_with_the_rest() -> None:
    env = Environment(
        variables={"tool": DYN, "args": DYN},
        definitions={
            "variables.gh": parse('tool.server == "github"'),
            "variables.force": parse("variables.gh && args.force"),
        },
    )
    assert constant("variables.gh", {"tool": TOOL}, env) is True
    known = {"tool": TOOL}
    shared = specialised(env, known)
    special = compile_text("variables.force && !variables.gh", env).specialise(known, shared)
    assert special.constant
    assert special({}) is False


def test_explaining_shows_the_expression_as_it_was_written() -> None:
    special = compile_text('tool.server == "github" && args.force', ENV).specialise({"tool": TOOL})
    steps = special.explain({"tool": TOOL, "args": {"force": True}}).steps
    assert steps[0].text == 'tool.server == "github" && args.force'
