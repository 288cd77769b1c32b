"""Random expressions over one input, as hypothesis strategies.

``anything`` ignores types on purpose: most of CEL's hard cases are in what does not fit.
``typed`` keeps to what cel-python's interpreter claims to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

INPUT: dict[str, Any] = {
    "tool": {"name": "delete_repo", "server": "github", "annotations": {"read_only": False}},
    "args": {
        "i": 5,
        "d": 5.0,
        "h": 2.5,
        "s": "/etc/passwd",
        "u": "héllo✓😀",
        "n": None,
        "b": True,
        "l": ["a", "/etc/x", 3],
        "li": [1, 2, 3],
        "e": [],
        "m": {"k": 1},
        "o": {"p": {"q": [{"r": "deep"}]}},
    },
    "session": {"labels": ["outside", "x"], "trust": 2},
}

_PATHS = [
    *("tool.name", "tool.server", "tool.annotations.read_only", "args.i", "args.d", "args.h"),
    *("args.s", "args.u", "args.n", "args.b", "args.l", "args.li", "args.e", "args.m"),
    *("args.nope", "args.m.k", "args.m.zz", "args.s.x", "args.o.p.q[0].r", "session.labels"),
    *("session.trust", "args.l[0]", "args.l[7]", "args.m['k']", "args.li[args.i]"),
]
_FIELDS = [path for path in _PATHS if "[" not in path and "." in path]
_LITERALS = [
    *("0", "1", "2", "-1", "5", "9223372036854775807", "-9223372036854775808", "3u", "0u"),
    *("5.0", "2.5", "-0.5", "1e300", "0.0", "'github'", "'/etc'", "''", "'a'", '"é"', "r'\\d'"),
    *("true", "false", "null", "b'ab'", "[]", "[1, 2]", "['a', 'b']", "[5.0]", "[1, 'a', null]"),
    *("{}", "{'k': 1}", "{1: 'a'}", "{'a': {'b': 2}}", "int", "string", "duration('90s')"),
    *("timestamp('2024-02-29T12:30:45.5Z')", "[[1], [2, 3]]"),
]
_STRINGS = ["args.s", "args.u", "tool.name", "'/etc'", "'a'", "''", "'é'", "args.m.zz"]
_NUMBERS = [
    "args.i",
    "args.d",
    "args.h",
    "session.trust",
    "0",
    "1",
    "2",
    "-1",
    "2.5",
    "3u",
    "1e300",
]
_INTEGERS = ["args.i", "session.trust", "0", "1", "2", "3", "-1", "7", "9223372036854775807"]
_LISTS = ["args.l", "args.li", "session.labels", "args.e", "['a', 'b']", "[1, 2]", "[5.0]"]
_POOLS = [_STRINGS, _NUMBERS, _INTEGERS, _LISTS, ["args.b", "true", "false", "args.n", "null"]]
_BINARY = ["==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%"]
_ZONES = ["", "'UTC'", "'Asia/Kathmandu'", "'-02:30'"]
_GETTERS = [
    *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"),
    *("getHours", "getMinutes", "getSeconds", "getMilliseconds"),
]
_CONVERSIONS = ["int", "uint", "double", "string", "bytes", "type", "dyn", "size"]
_MATH = ["ceil", "floor", "round", "trunc", "abs", "sign", "isNaN", "isInf", "isFinite", "bitNot"]
_S, _I = _STRINGS, _INTEGERS
_METHODS: dict[str, list[list[list[str]]]] = {
    **{name: [[]] for name in ["size", "lowerAscii", "upperAscii", "trim", "reverse"]},
    **{name: [[_S]] for name in ["startsWith", "endsWith", "contains", "matches"]},
    **{name: [[_S], [_S, _I]] for name in ["indexOf", "lastIndexOf", "split"]},
    "charAt": [[_I]],
    "substring": [[_I], [_I, _I]],
    "replace": [[_S, _S], [_S, _S, _I]],
}

_TESTS = ["startsWith", "endsWith", "contains"]
T = TypeVar("T")


class _Maker:
    """Draws one expression; ``names`` are the macro variables in scope."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def pick(self, options: list[T]) -> T:
        return self._draw(st.sampled_from(options))

    def atom(self, names: tuple[str, ...]) -> str:
        sources = [_PATHS, _PATHS, _LITERALS]
        if names:
            sources += [list(names), list(names)]
        return self.pick(self.pick(sources))

    def likely(self, pool: list[str], depth: int, names: tuple[str, ...]) -> str:
        """Mostly something of one kind, now and then anything."""
        return self.pick(pool) if self.pick([True, True, True, False]) else self.make(depth, names)

    def make(self, depth: int, names: tuple[str, ...] = ()) -> str:
        if depth <= 0:
            return self.atom(names)
        return self.pick(_FORMS)(self, depth - 1, names)


Form = Callable[[_Maker, int, tuple[str, ...]], str]


def _logic(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    def side() -> str:
        return m.pick([_binary, _binary, _has, _method, _macro])(m, d - 1, n) if d else m.make(d, n)

    return f"({side()} {m.pick(['&&', '||'])} {side()})"


def _binary(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    operator = m.pick(_BINARY)
    pool = m.pick(_POOLS)
    left = m.pick(list(n)) if n and m.pick([True, False]) else m.likely(pool, d, n)
    right = m.likely(_LISTS if operator == "in" else pool, d, n)
    return f"({left} {operator} {right})"


def _unary(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    if m.pick([True, False]):
        return f"!({_binary(m, d, n)})"
    return f"-({m.likely(_NUMBERS, d, n)})"


def _ternary(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    return f"({_binary(m, d, n)} ? {m.make(d, n)} : {m.make(d, n)})"


def _has(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    return f"has({m.pick(_FIELDS)})"


def _method(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    target = m.likely(_STRINGS, d, n)
    name = m.pick(list(_METHODS))
    pools = m.pick(_METHODS[name])
    return f"{target}.{name}({', '.join(m.likely(pool, 0, n) for pool in pools)})"


def _convert(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    return f"{m.pick(_CONVERSIONS)}({m.likely([*_STRINGS, *_NUMBERS, *_LISTS], d, n)})"


def _math(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    if m.pick([True, False]):
        return f"math.{m.pick(_MATH)}({m.likely(_NUMBERS, d, n)})"
    name = m.pick(["greatest", "least", "bitAnd", "bitOr", "bitShiftLeft", "bitShiftRight"])
    return f"math.{name}({m.likely(_NUMBERS, 0, n)}, {m.likely(_NUMBERS, 0, n)})"


def _time(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    if m.pick([True, False]):
        text = m.pick(["'1h30m'", "'-1.5s'", "'10ms'", "'x'", "'5'", m.atom(n)])
        return f"duration({text}).{m.pick(_GETTERS[6:])}()"
    moment = m.pick(["'2024-02-29T23:59:59.123Z'", "'2024-12-31T00:00:00+02:00'", "1", m.atom(n)])
    return f"timestamp({moment}).{m.pick(_GETTERS)}({m.pick(_ZONES)})"


def _macro(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    source = m.likely([*_LISTS, "args.m"], d, n)
    name = m.pick(["x", "y", "z"])
    macro = m.pick(["exists", "all", "exists_one", "filter", "map"])
    body = m.make(d, (*n, name))
    if macro == "map" and m.pick([True, False]):
        body = f"{m.make(d, (*n, name))}, {body}"
    return f"{source}.{macro}({name}, {body})"


def _two_variables(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    source = m.likely([*_LISTS, "args.m"], d, n)
    macro = m.pick(["exists", "all", "existsOne", "transformList"])
    body = m.make(d, (*n, "k", "v"))
    return f"{source}.{macro}(k, v, {body})"


def _index(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    return f"{m.likely([*_LISTS, 'args.m'], d, n)}[{m.likely(_INTEGERS, d, n)}]"


def _optional(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    field = m.pick(["k", "zz", "p"])
    start = m.pick(
        [
            f"args.?{m.pick(['i', 'nope', 'm', 'o', 's'])}",
            f"args.m[?{m.atom(n)}]",
            f"args.li[?{m.atom(n)}]",
            f"optional.of({m.make(d, n)})",
            f"optional.ofNonZeroValue({m.make(d, n)})",
            "optional.none()",
        ]
    )
    middle = m.pick(["", f".{field}", f".?{field}", f".or(optional.of({m.atom(n)}))"])
    middle += m.pick(["", f".optMap(w, {m.make(d, (*n, 'w'))})"])
    end = m.pick([f".orValue({m.atom(n)})", ".hasValue()", ".value()"])
    return f"{start}{middle}{end}"


def _bind(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    return f"cel.bind(b, {m.make(d, n)}, {m.make(d, (*n, 'b'))})"


def _container(m: _Maker, d: int, n: tuple[str, ...]) -> str:
    if m.pick([True, False]):
        return f"[{m.make(d, n)}, {m.make(d, n)}]"
    return f"{{{m.atom(n)}: {m.make(d, n)}}}"


_FORMS: list[Form] = [
    *(_logic, _logic, _binary, _binary, _binary, _unary, _ternary, _has, _method, _method),
    *(_convert, _math, _time, _macro, _macro, _two_variables, _index, _optional, _bind),
    _container,
]


@st.composite
def anything(draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    """Any expression of any type, or of none."""
    maker = _Maker(draw)
    return maker.make(draw(st.integers(1, 3)))


# ------------------------------------------------------------------- well-typed expressions


class _Typed(_Maker):
    def boolean(self, d: int) -> str:
        if d <= 0:
            return self.pick(["true", "false", "args.b", "tool.annotations.read_only", "args.nope"])
        d -= 1
        return self.pick(
            [
                lambda: f"({self.boolean(d)} {self.pick(['&&', '||'])} {self.boolean(d)})",
                lambda: f"!({self.boolean(d)})",
                lambda: f"({self.boolean(d)} ? {self.boolean(d)} : {self.boolean(d)})",
                lambda: f"({self.integer(d)} {self.pick(_BINARY[:6])} {self.integer(d)})",
                lambda: f"({self.string(d)} {self.pick(_BINARY[:6])} {self.string(d)})",
                lambda: f"{self.string(d)}.{self.pick(_TESTS)}({self.string(d)})",
                lambda: f"{self.string(d)}.matches({self.pick(['^a+', 'etc', '[0-9]$'])!r})",
                lambda: f"({self.string(d)} in {self.strings(d)})",
                lambda: (
                    f"{self.strings(d)}.{self.pick(['all', 'exists', 'exists_one'])}"
                    f"(x, x {self.pick(_BINARY[:6])} {self.string(d)})"
                ),
                lambda: f"has({self.pick(['args.s', 'args.nope', 'args.m.k', 'args.m.zz'])})",
            ]
        )()

    def integer(self, d: int) -> str:
        if d <= 0:
            return self.pick(["0", "1", "7", "9223372036854775807", "args.i", "session.trust"])
        d -= 1
        return self.pick(
            [
                lambda: f"({self.integer(d)} {self.pick(_BINARY[7:])} {self.integer(d)})",
                lambda: f"size({self.string(d)})",
                lambda: f"size({self.strings(d)})",
                lambda: f"({self.boolean(d)} ? {self.integer(d)} : {self.integer(d)})",
                lambda: f"args.li[{self.pick(['0', '2', '9'])}]",
            ]
        )()

    def string(self, d: int) -> str:
        if d <= 0:
            return self.pick(["''", "'a'", "'/etc'", "'é'", "args.s", "args.u", "tool.name"])
        d -= 1
        return self.pick(
            [
                lambda: f"({self.string(d)} + {self.string(d)})",
                lambda: f"({self.boolean(d)} ? {self.string(d)} : {self.string(d)})",
                lambda: f"string({self.integer(d)})",
                lambda: self.string(0),
            ]
        )()

    def strings(self, d: int) -> str:
        if d <= 0:
            return self.pick(["session.labels", "['a', '/etc']", "[tool.name]"])
        d -= 1
        return self.pick(
            [
                lambda: f"{self.strings(d)}.filter(x, x != {self.string(d)})",
                lambda: f"{self.strings(d)}.map(x, x + {self.string(d)})",
                lambda: f"({self.strings(d)} + [{self.string(d)}])",
                lambda: self.strings(0),
            ]
        )()


@st.composite
def typed(draw: Callable[[st.SearchStrategy[Any]], Any]) -> str:
    """A boolean expression whose parts have the types that they should have."""
    return _Typed(draw).boolean(draw(st.integers(1, 4)))
