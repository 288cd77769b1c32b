"""cel-python's interpreter behind our port: bounded, quiet, and safe from many threads."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

import pytest

from sidecar.policy.cel import CelError, CelSyntaxError
from sidecar.policy.cel.celpy_reference import CelpyEngine
from sidecar.policy.cel.values import Duration, Timestamp, TypeValue, UInt

ARGS = {"i": 5, "s": "/etc/passwd", "l": [1, 2, 3], "n": None, "d": {"k": True}}


def run(text: str, **more: Any) -> Any:
    return CelpyEngine().compile(text)({"args": ARGS, **more})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("args.i > 3 && args.s.startsWith('/etc')", True),
        ("args.nope == 1 || true", True),
        ("args.l.exists(x, x == 2)", True),
        ("args.l.map(x, x * 2)", [2, 4, 6]),
        ("args.d", {"k": True}),
        ("1u + 1u", UInt(2)),
        ("1.5", 1.5),
        ("b'a'", b"a"),
        ("args.n", None),
        ("('/' + 'etc').contains('etc')", True),
        ("args.s.matches('^/etc')", True),
        ("duration('1h30m')", Duration(5400 * 10**9)),
        ("timestamp('2024-01-01T00:00:00Z') + duration('1s')", Timestamp(1704067201 * 10**9)),
        ("type(1)", TypeValue("int")),
    ],
)
def test_values_come_back_as_ours(text: str, value: Any) -> None:
    got = run(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "args.nope",
        "args.s + 1",
        "nope(1)",
        "args.s.matches('(')",
        "duration(args.s)",
        "timestamp(args.s)",
        "timestamp('2024-01-01T00:00:00Z').getHours(args.s)",
        "{'a': args.s}.b",
        "1 / 0",
        "9223372036854775807 + 1",
    ],
)
def test_errors_say_nothing_of_the_input(text: str, capfd: Any) -> None:
    error = run(text)
    assert isinstance(error, CelError)
    assert "passwd" not in error.message
    assert capfd.readouterr().err == ""


def test_it_stops() -> None:
    before = time.process_time()
    value = run("l.all(x, l.all(y, x + y >= 0)) || true", l=list(range(3000)))
    assert isinstance(value, CelError)
    assert value.kind == "budget"
    assert time.process_time() - before < 10


def test_durations_are_read_in_linear_time() -> None:
    before = time.process_time()
    assert run("duration(s)", s="a" * 60 + "!").kind == "invalid_argument"
    assert time.process_time() - before < 2


def test_hostile_input_is_refused_before_it_is_converted() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    assert run("true", deep=deep).kind == "limit"
    assert run("true", wide=[[]] * 100_000).kind == "limit"
    assert run("true", big=2**70).kind == "overflow"
    assert run("true", odd=object()).kind == "invalid_argument"


@pytest.mark.parametrize("text", ["(" * 200 + "1" + ")" * 200, "!" * 600 + "true", "x" * 30_000])
def test_hostile_text_is_an_error(text: str) -> None:
    with pytest.raises(CelSyntaxError):
        CelpyEngine().compile(text)


def test_text_that_does_not_parse() -> None:
    with pytest.raises(CelSyntaxError) as caught:
        CelpyEngine().compile("true &&\n  = 1")
    assert (caught.value.line, caught.value.column) == (2, 3)


def test_the_process_is_left_as_it_was() -> None:
    limit = sys.getrecursionlimit()
    run("args.i == 5")
    assert sys.getrecursionlimit() == limit


def test_debug_logs_of_the_process_do_not_get_the_input(caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        run("args.s == 'x'")
    assert "passwd" not in caplog.text


def test_many_threads_get_their_own_answers() -> None:
    expression = CelpyEngine().compile("args.i == want && args.s.size() > 3")
    wrong: list[object] = []

    def ask(number: int) -> None:
        for i in range(20):
            expected = i % 2 == 0
            want = 5 if expected else number
            if expression({"args": ARGS, "want": want + (0 if expected else 10)}) is not expected:
                wrong.append((number, i))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
