"""A place in an expression is found again in its file, however YAML writes it."""

from __future__ import annotations

import textwrap

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config import nodes, yamltext
from sidecar.policy.cel import parse
from sidecar.policy.cel.nodes import Ident, Literal, Select, walk
from sidecar.policy.positions import Places, Source, relocated

EXPRESSION = 'tool.name == "a b" && !(args.x in [1, 2]) || tool.gated'


def scalar(text: str) -> nodes.Scalar:
    root = yamltext.read(text, lambda *_: None)
    assert isinstance(root, nodes.Mapping)
    value = root.entries["when"][1]
    assert isinstance(value, nodes.Scalar)
    return value


STYLES = {
    "plain": f"when: {EXPRESSION}\n",
    "spaces": f"when:     {EXPRESSION}   # why\n",
    "single": f"when: '{EXPRESSION}'\n",
    "double": "when: " + '"' + EXPRESSION.replace('"', '\\"') + '"\n',
    "flow": "{id: x, when: '" + EXPRESSION + "', on: call}\n",
    "literal": f"when: |\n  {EXPRESSION}\n",
    "folded": "when: >-\n" + textwrap.indent(EXPRESSION.replace(" && ", "\n&& "), "    "),
    "more": 'when: >\n  tool.name == "a b" &&\n\n    !(args.x\n    in [1, 2]) ||\n  tool.gated\n',
    "next": f"when:\n  {EXPRESSION}\n",
    "after": f"id: 'ä €'\nwhen: {EXPRESSION}\n",
    "lines": "when: 'tool.name == \"a b\"\n  && !(args.x in [1, 2])\n\n  || tool.gated'\n",
    "anchor": f"when: &a {EXPRESSION}\n",
}


@pytest.mark.parametrize("text", STYLES.values(), ids=STYLES)
def test_every_style(text: str) -> None:
    value = scalar(text)
    assert isinstance(value.value, str)
    places = Places(Source(text), value.value, value.line, value.column)
    tree = relocated(parse(value.value), places)
    lines = text.split("\n")
    names = []
    for node in walk(tree):
        if isinstance(node, Ident | Select):
            name = node.name if isinstance(node, Ident) else node.field
            here = lines[node.span.line - 1][node.span.column - 1 :]
            assert here.startswith(name), (here, name)
            names.append(name)
    assert sorted(names) == ["args", "gated", "name", "tool", "tool", "x"]


words = st.lists(
    st.sampled_from(["a", "b.c", '"s"', "'t'", '"it\'s"', "&&", "||", "==", "!", "(", ")", "1.5"]),
    min_size=1,
    max_size=12,
)


@given(words, st.sampled_from(["'", '"', "|", ">", None]), st.integers(1, 40))
def test_any_value_of_any_style(parts: list[str], style: str | None, width: int) -> None:
    """Whatever the emitter makes of a text, each visible character is found at its place."""
    text = " ".join(parts)
    file = yaml.dump({"when": text}, default_style=style, width=width)  # type: ignore[call-overload]
    root = yamltext.read(file, lambda *_: None)
    assert isinstance(root, nodes.Mapping)
    value = root.entries["when"][1]
    assert value.value == text  # type: ignore[union-attr]
    places = Places(Source(file), text, value.line, value.column)
    lines = file.split("\n")
    found = [places(1, at + 1) for at in range(len(text))]
    if len(set(found)) == 1 and len(text) > 1:
        assert found[0] == (value.line, value.column)
        return
    for character, (line, column) in zip(text, found, strict=True):
        if character != " ":
            here = lines[line - 1][column - 1]
            assert here == character or (here == "\\" and character in '"\\')


def test_what_is_not_found_again_is_told_at_the_value() -> None:
    text = 'when: "\\a == 1"\n'
    value = scalar(text)
    assert value.value == "\a == 1"
    places = Places(Source(text), "\a == 1", value.line, value.column)
    assert places(1, 3) == (1, 7)


def test_escapes_by_number_and_at_the_end_of_a_line() -> None:
    text = 'when: "\\x61 \\u003d\\U0000003d\\n \\ 1 \\\n   + 2"\n'
    value = scalar(text)
    assert value.value == "a ==\n  1 + 2"
    places = Places(Source(text), value.value, value.line, value.column)
    assert [places.of(value.value.index(each)) for each in "a=12"] == [
        (1, 8),
        (1, 13),
        (1, 34),
        (2, 6),
    ]
    assert places.of(3) == (1, 19)
    assert places(9, 9) == (1, 7)


def test_places_beyond_the_text_are_its_end() -> None:
    places = Places(Source("when: a\n"), "a", 1, 7)
    assert places(1, 99) == (1, 7)
    assert Places(Source(""), "a", 9, 9)(1, 1) == (9, 9)


def test_the_quoted_text_is_the_expressions_own() -> None:
    text = "when: 'a == ''x'''\n"
    value = scalar(text)
    tree = relocated(
        parse(str(value.value)), Places(Source(text), str(value.value), value.line, value.column)
    )
    (constant,) = [node for node in walk(tree) if isinstance(node, Literal)]
    assert str(value.value)[constant.span.start : constant.span.end] == "'x'"
    assert (constant.span.line, constant.span.column) == (1, 13)
