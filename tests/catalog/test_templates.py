"""Which URIs a template could have made."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.catalog.templates import URI_LIMIT, Template


@pytest.mark.parametrize(
    ("template", "yes", "no"),
    [
        ("test://static", ["test://static"], ["test://statics", "test://stati", ""]),
        (
            "file:///{path}",
            ["file:///a", "file:///a%2Fb", "file:///ä b"],
            ["file:///a/b", "file:///"],
        ),
        ("file:///{+path}", ["file:///a", "file:///a/b?c#d"], ["file:///", "http:///a"]),
        (
            "db://{schema}/{table}/rows",
            ["db://a/b/rows"],
            ["db://a/rows", "db://a/b/c/rows", "db://a/b/row"],
        ),
        ("x://{a}-{b}", ["x://1-2", "x://1-2-3", "x://--2"], ["x://1", "x://-2", "x://1-"]),
        ("s://q{?a,b}", ["s://q", "s://q?a=1", "s://q?b=2&a=1"], ["s://qq", "s://q#x"]),
        ("s://q?a=1{&b}", ["s://q?a=1", "s://q?a=1&b=2"], ["s://q?a=12"]),
        ("s://q{#part}", ["s://q", "s://q#x/y"], ["s://qx"]),
        ("s://q{/id}", ["s://q", "s://q/1"], ["s://q/1/2", "s://q1"]),
        ("s://q{/path*}", ["s://q", "s://q/1/2/3"], ["s://q1"]),
        ("s://f{.ext}", ["s://f", "s://f.txt"], ["s://ftxt", "s://f.a/b"]),
        ("s://f{;v}", ["s://f", "s://f;v=1"], ["s://fv"]),
        ("s://{a,b}", ["s://1,2"], ["s://1/2"]),
        ("s://{id:3}/x", ["s://123/x"], ["s:///x"]),
        ("{+all}", ["anything://at/all"], [""]),
        ("s://a.b/{x}", ["s://a.b/1"], ["s://aXb/1"]),
        ("s://{unclosed", ["s://{unclosed"], ["s://x"]),
    ],
)
def test_matches(template: str, yes: list[str], no: list[str]) -> None:
    compiled = Template(template)
    assert [uri for uri in yes if not compiled.matches(uri)] == []
    assert [uri for uri in no if compiled.matches(uri)] == []


@given(
    st.lists(
        st.text("ab/?#{}.", min_size=1, max_size=3) | st.just("{v}") | st.just("{+v}"), max_size=6
    ),
    st.text("ab/?#.", max_size=12),
)
def test_agrees_with_the_slow_way_for_plain_and_reserved_variables(
    parts: list[str], uri: str
) -> None:
    parts = [p if p in ("{v}", "{+v}") else p.replace("{", "").replace("}", "") for p in parts]

    def slow(rest: list[str], text: str) -> bool:
        if not rest:
            return text == ""
        head, *tail = rest
        if head not in ("{v}", "{+v}"):
            return text.startswith(head) and slow(tail, text[len(head) :])
        return any(
            (head == "{+v}" or "/" not in text[:n]) and slow(tail, text[n:])
            for n in range(1, len(text) + 1)
        )

    assert Template("".join(parts)).matches(uri) == slow(parts, uri)


def test_hostile_templates_and_uris_cost_little() -> None:
    nasty = Template("x://" + "{+v}a" * 100 + "b")
    uri = "x://" + "ac" * (URI_LIMIT // 2 - 2)
    began = time.process_time()
    assert not nasty.matches(uri)
    assert not Template("x://" + "{v}" * 400).matches("y" * 10)
    assert not Template("x" * 100_000 + "{v}").matches("x" * 100_001)
    # A backtracking matcher would need longer than the universe has.
    assert time.process_time() - began < 2.0


def test_a_uri_beyond_the_limit_matches_nothing() -> None:
    assert Template("{+all}").matches("x" * URI_LIMIT)
    assert not Template("{+all}").matches("x" * (URI_LIMIT + 1))
