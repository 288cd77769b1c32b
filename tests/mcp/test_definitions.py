"""What no client could read is left out of a definition; all else is the object it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.mcp.definitions import BadDefinition, put_right
from sidecar.model import Era

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
FULL: dict[str, dict[str, Any]] = {
    "tools": {
        "name": "t",
        "title": "T",
        "description": "d",
        "inputSchema": {**SCHEMA, "required": ["a"], "x-own": None},
        "outputSchema": SCHEMA,
        "annotations": {"title": "T", "readOnlyHint": True, "x-own": 5},
        "execution": {"taskSupport": "optional"},
        "icons": [{"src": "data:,", "sizes": ["any"], "theme": "dark"}],
        "_meta": {"a": None},
        "x-own": None,
    },
    "prompts": {"name": "p", "arguments": [{"name": "a", "required": False}]},
    "resources": {
        "uri": "a:b",
        "name": "r",
        "mimeType": "text/plain",
        "size": 5,
        "annotations": {
            "audience": ["user"],
            "priority": 1,
            "lastModified": "2026-01-01T10:00:00.5+01:00",
        },
    },
    "templates": {"uriTemplate": "a:{b}", "name": "r", "mimeType": "text/plain"},
}


@pytest.mark.parametrize("era", list(Era))
@pytest.mark.parametrize("kind", list(FULL))
def test_what_is_right_is_the_same_object(kind: str, era: Era) -> None:
    assert put_right(kind, FULL[kind], era) is FULL[kind]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("tools", {"description": None}),
        ("tools", {"title": 5}),
        ("tools", {"annotations": [1]}),
        ("tools", {"annotations": None}),
        ("tools", {"execution": {"taskSupport": "maybe"}}),
        ("tools", {"icons": [{"mimeType": "image/png"}]}),
        ("tools", {"icons": [{"src": "a", "sizes": "16x16"}]}),
        ("tools", {"outputSchema": None}),
        ("tools", {"outputSchema": {"type": "array"}}),
        ("tools", {"_meta": []}),
        ("prompts", {"arguments": None}),
        ("prompts", {"arguments": [{"description": "no name"}]}),
        ("resources", {"size": "big"}),
        ("resources", {"annotations": {"priority": 7}}),
        ("resources", {"annotations": {"lastModified": "yesterday"}}),
        ("templates", {"mimeType": None}),
    ],
)
def test_an_optional_field_that_is_wrong_is_left_out(kind: str, fields: dict[str, Any]) -> None:
    wrong = {**FULL[kind], **fields}
    before = json.dumps(wrong)
    righted = put_right(kind, wrong, Era.LEGACY)
    # Where a part of the field is right, that part stays.
    (key,) = fields
    expected = {name: value for name, value in FULL[kind].items() if name != key}
    assert {name: value for name, value in righted.items() if name != key} == expected
    assert righted.get(key) in (None, {}, [{"src": "a"}])
    assert json.dumps(wrong) == before


def test_a_hint_that_is_no_hint_says_nothing() -> None:
    tool = {**FULL["tools"], "annotations": {"readOnlyHint": "yes", "idempotentHint": True}}
    assert put_right("tools", tool, Era.MODERN)["annotations"] == {"idempotentHint": True}


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({}, {"type": "object"}),
        (None, {"type": "object"}),
        (True, {"type": "object"}),
        ({"properties": None, "required": None}, {"type": "object"}),
        ({"type": "object", "required": True}, {"type": "object"}),
        (
            {"type": "object", "properties": {"a": True, "b": False, "c": {}, "d": None}},
            {"type": "object", "properties": {"a": {}, "b": {"not": {}}, "c": {}, "d": {}}},
        ),
        ({"anyOf": [{}]}, {"anyOf": [{}], "type": "object"}),
    ],
)
def test_a_schema_that_can_be_understood_is_offered(given: Any, offered: Any) -> None:
    assert put_right("tools", {"name": "t", "inputSchema": given}, Era.LEGACY) == {
        "name": "t",
        "inputSchema": offered,
    }


def test_a_tool_without_a_schema_takes_any_object() -> None:
    assert put_right("tools", {"name": "t"}, Era.LEGACY)["inputSchema"] == {"type": "object"}


@pytest.mark.parametrize(
    "schema",
    [[], [1], "x", 5, False, {"type": "string"}, {"properties": [1]}, {"type": ["object"]}],
)
def test_a_schema_that_means_nothing_costs_its_tool(schema: object) -> None:
    with pytest.raises(BadDefinition, match="inputSchema"):
        put_right("tools", {"name": "t", "inputSchema": schema}, Era.MODERN)


def test_a_modern_output_schema_may_be_of_any_type() -> None:
    tool = {"name": "t", "inputSchema": SCHEMA, "outputSchema": {"type": "array"}}
    assert put_right("tools", tool, Era.MODERN) is tool


@pytest.mark.parametrize(("kind", "key"), [("resources", "uri"), ("templates", "uriTemplate")])
def test_a_resource_without_a_name_is_called_by_its_uri(kind: str, key: str) -> None:
    for named in ({}, {"name": None}, {"name": 5}):
        assert put_right(kind, {key: "a:b", **named}, Era.LEGACY)["name"] == "a:b"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(kind=st.sampled_from(list(FULL)), era=st.sampled_from(Era), data=st.data())
def test_what_was_put_right_stays_as_it_is(kind: str, era: Era, data: st.DataObject) -> None:
    keys = st.sampled_from(sorted({*FULL["tools"], *FULL["resources"], "arguments"}))
    entry = {**FULL[kind], **data.draw(st.dictionaries(keys, JSON, max_size=4))}
    for key in ("name", "uri", "uriTemplate"):
        if key in FULL[kind]:
            entry[key] = FULL[kind][key]
    try:
        righted = put_right(kind, entry, era)
    except BadDefinition:
        assert kind == "tools"
        return
    assert put_right(kind, righted, era) is righted
