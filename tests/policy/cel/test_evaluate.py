"""Values and errors over JSON: the cases where engines go wrong."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.policy.cel import (
    CelError,
    CompileError,
    Environment,
    compile_text,
    new_frame,
    parse,
)
from sidecar.policy.cel.types import DYN, MAP
from sidecar.policy.cel.values import Optional, UInt, plain
from tests.policy.cel.expressions import INPUT, anything

ARGS = {
    "count": 5,
    "d": 5.0,
    "big": 2**70,
    "u": 2**63,
    "s": "/etc/passwd",
    "n": None,
    "b": True,
    "paths": ["/a", "/b"],
    "nul": "safe\x00/../../etc/passwd",
    "sur": "\ud800abc",
    "in": 1,
    "o": {"p": {"q": 1}},
}


def run(text: str, **more: Any) -> Any:
    return compile_text(text)({"args": ARGS, **more})


def kind(text: str) -> str:
    value = run(text)
    assert isinstance(value, CelError), f"{text} is {value!r}"
    assert (value.line, value.column) >= (1, 1)
    return value.kind


@pytest.mark.parametrize(
    "text",
    [
        "args.count > 3",
        "args.d > 3",
        "args.count > 4.5",
        "args.count == 5.0",
        "args.d == 5",
        "args.d in [5]",
        "args.count in [5.0, 'a']",
        "args.count != null",
        "args.n == null",
        "!(args.s == 1)",
        "1 != '1'",
        "[1, 'a'] != [1, 2]",
        "'x' in ['a', 1] == false",
        "!(false == 0)",
        "!(args.b == 1)",
        "true != 1.0",
        "!(args.b in [1])",
        "args.count == 5u",
        "{1: 'a'} == {1u: 'a'}",
        "{1: 2.0} == {1.0 == 1.0 ? 1 : 0: 2}",
        "size('héllo✓😀') == 7",
        "size(b'é') == 2",
        "args.big > 9223372036854775807",
        "args.big != 1",
        "args.u > 0",
        "type(args.u) == int",
        "args.nul.contains('passwd')",
        "args.nul.size() == 22",
        "args.sur.contains('abc')",
        "args['in'] == 1",
        "args.`in` == 1",
        "!has(args.nope)",
        "has(args.o.p.q)",
        "'count' in args",
        "!('zz' in args)",
        "args.nope == 1 || true",
        "!(args.nope == 1 && false)",
        "true || args.nope",
        "!(false && args.nope)",
        "('a' || true) && !('a' && false)",
        "true ? true : args.nope",
        "[1, 2, 3].exists(x, 6 / (2 - x) == 6)",
        "![1, 2, 3].all(e, 6 / (2 - e) == 7)",
        "args.paths.all(p, p.startsWith('/'))",
        "-7 / 2 == -3 && -7 % 2 == -1 && 7 % -2 == 1",
        "0.0 / 0.0 != 0.0 / 0.0",
        "1.0 / 0.0 > 1e308 && -1.0 / 0.0 < -1e308",
        "args.?nope.orValue(7) == 7",
        "args.?o.p.q.orValue(0) == 1",
        "args.o[?'zz'].hasValue() == false",
        "[1, 2, 3, 4].filter(x, x % 2 == 0) == [2, 4]",
        "[1, 2, 3].map(x, x > 1, x * 10) == [20, 30]",
        "{'a': 1, 'b': 2}.map(k, k) == ['a', 'b']",
        "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
        "['a', 'b'].transformMapEntry(i, v, {v: i}) == {'a': 0, 'b': 1}",
        "cel.bind(x, args.count, x * x) == 25",
        "cel.bind(x, 1 / 0, true)",
        "type(1) != type(1u) && type([]) == list && type(null) == null_type",
        "duration('1h') > duration('59m') && duration('-1.5s') < duration('0')",
        "timestamp('2024-02-29T00:00:00Z') + duration('24h') == timestamp('2024-03-01T00:00:00Z')",
        "string(1.5) == '1.5' && string(1e6) == '1e+06' && string(-0.0) == '-0'",
    ],
)
def test_true(text: str) -> None:
    assert run(text) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("args.nope == 1", "no_such_key"),
        ("args.nope || false", "no_such_key"),
        ("has(args.nope.deeper)", "no_such_key"),
        ("unset", "no_such_variable"),
        ("args.count + 1.0", "no_such_overload"),
        ("args.d + 1", "no_such_overload"),
        ("args.paths[-1]", "index_out_of_bounds"),
        ("args.paths[2]", "index_out_of_bounds"),
        ("args.paths['a']", "no_such_overload"),
        ("args.paths.x", "no_such_overload"),
        ("args.s.x", "no_such_overload"),
        ("args.s[0]", "no_such_overload"),
        ("'etc' in args.s", "no_such_overload"),
        ("1 && true", "no_such_overload"),
        ("'a' || false", "no_such_overload"),
        ("!args.n", "no_such_overload"),
        ("args.count ? 1 : 2", "no_such_overload"),
        ("size(args.n)", "no_such_overload"),
        ("string(args.n)", "no_such_overload"),
        ("args.s < 1", "no_such_overload"),
        ("args.b < 1", "no_such_overload"),
        ("args.n < null", "no_such_overload"),
        ("9223372036854775807 + 1", "overflow"),
        ("-9223372036854775808 - 1", "overflow"),
        ("-(-9223372036854775808)", "overflow"),
        ("-9223372036854775808 / -1", "overflow"),
        ("9223372036854775807 * 2", "overflow"),
        ("0u - 1u", "overflow"),
        ("args.big + 1", "overflow"),
        ("args.big * args.big", "overflow"),
        ("int(args.big)", "overflow"),
        ("string(args.big)", "overflow"),
        ("1 / 0", "divide_by_zero"),
        ("1u % 0u", "divide_by_zero"),
        ("int('x')", "invalid_argument"),
        ("{'a': 1, 'a': 2}", "invalid_argument"),
        ("{1: 1, 1u: 2}", "invalid_argument"),
        ("{1.0: 1}", "no_such_overload"),
        ("[1].exists_one(x, x / 0 == 1)", "divide_by_zero"),
        ("[1].filter(x, x)", "no_such_overload"),
        ("[1].map(x, x, x)", "no_such_overload"),
        ("[1].all(x, x)", "no_such_overload"),
        ("args.s.all(x, true)", "no_such_overload"),
        ("optional.none().value()", "invalid_argument"),
        ("args.s.matches(args.sur)", "invalid_argument"),
        ("args.sur.matches('a')", "invalid_argument"),
        ("bytes(args.sur)", "invalid_argument"),
        ("timestamp('2024-02-30T00:00:00Z')", "overflow"),
        ("duration('9223372036.854775808s')", "overflow"),
    ],
)
def test_errors(text: str, expected: str) -> None:
    assert kind(text) == expected


def test_errors_have_the_place_of_the_operation() -> None:
    error = run("true &&\n  args.nope == 1")
    assert (error.line, error.column, error.message) == (2, 8, "no such key: nope")
    error = run("args.s == 'x' ||\n  args.count +\n  args.d > 1")
    assert (error.line, error.column) == (2, 14)
    error = run("args.paths.all(p, p.size() / 0 == 1)")
    assert (error.line, error.column) == (1, 28)


@pytest.mark.parametrize(
    "text",
    [
        "args[args.s]",
        "args.paths[args.big]",
        "int(args.s)",
        "timestamp(args.s)",
        "duration(args.s)",
        "ip(args.s)",
        "url(args.s + ' ')",
        "args.s.matches(args.s + '(')",
        "args.s + 1",
        "args.s.glob('[' + args.s)",
        "'%d'.format([args.s])",
        "base64.decode(args.s + '!')",
        "args.s.charAt(99)",
        "timestamp(0).getHours(args.s)",
    ],
)
def test_no_message_quotes_the_input(text: str) -> None:
    error = run(text)
    assert isinstance(error, CelError)
    assert "passwd" not in error.message
    assert "etc" not in error.message
    assert "1180591620717411303424" not in error.message


def test_a_rule_is_true_false_or_an_error() -> None:
    frame = new_frame({"args": ARGS})
    assert compile_text("args.b").test(frame) is True
    assert compile_text("!args.b").test(frame) is False
    for text in ("args.count", "args.s", "args.n", "1", "args"):
        error = compile_text(text).test(frame)
        assert isinstance(error, CelError)
        assert error.kind == "not_boolean"
    error = compile_text("args.nope").test(frame)
    assert isinstance(error, CelError)
    assert error.kind == "no_such_key"


def test_keys_of_maps_keep_booleans_and_numbers_apart() -> None:
    assert run("{true: 'a', 1: 'b'}[1]") == "b"
    assert run("{true: 'a', 1: 'b'}[true]") == "a"
    assert run("{true: 'a', 1: 'b'}.map(k, string(k))") == ["true", "1"]
    assert run("{false: 1}.exists(k, k)") is False
    assert run("{1u: 1}.map(k, type(k) == uint)") == [True]
    assert plain(run("{true: 'a', 1: 'b'}")) == {"true": "a", "1": "b"}


def test_unsigned_integers_are_a_type_of_their_own() -> None:
    value = run("1u + 2u")
    assert type(value) is UInt
    assert value == 3
    assert kind("1u + 1") == "no_such_overload"
    assert run("1u < 2 && 2.5 > 2u") is True


def test_the_input_is_used_as_it_is() -> None:
    given_list = ["a"]
    assert run("x", x=given_list) is given_list
    assert run("x + ['b']", x=given_list) == ["a", "b"]
    assert given_list == ["a"]
    frame_input = {"args": ARGS}
    compile_text("args.paths.map(p, p)")(frame_input)
    assert list(frame_input) == ["args"]


def test_undeclared_names_do_not_compile_where_variables_are_declared() -> None:
    env = Environment(variables={"args": MAP, "a.b": DYN})
    with pytest.raises(CompileError) as caught:
        compile_text("true || (tol.name == 'x' && nope(1) && 'a'.matches('('))", env)
    found = [(f.code, f.line, f.column) for f in caught.value.findings]
    assert found == [("unknown-variable", 1, 10), ("unknown-function", 1, 29), ("bad-regex", 1, 52)]
    with pytest.raises(CompileError, match=r"size\(\) takes 1 arguments, not 2"):
        compile_text("size('a', 1) > 0", env)
    assert compile_text("a.b.c == 1", env)({"a.b": {"c": 1}}) is True


def test_definitions_are_evaluated_when_read_and_once_a_decision() -> None:
    env = Environment(
        variables={"args": MAP},
        definitions={
            "variables.long": parse("args.paths.size() > 1"),
            "variables.bad": parse("args.nope == 1"),
            "variables.never": parse("args.paths.all(a, args.paths.all(b, 1 / 0 == 1))"),
        },
    )
    frame = new_frame({"args": ARGS})
    assert compile_text("variables.long || variables.never", env).test(frame) is True
    assert compile_text("variables.long && args.count == 5", env).test(frame) is True
    assert frame["@variables.long"] is True
    assert "@variables.never" not in frame
    first = compile_text("variables.bad", env).test(frame)
    again = compile_text("true && variables.bad", env).test(frame)
    assert isinstance(first, CelError)
    assert isinstance(again, CelError)
    assert first.kind == again.kind == "no_such_key"
    assert compile_text("variables.bad || true", env).test(frame) is True


def test_a_definition_of_itself_does_not_compile() -> None:
    env = Environment(
        variables={}, definitions={"v.a": parse("v.b"), "v.b": parse("v.a && v.missing")}
    )
    with pytest.raises(CompileError, match="defined by itself"):
        compile_text("v.a", env)


def test_optionals_are_lazy_where_they_can_be() -> None:
    assert run("optional.of(1).orValue(1 / 0)") == 1
    assert run("optional.of(1).or(args.nope).value()") == 1
    assert kind("optional.none().orValue(1 / 0)") == "divide_by_zero"
    value = run("args.?nope")
    assert isinstance(value, Optional)
    assert not value.present


def test_programs_are_safe_from_many_threads() -> None:
    program = compile_text(
        "args.l.exists(x, x == args.want) && args.l.all(x, args.l.exists(y, y == x))"
    )
    wrong: list[object] = []

    def ask(number: int) -> None:
        for i in range(300):
            hit = (i + number) % 2 == 0
            given_args = {"l": list(range(20)), "want": number if hit else -1}
            if program({"args": given_args}) is not hit:
                wrong.append((number, i))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class _Held(dict[str, object]):
    pass


def test_an_error_keeps_nothing_of_the_input_alive() -> None:
    held = _Held(secret="s")
    gone = weakref.ref(held)
    gc.disable()
    try:
        errors = [
            compile_text(text)({"held": held, "l": [1]})
            for text in ("held.x", "l.all(x, held.x)", "held.x && true", "l.exists(x, held.x)")
        ]
        assert all(isinstance(error, CelError) for error in errors)
        del held
        assert gone() is None
    finally:
        gc.enable()


@given(expression=anything())
def test_any_expression_ends_in_a_value_or_an_error(expression: str) -> None:
    value = compile_text(expression, Environment(checked=False))(INPUT)
    if isinstance(value, CelError):
        assert value.kind != "internal", value
    plain(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_equality_is_reflexive_but_for_nan_and_total(value: Any) -> None:
    same = compile_text("a == b")({"a": value, "b": value})
    assert same is ("nan" not in repr(value))
    for other in ("1", "'x'", "null", "true", "[a]", "{'k': a}"):
        assert type(compile_text(f"a == {other}")({"a": value})) is bool
