"""Bounds while evaluating, and input that is made to hurt."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from sidecar.policy.cel import Budget, CelError, compile_text, new_frame
from sidecar.policy.cel.limits import DEFAULT_BUDGET, MAX_STRING

LONG = list(range(DEFAULT_BUDGET + 1))
HUGE = "a" * (4 << 20)


def error(text: str, **given: Any) -> CelError:
    value = compile_text(text)(given)
    assert isinstance(value, CelError), f"{text} has a value"
    return value


def quick(text: str, seconds: float = 2.0, **given: Any) -> Any:
    """The value; far slower than it should ever be is a failure, a busy machine is not."""
    before = time.process_time()
    value = compile_text(text)(given)
    assert time.process_time() - before < seconds
    return value


@pytest.mark.parametrize(
    "text",
    [
        "l.all(x, x >= 0)",
        "l.exists(x, x < 0)",
        "l.exists_one(x, x == 0)",
        "l.filter(x, true).size() > 0",
        "l.map(x, x).size() > 0",
        "l.transformList(i, v, v).size() > 0",
        "l.all(i, v, i == v)",
        "h.all(x, h.all(y, x + y >= 0))",
        "h.all(x, h.map(y, y).size() > 0)",
        "d.transformMap(k, v, v) != {}",
    ],
)
def test_too_many_steps_is_an_error_that_nothing_absorbs(text: str) -> None:
    given = {"l": LONG, "h": LONG[:300], "d": {str(x): x for x in LONG}}
    for around in ("{}", "{} || true", "true || {}", "!({} && false)", "[1].exists(x, {} || true)"):
        expression = around.format(text)
        if expression.startswith("true ||"):
            assert compile_text(expression)(given) is True  # it is never reached
            continue
        value = compile_text(expression.replace("true", "t").replace("false", "!t"))
        assert error_kind(value({**given, "t": True})) == "budget", expression


def error_kind(value: Any) -> str:
    assert isinstance(value, CelError), value
    return value.kind


def test_the_expressions_of_a_decision_share_one_budget() -> None:
    frame = new_frame({"l": list(range(60))}, Budget(100))
    program = compile_text("l.all(x, x >= 0)")
    assert program.test(frame) is True
    assert error_kind(program.test(frame)) == "budget"
    assert program({"l": list(range(60))}) is True  # a budget of its own


def test_an_early_stop_gives_back_what_it_did_not_use() -> None:
    budget = Budget(100)
    frame = new_frame({"l": list(range(90)), "m": {str(i): i for i in range(90)}}, budget)
    assert compile_text("l.exists(x, x == 4)").test(frame) is True
    assert budget.used == 5
    assert compile_text("l.all(x, x < 4)").test(frame) is False
    assert budget.used == 10
    assert compile_text("m.exists(k, v, v == 4)").test(frame) is True
    assert budget.used == 15


@pytest.mark.parametrize(
    "text",
    [
        "s + s + s",
        "cel.bind(a, s + s, a + a)",
        "s.replace('a', 'bbbb')",
        "s.replace('', 'b')",
        "[s, s, s].join(s)",
        "'%s%s%s'.format([s, s, s])",
        "bytes(s) + bytes(s) + bytes(s)",
        "strings.quote(s + s)",
        "base64.encode(bytes(s) + bytes(s))",
    ],
)
def test_texts_do_not_grow_without_bound(text: str) -> None:
    budget = Budget(10**9)
    value = compile_text(text).evaluate(new_frame({"s": HUGE}, budget))
    assert error_kind(value) == "limit"
    assert len(HUGE) * 2 <= MAX_STRING


@pytest.mark.parametrize(
    "text",
    [
        "s.split('')",
        "l + l + l + l + l + l + l + l + l + l",
        "optional.unwrap(big)",
    ],
)
def test_lists_do_not_grow_without_bound(text: str) -> None:
    given = {"s": HUGE, "l": LONG, "big": [None] * 200_000}
    value = compile_text(text).evaluate(new_frame(given, Budget(10**9)))
    assert error_kind(value) == "limit"


@pytest.mark.parametrize(
    "text",
    [
        "l.all(x, s.contains('zzz') || ok)",
        "l.all(x, s.matches('z$') || ok)",
        "l.all(x, s + string(x) != '')",
        "l.all(x, s.lowerAscii() != '' )",
        "l.all(x, s.startsWith(s))",
        "l.all(x, s.substring(1) != '')",
        "l.all(x, s != t)",
        "l.all(x, x in big)",
        "l.all(x, 'q' in big || ok)",
        "l.all(x, s in strings || ok)",
        "l.all(x, big == big)",
        "l.all(x, m == m)",
        "l.all(x, 'x'.matches('^' + string(x)) || ok)",
        "l.all(x, isURL('http://a/' + string(x)))",
        "l.all(x, timestamp(0).getHours(z) >= 0 && isIP('10.0.0.' + string(x)) || ok)",
    ],
)
def test_work_inside_of_steps_is_charged(text: str) -> None:
    given = {
        "l": list(range(5_000)),
        "s": HUGE[:-1] + "b",
        "t": HUGE[:-1] + "c",
        "big": list(range(100_000)),
        "strings": [HUGE[:-1] + chr(100 + i) for i in range(20)],
        "m": {str(i): i for i in range(100_000)},
        "z": "Europe/Paris",
        "ok": True,
    }
    assert error_kind(quick(text, **given)) == "budget"


def test_values_that_hold_each_other_many_times_are_cheap_or_refused() -> None:
    wide = "[a,a,a,a,a,a,a,a,a,a]"
    bomb = f"[[1,1,1,1]].map(a,{wide}).map(a,{wide}).map(a,{wide}).map(a,{wide}).map(a,{wide})"
    assert error_kind(quick(f"x || {bomb} == {bomb}", x=False)) == "budget"
    assert error_kind(quick(f"x || '%s'.format({bomb}) == ''", x=False)) in ("budget", "limit")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^(a+)+$", False),
        ("^(a|a?)+$", False),
        ("(x+x+)+y", False),
    ],
)
def test_patterns_that_explode_elsewhere_are_linear(pattern: str, expected: bool) -> None:
    assert quick(f"s.matches(r'{pattern}')", s="a" * 100_000 + "!") is expected


@pytest.mark.parametrize("pattern", ["((a{1,100}){1,100}){1,5}b", "a{1001}", "(?=a)", "(a)\\1"])
def test_patterns_that_re2_refuses_are_errors(pattern: str, capfd: Any) -> None:
    assert error("s.matches(p)", s="a", p=pattern).kind == "invalid_argument"
    assert capfd.readouterr().err == ""  # RE2 writes there if it is let


@pytest.mark.parametrize("text", ["a" * 26 + "!", "1" * 5000, "1h" * 5000, ".", "-", "h"])
def test_durations_that_explode_elsewhere_are_refused_at_once(text: str) -> None:
    assert error_kind(quick("duration(s) > duration('1s')", 0.5, s=text)) == "invalid_argument"


def test_deep_input_is_only_walked_when_it_is_compared() -> None:
    deep: Any = 1
    for _ in range(20_000):
        deep = [deep]
    assert compile_text("x == 1")({"x": 1, "deep": deep}) is True
    same: Any = 1
    for _ in range(20_000):
        same = [same]
    assert error("deep == same", deep=deep, same=same).kind == "limit"


def test_input_that_is_no_json_is_an_error_at_worst() -> None:
    odd = {"t": (1, 2), "s": {1, 2}, "o": object(), "none": {None: 1}, "ok": 1}
    assert compile_text("ok == 1")(odd) is True
    for text in ("t[0]", "1 in s", "o.x", "o + 1", "t.all(x, true)", "o == o && false", "-o", "!o"):
        value = compile_text(text)(odd)
        assert value is False or error_kind(value) == "no_such_overload", text
    assert compile_text("none.x")(odd) == CelError("no_such_key", 1, 6, "no such key: x")


def test_numbers_as_json_brings_them() -> None:
    given = json.loads('{"big": 1e400, "neg": -1e400, "n": 123456789012345678901234567890}')
    assert compile_text("big > 1e308 && neg < -1e308")(given) is True
    assert compile_text("n > 9223372036854775807 && n < big")(given) is True
    assert compile_text("n - n == 0")(given) is True
    assert error("n + 1 == 0", **given).kind == "overflow"
    huge = {"x": 10**5000}
    assert compile_text("x > 1.0")(huge) is True
    assert error("string(x)", **huge).kind == "overflow"
    assert error("'%d'.format([x])", **huge).kind == "overflow"
    assert error("x * x", **huge).kind == "overflow"
    assert error("x / 3 == 1", **huge).kind == "overflow"
    assert compile_text("double(x) > 1e308")(huge) is True


def _nested(depth: int, call: Any) -> Any:
    return call() if depth == 0 else _nested(depth - 1, call)


@pytest.mark.parametrize(
    "text",
    [
        "!" * 63 + "x",
        "x" + " + x" * 62,
        "[" * 62 + "x" + "]" * 62,
        "x ? 1 : " * 62 + "2",
        "(x && (x || " * 31 + "x" + "))" * 31,
        "l.all(a, " * 30 + "x" + ")" * 30,
        "f.f" + "[0]" * 60,
        "cel.bind(a, x, " * 60 + "a" + ")" * 60,
        "string(" * 61 + "x" + ")" * 61,
    ],
)
def test_the_deepest_expressions_fit_into_pythons_stack(text: str) -> None:
    def all_of_it() -> None:
        program = compile_text(text)
        program({"x": True, "l": [1], "f": {"f": [0]}})
        program.specialise({"x": True})({})
        program.explain({"x": True, "l": [1]})
        from sidecar.policy.cel import OPEN
        from sidecar.policy.cel.lint import lint

        lint(program.tree, OPEN, None)

    assert sys.getrecursionlimit() == 1000
    _nested(300, all_of_it)
