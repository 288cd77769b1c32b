"""What each part was, and what an expression reads."""

from __future__ import annotations

import pytest
from hypothesis import given

from sidecar.policy.cel import Budget, CelError, Environment, compile_text, parse
from sidecar.policy.cel.explain import MAX_VALUES, render
from sidecar.policy.cel.references import references
from sidecar.policy.cel.types import DYN
from tests.policy.cel.conformance import tagged
from tests.policy.cel.expressions import INPUT, anything

GIVEN = {"args": {"l": [1, 2, 3], "i": 5, "b": b"x"}, "tool": {"name": "x"}}


def test_every_part_has_its_value_and_place() -> None:
    explanation = compile_text('args.i > 3 && tool.name == "y"').explain(GIVEN)
    assert explanation.result is False
    shown = [(s.text, s.line, s.column, s.values, s.times) for s in explanation.steps]
    assert shown == [
        ('args.i > 3 && tool.name == "y"', 1, 12, [False], 1),
        ("args.i > 3", 1, 8, [True], 1),
        ("args.i", 1, 6, [5], 1),
        ('tool.name == "y"', 1, 25, [False], 1),
        ("tool.name", 1, 20, ["x"], 1),
    ]


def test_parts_that_fail_are_not_reached_or_run_often_are_told_so() -> None:
    text = "args.nope == 1 || args.l.exists(x, x > 1) || tool.name == 'y'"
    steps = {s.text: s for s in compile_text(text).explain(GIVEN).steps}
    (failed,) = steps["args.nope"].values
    assert isinstance(failed, CelError)
    assert (failed.kind, failed.column) == ("no_such_key", 6)
    assert steps["x > 1"].values == [False, True]
    assert (steps["x"].values, steps["x"].times) == ([1, 2], 2)
    assert (steps["tool.name == 'y'"].values, steps["tool.name == 'y'"].times) == ([], 0)


def test_it_is_bounded_and_uses_the_budget() -> None:
    given = {"l": list(range(500))}
    explanation = compile_text("l.all(x, x >= 0)").explain(given)
    step = next(s for s in explanation.steps if s.text == "x >= 0")
    assert (len(step.values), step.times) == (MAX_VALUES, 500)
    assert explanation.budget_used == 500
    result = compile_text("l.all(x, x >= 0)").explain(given, Budget(10)).result
    assert isinstance(result, CelError)
    assert result.kind == "budget"


def test_the_text_for_people() -> None:
    text = 'args.l.exists(x, x > 2) && timestamp(0) < timestamp("2024-01-01T00:00:00Z") && args.b.c'
    assert render(compile_text(text).explain(GIVEN)) == "\n".join(
        [
            'args.l.exists(x, x > 2) && timestamp(0) < timestamp("2024-0… = error: no such '
            "overload: .c of bytes",
            "  args.l.exists(x, x > 2) = true",
            "    args.l = [1,2,3]",
            "    x > 2 = false, false, true",
            "      x = 1, 2, 3",
            '  timestamp(0) < timestamp("2024-01-01T00:00:00Z") = true',
            '    timestamp(0) = "1970-01-01T00:00:00Z"',
            '    timestamp("2024-01-01T00:00:00Z") = "2024-01-01T00:00:00Z"',
            "  args.b.c = error: no such overload: .c of bytes",
        ]
    )


@given(expression=anything())
def test_watching_changes_no_result(expression: str) -> None:
    program = compile_text(expression, Environment(checked=False))
    value, watched = program(INPUT), program.explain(INPUT).result
    if isinstance(value, CelError):
        assert watched == value
    else:
        assert tagged(watched) == tagged(value)
    render(program.explain(INPUT))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", set()),
        ("tool.name == args.x.y", {"tool.name", "args.x.y"}),
        ("has(args.x.y) && args.x.y", {"args.x.y"}),
        ("args.?x.y.orValue(1)", {"args.x.y"}),
        ("args['x'].y == args['a-b']", {"args.x.y", "args"}),
        ("args.l[0].x + args[tool.name]", {"args.l", "args", "tool.name"}),
        ("args.l.all(x, x.y == tool.name)", {"args.l", "tool.name"}),
        ("args.l.all(tool, tool.name == .tool.server)", {"args.l", "tool.server"}),
        ("cel.bind(a, args.x, a.y)", {"args.x"}),
        ("args.?x.optMap(v, v.z + tool.n)", {"args.x", "tool.n"}),
        ("cel.block([args.x, cel.index(0).y], cel.index(1))", {"args.x"}),
        ("math.greatest(args.x, 1) == int", {"args.x"}),
        ("tool.name.startsWith(args.p)", {"tool.name", "args.p"}),
        ("variables.v && tool.name", {"session.labels", "tool.name"}),
    ],
)
def test_references(text: str, expected: set[str]) -> None:
    names = ("tool", "args", "session")
    env = Environment(
        variables=dict.fromkeys(names, DYN),
        definitions={"variables.v": parse("'x' in session.labels")},
    )
    assert references(parse(text), env) == expected


@given(expression=anything())
def test_an_expression_reads_nothing_but_its_references(expression: str) -> None:
    env = Environment(variables=dict.fromkeys(INPUT, DYN), checked=False)
    program = compile_text(expression, env)
    pruned = {name: {} for name in INPUT}
    for path in program.references:
        _copy(INPUT, pruned, path.split("."))
    full, less = program(INPUT), program(pruned)
    if isinstance(full, CelError):
        assert isinstance(less, CelError)
        assert (less.kind, less.line, less.column) == (full.kind, full.line, full.column)
    else:
        assert tagged(less) == tagged(full)


def _copy(source: object, target: object, path: list[str]) -> None:
    """Copies what is at a path, whole; what is above it, as far as the path goes."""
    if not isinstance(source, dict) or not isinstance(target, dict) or path[0] not in source:
        return
    if len(path) == 1 or not isinstance(source[path[0]], dict):
        target[path[0]] = source[path[0]]
        return
    _copy(source[path[0]], target.setdefault(path[0], {}), path[1:])
