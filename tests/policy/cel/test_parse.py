"""Text to tree: what is read, and what the errors say and where."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.policy.cel import CelSyntaxError, parse
from sidecar.policy.cel.limits import MAX_DEPTH, MAX_SOURCE
from sidecar.policy.cel.nodes import (
    Binary,
    Comprehension,
    Has,
    Ident,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Select,
    Unary,
    walk,
)
from sidecar.policy.cel.values import UInt


def error(text: str) -> tuple[int, int, str]:
    with pytest.raises(CelSyntaxError) as caught:
        parse(text)
    return caught.value.line, caught.value.column, caught.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("0xFF", 255),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551615u", UInt(2**64 - 1)),
        ("0x1fU", UInt(31)),
        (".5", 0.5),
        ("-1.5e3", -1500.0),
        ("1e-2", 0.01),
        ("true", True),
        ("null", None),
        (r"'a\x41\101\u00e9\U0001F600\n'", "aAAé😀\n"),
        (r"r'\d\''", None),
        ("'''a\n'b'''", "a\n'b"),
        (r'b"\xff\377é"', b"\xff\xff\xc3\xa9"),
        ("R'\\n'", "\\n"),
    ],
)
def test_literals(text: str, value: object) -> None:
    if text == r"r'\d\''":  # in a raw string the backslash does not keep the quote open
        assert error(text)[2] == "this string is not closed"
        return
    node = parse(text)
    assert isinstance(node, Literal)
    assert node.value == value
    assert type(node.value) is type(value)


def test_spans_cover_the_whole_part_and_point_at_what_matters() -> None:
    text = "a.b == 1 &&\n  has(x.y) || !c[0]"
    parts = {
        text[node.span.start : node.span.end]: (node.span.line, node.span.column)
        for node in walk(parse(text))
    }
    assert parts[text] == (2, 12)
    assert parts["a.b == 1 &&\n  has(x.y)"] == (1, 10)
    assert parts["a.b == 1"] == (1, 5)
    assert parts["a.b"] == (1, 3)
    assert parts["has(x.y)"] == (2, 3)
    assert parts["!c[0]"] == (2, 15)
    assert parts["c[0]"] == (2, 17)


def test_chains_of_logic_are_flat_and_precedence_holds() -> None:
    node = parse("a && b && c || !d || e")
    assert isinstance(node, Logic)
    assert node.stop
    assert len(node.operands) == 3
    assert isinstance(node.operands[0], Logic)
    assert len(node.operands[0].operands) == 3
    assert isinstance(node.operands[1], Unary)
    long = parse(" && ".join(["x == 1"] * 1000))
    assert long.depth == 3


def test_minus_is_an_operator_after_a_value_and_a_sign_elsewhere() -> None:
    node = parse("a -1")
    assert isinstance(node, Binary)
    assert node.op == "-"
    assert isinstance(parse("-1"), Literal)
    assert isinstance(parse("-x"), Unary)


def test_optional_syntax_trailing_commas_and_backticks() -> None:
    assert parse("a.?b").optional  # type: ignore[attr-defined]
    assert parse("a[?'k']").optional  # type: ignore[attr-defined]
    items = parse("[1, ?x, 2,]")
    assert isinstance(items, ListOf)
    assert (len(items.items), items.optionals) == (3, {1})
    entries = parse("{?'a': x, 'b': 1,}")
    assert isinstance(entries, MapOf)
    assert (len(entries.entries), entries.optionals) == (2, {0})
    field = parse("a.`content-type`")
    assert isinstance(field, Select)
    assert field.field == "content-type"
    assert isinstance(parse("0.f()"), object)


def test_macros_become_nodes_of_their_own() -> None:
    assert isinstance(parse("has(a.b)"), Has)
    node = parse("l.existsOne(k, v, k == v)")
    assert isinstance(node, Comprehension)
    assert (node.kind, node.names) == ("exists_one", ("k", "v"))
    assert type(parse("all(x, y)")).__name__ == "Call"
    assert isinstance(parse("in_list"), Ident)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the expression is empty"),
        ("  // nothing", 1, 13, "the expression ends too early"),
        ("a ==\n  && b", 2, 3, "unexpected '&&'"),
        ("a = 1", 1, 3, "unexpected '='; write == to compare"),
        ("a and b", 1, 3, "unexpected 'and'; write && for and"),
        ("a or b", 1, 3, "unexpected 'or'; write || for or"),
        ("not a", 1, 5, "unexpected 'a'"),
        ("a & b", 1, 3, "unexpected '&'; write &&"),
        ("f(1", 1, 4, "the expression ends too early"),
        ("(1,\n 2", 1, 3, "unexpected ','"),
        ("'abc", 1, 1, "this string is not closed"),
        (r"'\q'", 1, 2, r"unknown escape \q"),
        (r"x == '\ud800'", 1, 7, "the escape names no Unicode character"),
        ("'''\n\\q'''", 2, 1, "unknown escape \\q"),
        ("9223372036854775808", 1, 1, "this integer does not fit into 64 bits"),
        ("18446744073709551616u", 1, 1, "an unsigned integer is from 0 to 2**64-1"),
        ("-1u", 1, 1, "an unsigned integer is from 0 to 2**64-1"),
        ("1e999", 1, 1, "this number is too large for a double"),
        ("for", 1, 1, "'for' is a reserved word and cannot be a name"),
        ("a.in", 1, 3, "'in' is a keyword; write ['in'] or .`in` for a field of that name"),
        ("has(x)", 1, 1, "has() takes one field, as in has(a.b)"),
        ("l.all(1, true)", 1, 7, "all() needs a plain name for its variable here"),
        ("l.all(x, x, true)", 1, 10, "all() needs two different names"),
        ("l.map(a.b, 1)", 1, 9, "map() needs a plain name for its variable here"),
        ("f(1,)", 1, 5, "unexpected ')'"),
        ("a..b", 1, 3, "unexpected '.'"),
        ("#", 1, 1, "unexpected '#'"),
        ("f(){a: 1}", 1, 1, "a message needs the name of its type before the brace"),
    ],
)
def test_errors_say_what_and_where(text: str, line: int, column: int, message: str) -> None:
    assert error(text) == (line, column, message)


def test_reserved_words_are_fields() -> None:
    node = parse("args.class")
    assert isinstance(node, Select)
    assert node.field == "class"


def test_size_and_depth_are_bounded() -> None:
    assert error("'" + "a" * MAX_SOURCE + "'")[2].startswith("the expression is longer than")
    deep = "the expression is nested deeper than 64 levels"
    assert error("!" * 200 + "x")[2] == deep
    assert error("[" * 200 + "]" * 200)[2] == deep
    assert error("x" + ".a" * 200)[2] == deep
    assert error("true ? 1 : " * 200 + "2")[2] == deep
    assert error("+".join(["x"] * 200))[2] == deep
    assert isinstance(parse("(" * 5000 + "1" + ")" * 5000), Literal)
    assert parse("!" * (MAX_DEPTH - 1) + "x").depth == MAX_DEPTH


@given(st.text(alphabet=st.sampled_from("ab.?:[](){}&|!=<>'\"`\\01xu+-*/%, \n#@é"), max_size=60))
@example("\x00")
@example("{[(" * 100)
@example("a?b:c?d:e")
def test_any_text_is_a_tree_or_a_syntax_error_inside_it(text: str) -> None:
    try:
        tree = parse(text)
    except CelSyntaxError as failure:
        lines = text.split("\n")
        assert 1 <= failure.line <= len(lines)
        assert 1 <= failure.column <= len(lines[failure.line - 1]) + 1
        return
    for node in walk(tree):
        assert 0 <= node.span.start < node.span.end <= len(text)
        assert node.depth <= MAX_DEPTH
