"""What a check of an expression finds, and where; and what it lets pass."""

from __future__ import annotations

import pytest
from hypothesis import given

from sidecar.policy.cel import CelError, CompileError, Environment, compile_text, parse
from sidecar.policy.cel.lint import lint, type_of
from sidecar.policy.cel.types import (
    BOOL,
    DYN,
    INT,
    MAP,
    STRING,
    TIMESTAMP,
    Field,
    Type,
    list_of,
    object_of,
    optional_of,
)
from tests.policy.cel.expressions import INPUT, anything, typed

ENV = Environment(
    variables={
        "tool": object_of(
            name=STRING,
            server=STRING,
            annotations=object_of(read_only=Field(BOOL, optional=True)),
            hints=object_of(read_only=BOOL),
            title=Field(STRING, optional=True),
        ),
        "args": MAP,
        "session": object_of(labels=list_of(STRING), trust=INT),
        "now": TIMESTAMP,
    },
    definitions={
        "variables.tainted": parse('"outside" in session.labels'),
        "variables.loop": parse("variables.pool"),
        "variables.pool": parse("variables.loop"),
    },
)


def found(text: str) -> list[tuple[str, int, int]]:
    return [(f.code, f.line, f.column) for f in lint(parse(text), ENV)]


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ('tol.name == "x"', "unknown-variable", 1, 1),
        ("true || tol", "unknown-variable", 1, 9),
        ("tool.annotations.readonly", "unknown-field", 1, 18),
        ("has(tool.x)", "unknown-field", 1, 1),
        ("tool.?x.hasValue()", "unknown-field", 1, 7),
        ("tool['x'] == 1", "unknown-field", 1, 5),
        ("tool.name.x == 1", "unknown-field", 1, 11),
        ('tool.name.startWith("a")', "unknown-function", 1, 11),
        ("math.flor(1.0) == 1.0", "unknown-function", 1, 6),
        ("size(tool.name, 1) > 0", "arguments", 1, 1),
        ('startsWith(tool.name, "a")', "arguments", 1, 1),
        ("session.labels.all(x)", "arguments", 1, 16),
        ("tool.name.startsWith(1)", "no-overload", 1, 11),
        ('session.trust.startsWith("a")', "no-overload", 1, 15),
        ("cidr('10.0.0.0/8').containsIP(1)", "no-overload", 1, 20),
        ("tool.name == 1", "comparison", 1, 11),
        ("session.labels.exists(l, l == 1)", "comparison", 1, 28),
        ("1 in session.labels", "comparison", 1, 3),
        ("tool.name < 1", "no-overload", 1, 11),
        ("now < 3", "no-overload", 1, 5),
        ("tool.name + 1 == 'a'", "no-overload", 1, 11),
        ("-tool.name == 'a'", "no-overload", 1, 1),
        ('"etc" in tool.name', "in-string", 1, 7),
        ("'a' in session.trust", "no-overload", 1, 5),
        ("session.labels['a'] == 'a'", "no-overload", 1, 15),
        ("tool.name[0] == 'a'", "no-overload", 1, 10),
        ("tool.name.all(x, true)", "no-overload", 1, 11),
        ("{1.5: 2} == {}", "no-overload", 1, 2),
        ('"x" && true', "not-boolean", 1, 1),
        ("!tool.name", "not-boolean", 1, 7),
        ("tool.name ? true : false", "not-boolean", 1, 6),
        ("session.labels.all(x, x)", "not-boolean", 1, 23),
        ("tool.name", "not-boolean", 1, 6),
        ("session.labels.map(x, x)", "not-boolean", 1, 16),
        ('tool.name.matches("(")', "bad-regex", 1, 19),
        ('tool.name.matches("a" + "(")', "bad-regex", 1, 23),
        ('tool.name.glob("[a")', "bad-regex", 1, 16),
        ("tool.name.matches(tool.server)", "computed-regex", 1, 24),
        ("variables.loop", "circular", 1, 1),
        ("variables.tainted == 1", "comparison", 1, 19),
        ("true &&\n  Foo{a: 1}.b", "message", 2, 3),
    ],
)
def test_errors(text: str, code: str, line: int, column: int) -> None:
    findings = lint(parse(text), ENV)
    assert [(f.code, f.line, f.column) for f in findings if not f.warning] == [(code, line, column)]


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("args.count > 3", [("unguarded", 1, 6)]),
        ("tool.annotations.read_only", [("unguarded", 1, 18)]),
        ("args['a-b'] == 1", [("unguarded", 1, 5)]),
        ("args.a.b.c == 1", [("unguarded", 1, 6)]),
        ("has(args.a.b) && args.a.b == 1", [("unguarded", 1, 10)]),
        ("args.a == 1 && args.a == 2", [("unguarded", 1, 6)]),
        ("has(args.a) ? true : args.a == 1", [("unguarded", 1, 27)]),
        ("has(args.a) || args.a == 1", [("unguarded", 1, 21)]),
        ("!(has(args.a) && true) && args.a == 1", [("unguarded", 1, 32)]),
        ("args.l.all(x, x.all(y, y.all(z, true)))", [("unguarded", 1, 6), ("nesting", 1, 26)]),
        ("1 < 2 || tool.hints.read_only", [("constant", 1, 7)]),
    ],
)
def test_warnings(text: str, warnings: list[tuple[str, int, int]]) -> None:
    findings = lint(parse(text), ENV)
    assert [(f.code, f.line, f.column) for f in findings] == warnings
    assert all(f.warning for f in findings)


@pytest.mark.parametrize(
    "text",
    [
        "true",
        'tool.server == "github" && tool.name.startsWith("delete_")',
        "has(args.count) && args.count > 3",
        "args.count > 3 && has(args.count)",
        "!has(args.count) || args.count > 3",
        "has(args.count) ? args.count > 3 : false",
        "!has(args.count) ? false : args.count > 3",
        "!(!has(args.a) || !has(args.b)) && args.a == args.b",
        "has(args.a) && has(args.a.b) && args.a.b == 1",
        '"a-b" in args && args["a-b"] == 1',
        "args.?a.hasValue() && args.a == 1",
        "args.?a.b.orValue(1) == 1",
        "tool.annotations.?read_only.orValue(false)",
        "tool.?title.orValue('').size() > 3",
        "variables.tainted && !tool.hints.read_only",
        "session.labels[0] == 'a' && session.labels.exists(l, l.startsWith('o'))",
        "has(args.l) && args.l.exists(x, x.name == 'a')",
        "has(args.l) && args.l.filter(x, has(x.n)).map(x, x.n) == [1]",
        "now - timestamp('2024-01-01T00:00:00Z') > duration('1h')",
        "tool.name in ['a', 'b'] && session.trust + 1 > 2.5",
        "cel.bind(n, tool.name, n.size() > 3)",
        "type(tool.name) == string && tool.name != null",
        "tool.name.matches('a' + 'b') && tool.name.glob(tool.server)",
        "math.greatest(session.trust, 2) == 2 && [1, 2].transformList(i, v, i + v) == [1, 3]",
        "(has(args.a) ? args.a : 1) == 'x'",
    ],
)
def test_nothing_to_say(text: str) -> None:
    assert lint(parse(text), ENV) == []


def test_messages_help() -> None:
    def message(text: str, elsewhere: dict[str, str] | None = None) -> str:
        return lint(parse(text), ENV, elsewhere=elsewhere)[0].message

    assert message("tol.name == ''") == "unknown variable tol; did you mean tool?"
    hint = {"result": "it is set in phase result alone"}
    assert message("result.is_error", hint) == (
        "unknown variable result; it is set in phase result alone"
    )
    assert message("tool.annotations.readonly") == (
        "there is no field readonly; did you mean read_only?"
    )
    assert message("session.x == 1") == "there is no field x; there are labels, trust"
    assert message("math.flor(1.0) == 1.0") == (
        "unknown function math.flor; did you mean math.floor?"
    )
    assert message("tool.name.startsWith(1)") == "startsWith() of a string does not take int"
    assert message("args.a == 1") == (
        "args.a may be absent; guard it with has(args.a) or args.?a.orValue(…)"
    )
    assert message("args['a-b'] == 1") == (
        'args["a-b"] may be absent; guard it with "a-b" in args or args[?"a-b"].orValue(…)'
    )


def test_another_type_may_be_expected() -> None:
    assert lint(parse("'a' + tool.name"), ENV, STRING) == []
    (finding,) = lint(parse("session.trust"), ENV, STRING)
    assert (finding.code, finding.message) == ("type", "this has to be a string, it is an int")
    assert lint(parse("session.trust"), ENV, None) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tool.name", STRING),
        ("tool.?title", optional_of(STRING)),
        ("tool.?title.orValue('')", STRING),
        ("session.labels.map(x, x.size())", list_of(INT)),
        ("session.labels.filter(x, true)", list_of(STRING)),
        ("true ? 1 : 'a'", DYN),
        ("[1, 2]", list_of(INT)),
        ("args.a + 1", INT),
        ("now - duration('1s')", TIMESTAMP),
        ("variables.tainted", BOOL),
        ("args.x", DYN),
    ],
)
def test_types(text: str, expected: Type) -> None:
    assert type_of(parse(text), ENV) == expected


OPEN_TYPES = Environment(variables=dict.fromkeys(INPUT, DYN))


@given(expression=typed())
def test_a_well_typed_expression_has_no_errors(expression: str) -> None:
    assert [f for f in lint(parse(expression), OPEN_TYPES) if not f.warning] == []


@given(expression=anything())
def test_an_expression_with_a_value_of_its_own_accord_has_no_type_errors(expression: str) -> None:
    """Errors are reported only for what could never be right; absorbed ones count as wrong."""
    findings = [f for f in lint(parse(expression), OPEN_TYPES, None) if not f.warning]
    try:
        program = compile_text(expression, OPEN_TYPES)
    except CompileError:
        assert findings != []
        return
    codes = {f.code for f in findings}
    harmless = {"comparison", "computed-regex"}
    absorbing = ("&&", "||", "?", "all(", "exists", "map", "bind", "filter", "transform")
    if not codes <= harmless and not any(mark in expression for mark in absorbing):
        assert isinstance(program(INPUT), CelError)
