"""YAML as text: places, bounds, duplicates, anchors, and what the usual loader makes of it."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.config import nodes, yamltext
from sidecar.config.nodes import Node, Stop
from tests.kit.examples import examples


def read(text: str) -> tuple[Node | None, list[tuple[int, int, str]]]:
    told: list[tuple[int, int, str]] = []
    return yamltext.read(text, lambda *fault: told.append(fault)), told


def plain(text: str) -> object:
    root, told = read(text)
    assert told == []
    assert root is not None
    return nodes.plain(root)


def stop(text: str) -> tuple[int, int, str]:
    with pytest.raises(Stop) as caught:
        read(text)
    return caught.value.line, caught.value.column, caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "a: [1, -2, 0x1F, 017, 0b101, 1_000, 0]",
        "a: [1.5, .5, 1., 1.0e+3, 1e3, .inf, -.Inf]",
        "a: [yes, No, ON, off, true, False, TRUE, yEs, y, n]",
        "a: [~, null, NULL, '', \"\", 'null', 'yes', '1']",
        "a: [127.0.0.1:8808, 1.2.3, a:b, -, +, ., _1, 1_, '<<']",
        "a: !!str 1\nb: !!int '7'\nc: !!float '1.5'",
        "a: |\n  b\n  c\nd: >-\n  e\n  f",
        "a: &x {b: 1, c: [2]}\nd: *x\ne: {<<: *x, c: 3}\nf: {<<: [{c: 9, g: 1}, *x]}",
        "? a\n: b",
        "# nothing but\na:\n  # comments\n  b: c # here\n",
        "\ufeffa: ü",
    ],
)
def test_values_are_those_of_the_usual_loader(text: str) -> None:
    assert plain(text.removeprefix("\ufeff")) == yaml.safe_load(text)


def test_base_60_numbers_and_dates_stay_text() -> None:
    assert plain("[12:30:45, 2001-01-01, 190:20:30]") == ["12:30:45", "2001-01-01", "190:20:30"]


def test_keys_are_text_whatever_they_look_like() -> None:
    assert plain("{no: 1, 7: 2, null: 3, 1.5: 4}") == {"no": 1, "7": 2, "null": 3, "1.5": 4}


def test_places_are_those_of_the_values() -> None:
    root, _ = read("a:\n  - x\n  - {b: c}\n")
    assert isinstance(root, nodes.Mapping)
    key, items = root.entries["a"]
    assert (key.line, key.column) == (1, 1)
    assert isinstance(items, nodes.Sequence)
    assert [(item.line, item.column) for item in items.items] == [(2, 5), (3, 5)]


def test_empty_texts_have_no_value() -> None:
    assert read("") == (None, [])
    assert read("# only a comment\n") == (None, [])
    assert plain("---\n") is None


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: [1,\n  b", 3, 1, "did not find expected ',' or ']'"),
        ("a: b\n c: d", 2, 3, "mapping values are not allowed"),
        ("a: 1\n\tb: 2", 2, 1, "a tab is used to indent"),
        ("a:\n\t- b", 2, 1, "a tab is used to indent"),
        ("a: 1\n---\nb: 2", 2, 1, "a second document"),
        ("a: 1\n---\n", 2, 1, "a second document"),
        ("a: ok\nb: \x01", 2, 4, "a character that YAML does not allow"),
        ("a: \x00", 1, 4, "a character that YAML does not allow"),
        ("a: *b", 1, 4, "the anchor &b is not defined above"),
        ("a: &b [*b]", 1, 8, "the anchor &b contains itself"),
        ("a: &b {c: {d: *b}}", 1, 15, "the anchor &b contains itself"),
        ("[" * 65, 1, 65, "nested deeper than 64 levels"),
        ("a: @b", 1, 4, "cannot start any token"),
        ('a: "\\ud800"', 1, 7, "not valid YAML"),
    ],
)
def test_what_cannot_be_read(text: str, line: int, column: int, message: str) -> None:
    got = stop(text)
    assert message in got[2]
    assert got[:2] == (line, column)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3", (3, 1, '"a" is here twice; the first is at line 1')),
        ("{a: 1, 'a': 2}", (1, 8, '"a" is here twice; the first is at line 1')),
        ("a: !x b", (1, 4, "the tag !x is not used here")),
        ("a: !!python/object:os.system b", (1, 4, "the tag tag:yaml.org,2002:python/object")),
        ("a: !!set {b}", (1, 4, "the tag tag:yaml.org,2002:set is not used here")),
        ("a: !!int b", (1, 4, "this is not int")),
        ("? [a]\n: b", (1, 3, "a key is text")),
        ("a: {<<: b}", (1, 5, "<< takes a mapping")),
    ],
)
def test_what_is_told_and_read_past(text: str, told: tuple[int, int, str]) -> None:
    _, faults = read(text + "\n")
    assert len(faults) == 1
    assert faults[0][:2] == told[:2]
    assert faults[0][2].startswith(told[2])


def test_all_duplicates_are_told_and_the_first_counts() -> None:
    root, faults = read("{a: 1, a: 2, b: {c: 3, c: 4}}")
    assert root is not None
    assert nodes.plain(root) == {"a": 1, "b": {"c": 3}}
    assert len(faults) == 2


def test_aliases_that_multiply_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    began = time.process_time()
    line, _, message = stop("\n".join(lines))
    assert "aliases counted each time" in message
    assert line <= 6
    assert time.process_time() - began < 3


def test_merges_that_multiply_are_refused_at_once() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 12)]
    assert "aliases counted each time" in stop("\n".join(lines))[2]


def test_an_anchor_used_often_but_not_too_often_is_fine() -> None:
    text = "a: &a {x: 1}\nb: [" + ",".join(["*a"] * 1000) + "]"
    assert plain(text) == yaml.safe_load(text)


def test_numbers_too_long_to_be_numbers_stay_text() -> None:
    assert plain("9" * 5000) == "9" * 5000


def test_the_python_parser_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: &x {b: 1, c: [2, yes]}\nd: *x\ne: 'f'\n"
    fast = plain(text)
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert plain(text) == fast
    assert "a second document" in stop("a: 1\n---\nb: 1\n")[2]


@settings(deadline=None, max_examples=examples(100))
@given(st.text(alphabet="ab:-[]{},&*!<'\"|>%@#? \t\n~1", max_size=60))
def test_no_text_escapes_as_anything_but_a_stop(text: str) -> None:
    try:
        read(text)
    except Stop as error:
        assert error.line >= 1
        assert error.column >= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=examples(100))
@given(JSON)
def test_what_yaml_writes_is_read_as_its_own_loader_reads_it(value: object) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    assert plain(text) == yaml.load(text, Loader=yaml.CSafeLoader)
