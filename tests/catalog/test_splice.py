"""Splicing changes what it is told to and no other byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.catalog.splice import replace
from sidecar.wire.json import BadJson

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("data", "changes", "right"),
    [
        ('{"name":"a","x":1}', {"name": b'"b"'}, '{"name":"b","x":1}'),
        (
            ' { "x" : 1.10 ,\n "name" : "a" , "n":12345678901234567890123 } ',
            {"name": b'"b"'},
            ' { "x" : 1.10 ,\n "name" : "b" , "n":12345678901234567890123 } ',
        ),
        ('{"na\\u006de":"a","q":"\\u00e4"}', {"name": b'"b"'}, '{"na\\u006de":"b","q":"\\u00e4"}'),
        ('{"a":{"name":"deep"},"name":"a"}', {"name": b'"b"'}, '{"a":{"name":"deep"},"name":"b"}'),
        ('{"a":1}', {"name": b'"b"'}, '{"a":1,"name":"b"}'),
        ("{ }", {"name": b'"b"', "x": b"1"}, '{ "name":"b","x":1}'),
        ('{"name":"a","name":"a2","x":1}', {"name": b'"b"'}, '{"name":"b","x":1}'),
        ('{"name":"a","name":"a"}', {"name": b'"b"'}, '{"name":"b"}'),
        ('{"a":"\\"}","name":"a"}', {"name": b'"b"'}, '{"a":"\\"}","name":"b"}'),
    ],
)
def test_replace(data: str, changes: dict[str, bytes], right: str) -> None:
    assert replace(data.encode(), changes).decode() == right


@pytest.mark.parametrize("data", [b"[]", b"1", b'{"a":', b"", b'{"a":1}{'])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(BadJson):
        replace(data, {"name": b"1"})


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5), values, max_size=6
    ),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
    values,
)
def test_everything_else_keeps_its_value_and_its_place(
    held: dict[str, object], indent: int | None, ascii: bool, new: object
) -> None:
    data = json.dumps(held, indent=indent, ensure_ascii=ascii).encode()
    out = replace(data, {"name": json.dumps(new).encode()})
    assert json.loads(out) == {**held, "name": new}
    assert list(json.loads(out)) == list({**held, "name": new})
    if "name" in held:
        assert replace(out, {"name": json.dumps(held["name"], indent=None).encode()}) is not None
    assert replace(data, {}) == data
