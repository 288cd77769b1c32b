"""Structured content fits its tool's schema after something was taken out, or does not leave."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.gate.fit import Unfit, fitted
from sidecar.gate.redact import UNFIT, redact
from sidecar.model import JsonObject, Redaction
from sidecar.policy.paths import parse_path
from sidecar.wire.json import encode, fields

SECRET = "AKIAABCDEFGHIJKLMNOP"


def valid(value: object, schema: object) -> bool:
    checker = jsonschema.FormatChecker()
    return bool(jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value))  # type: ignore[arg-type]


def done(value: JsonObject, schema: JsonObject, *redactions: Redaction) -> Any:
    told = {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
    return json.loads(encode(redact(fields(json.dumps(told).encode()), redactions, schema=schema)))


def paths(*texts: str) -> Redaction:
    return Redaction("p/r", tuple(map(parse_path, texts)), (), "[redacted]")


def one(schema: JsonObject, value: object) -> Any:
    """What becomes of a member ``x``."""
    whole: JsonObject = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    assert valid({"x": value}, whole)
    after = done({"x": value}, whole, paths("structuredContent.x"))
    assert json.loads(after["content"][0]["text"]) == after["structuredContent"]
    assert valid(after["structuredContent"], whole)
    assert "isError" not in after
    return after["structuredContent"]["x"]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"enum": ["a", "b"]}, "b", "a"),
        ({"enum": [3, 1]}, 1, 3),
        ({"type": "string", "const": "v1"}, "v1", "v1"),
        ({"type": "integer", "minimum": 5}, 9, 5),
        ({"type": "integer", "exclusiveMinimum": 5, "multipleOf": 3}, 9, 6),
        ({"type": "number", "maximum": -2}, -3, -2),
        ({"type": "boolean", "const": True}, True, True),
        ({"type": "string", "maxLength": 4}, "abcd", "[red"),
        ({"type": "string", "minLength": 12}, "abcdefghijklmn", "[redacted]--"),
        ({"type": "string", "format": "date-time"}, "2026-01-31T12:00:00Z", "1970-01-01T00:00:00Z"),
        ({"type": "string", "format": "uri"}, "https://h/?k=x", "redacted:///"),
        ({"type": "string", "pattern": "^[0-9]*$"}, "123", ""),
        ({"type": "array", "minItems": 2, "items": {"enum": ["p", "q"]}}, ["q"] * 3, ["p", "p"]),
        ({"type": ["string", "null"], "enum": ["s", None]}, "s", "s"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, 7, 1),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, 7, 2),
        ({"type": "object", "properties": {"e": {"enum": ["k"]}}}, {"e": "k"}, {"e": "k"}),
        ({"type": "object", "additionalProperties": {"minimum": 4}}, {"e": 9}, {"e": 4}),
        ({"type": "string"}, "x", "[redacted]"),
        ({}, "x", "[redacted]"),
    ],
)
def test_what_stands_in_the_place_of_a_value(
    schema: JsonObject, value: object, expected: object
) -> None:
    assert one(schema, value) == expected


def test_what_is_as_it_was_is_not_looked_at() -> None:
    """A server's own mistakes stay its own."""
    value: JsonObject = {"x": "not a number", "y": "secret"}
    schema: JsonObject = {"properties": {"x": {"type": "integer"}}}
    after = done(value, schema, paths("structuredContent.y"))
    assert after["structuredContent"] == {"x": "not a number", "y": "[redacted]"}
    with pytest.raises(Unfit):
        fitted({"x": 1}, {"x": 0}, {"properties": {"x": {"type": "string"}}})


def test_schemas_that_refer_to_themselves() -> None:
    schema: JsonObject = {
        "$defs": {
            "n": {
                "type": "object",
                "properties": {
                    "v": {"$ref": "#/$defs/a~1b"},
                    "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
                },
                "required": ["v"],
                "additionalProperties": False,
            },
            "a/b": {"enum": ["low", "high"]},
        },
        "$ref": "#/$defs/n",
    }
    value: JsonObject = {"v": "high", "next": {"v": "high", "next": None}}
    after = done(value, schema, paths("structuredContent.next.v"))
    assert after["structuredContent"] == {"v": "high", "next": {"v": "low", "next": None}}
    after = done(value, schema, Redaction("p/r"))
    assert valid(after["structuredContent"], schema)
    assert done(value, {"$ref": "#"}, Redaction("p/r"))["structuredContent"]["v"] == "[redacted]"


@pytest.mark.parametrize(
    ("schema", "value", "redaction"),
    [
        (
            {"properties": {"x": {"type": "string", "pattern": "^[a-f]{9}$"}}},
            {"x": "abcdefabc"},
            "structuredContent",
        ),
        (
            {"properties": {"x": {"type": "string", "pattern": "(?=a)a"}}},
            {"x": "a"},
            "structuredContent",
        ),
        ({"additionalProperties": False, "properties": {SECRET: {}}}, {SECRET: 1}, ""),
        ({"required": [SECRET]}, {SECRET: 1}, ""),
        ({"properties": {"x": {"uniqueItems": True}}}, {"x": [SECRET, "AKIA" + "Z" * 16]}, ""),
    ],
)
def test_where_nothing_fits_it_is_an_error(
    schema: JsonObject, value: JsonObject, redaction: str
) -> None:
    """Which no client checks against the schema; and it says that the tool has run."""
    chosen = paths(redaction) if redaction else Redaction("p/r", (), ("AKIA[A-Z]{16}",), "***")
    after = done(value, schema, chosen)
    assert "structuredContent" not in after
    assert after["isError"] is True
    assert after["content"][0] == {"type": "text", "text": UNFIT}
    assert "abcdef" not in json.dumps(after) and SECRET not in json.dumps(after)


texts = st.sampled_from(["low", "high", SECRET, f"it is {SECRET}", "2026-01-31T12:00:00Z", ""])
scalars = st.one_of(texts, st.integers(-3, 30), st.booleans(), st.none())
schemas = st.deferred(
    lambda: st.one_of(
        st.just({}),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["string", "integer", "number", "boolean", "null"])},
            optional={
                "minimum": st.integers(-2, 3),
                "exclusiveMaximum": st.integers(4, 40),
                "minLength": st.integers(0, 3),
                "maxLength": st.integers(4, 30),
                "format": st.just("date-time"),
                "pattern": st.sampled_from(["^[a-z]*$", "AKIA", "[0-9]"]),
            },
        ),
        st.fixed_dictionaries({"enum": st.lists(scalars, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"const": scalars}),
        st.fixed_dictionaries(
            {"anyOf": st.lists(schemas, min_size=1, max_size=2)},
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": schemas},
            optional={"minItems": st.integers(0, 2)},
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from("xyz"), schemas, max_size=2),
            },
            optional={
                "required": st.lists(st.sampled_from("xyz"), max_size=1),
                "additionalProperties": st.booleans(),
            },
        ),
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "y", "z", SECRET]), inner, max_size=2),
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from("xyz"), schemas, min_size=1, max_size=2),
    st.dictionaries(st.sampled_from("xyz"), values, max_size=3),
    st.sampled_from(
        [
            paths("structuredContent"),
            paths("structuredContent.x"),
            paths("structuredContent.*.*"),
            Redaction("p/r", (), ("AKIA[A-Z]{16}",), "***"),
            Redaction("p/r", (), ("[a-z]+",), "-"),
            Redaction("p/r"),
        ]
    ),
)
def test_it_fits_or_is_an_error(
    properties: JsonObject, value: JsonObject, redaction: Redaction
) -> None:
    schema: JsonObject = {"type": "object", "properties": properties}
    if not valid(value, schema):
        return
    after = done(value, schema, redaction)
    if "structuredContent" in after:
        assert valid(after["structuredContent"], schema)
    else:
        assert after["isError"] is True
