"""What cannot be seen stands as its escape, and JSON stays the JSON it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.visible import visible

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 2]))
def test_json_means_the_same(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    shown = visible(text, "" if indent is None else "\n")
    assert json.loads(shown) == value
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert len(shown.splitlines()) == len(text.split("\n"))


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain ASCII", "plain ASCII"),
        ("Grüße, 名前 🙂 ❤️", "Grüße, 名前 🙂 ❤️"),
        ("\x1b[2J\x07", "\\u001b[2J\\u0007"),
        # The eight-bit form of ESC [.
        ("\x9b2J", "\\u009b2J"),
        ("a\u202egnp.exe", "a\\u202egnp.exe"),
        ("a\u200bb\u3164c\u2800d", "a\\u200bb\\u3164c\\u2800d"),
        ("one\ntwo\r\tthree\x7f", "one\\ntwo\\r\\tthree\\u007f"),
        ("a\u2028b\u0085c\xa0d", "a\\u2028b\\u0085c\\u00a0d"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("\ud800", "\\ud800"),
        ("z\u0335\u0336\u0337\u0338\u0339a\u0301", "z\u0335\u0336\u0337\\u0338\\u0339a\u0301"),
    ],
)
def test_what_cannot_be_seen(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_what_is_to_be_kept() -> None:
    assert visible("a\n\tb\x1b", "\n\t") == "a\n\tb\\u001b"
