"""Tools as model APIs take them, and calls as their models make them."""

from __future__ import annotations

import json

import pytest

from sidecar.catalog.formats import BadBlock, as_anthropic, as_openai, read_block

DEFINITION = (
    b'{"name":"own","description":"d\\u00e9","inputSchema":'
    b'{"type":"object","$defs":{"P":{}},"properties":{"n":{"const":12345678901234567890123}}},'
    b'"outputSchema":{},"annotations":{}}'
)
SCHEMA = b'{"type":"object","$defs":{"P":{}},"properties":{"n":{"const":12345678901234567890123}}}'


def test_anthropic() -> None:
    made = as_anthropic("s__own", DEFINITION)
    assert made == b'{"name":"s__own","description":"d\\u00e9","input_schema":' + SCHEMA + b"}"


def test_openai() -> None:
    made = as_openai("s__own", DEFINITION)
    assert made == (
        b'{"type":"function","function":{"name":"s__own","description":"d\\u00e9","parameters":'
        + SCHEMA
        + b"}}"
    )


def test_a_tool_without_description_or_schema_still_fits_the_apis() -> None:
    empty = {"type": "object", "properties": {}}
    assert json.loads(as_anthropic("n", b'{"name":"n"}')) == {"name": "n", "input_schema": empty}
    assert json.loads(as_openai("n", b'{"name":"n"}'))["function"] == {
        "name": "n",
        "parameters": empty,
    }


def test_openai_is_told_that_there_are_no_parameters() -> None:
    """Its API refuses every tool of the request for one schema without ``properties``."""
    bare = b'{"name":"n","inputSchema":{"type":"object","x":1.50}}'
    assert as_openai("n", bare).endswith(
        b'"parameters":{"type":"object","x":1.50,"properties":{}}}}'
    )
    assert as_anthropic("n", bare).endswith(b'"input_schema":{"type":"object","x":1.50}}')


def openai(arguments: object, **rest: object) -> dict[str, object]:
    return {
        "id": "c1",
        "type": "function",
        "function": {"name": "n", "arguments": arguments},
        **rest,
    }


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        ({"type": "tool_use", "id": "t1", "name": "n", "input": {"a": 1}}, {"a": 1}),
        ({"type": "tool_use", "name": "n"}, {}),
        (openai('{"a": 12345678901234567890123}'), {"a": 12345678901234567890123}),
        (openai({"a": [None]}), {"a": [None]}),
        (openai(""), {}),
        (openai(None), {}),
        (openai("{}", index=0), {}),
        ({"function": {"name": "n", "arguments": "{}"}}, {}),
    ],
)
def test_calls_back(block: dict[str, object], arguments: dict[str, object]) -> None:
    assert read_block(block) == ("n", arguments)


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"type": "text", "text": "SECRET"},
        {"type": "tool_use", "name": "", "input": {}},
        {"type": "tool_use", "name": 7, "input": {}},
        {"type": "tool_use", "name": "n", "input": ["SECRET"]},
        {"type": "function", "function": "SECRET"},
        {"type": "function", "function": {"arguments": "{}"}},
        openai("SECRET"),
        openai('["SECRET"]'),
        openai('{"a": "SECRET", "a": 2}'),
        openai('{"a": NaN, "SECRET": 1}'),
        openai('{"SECRET": "\ud800"}'),
        openai('{"a":' * 100 + "1" + "}" * 100),
        openai(7),
    ],
)
def test_what_is_malformed_is_refused_and_not_echoed(block: dict[str, object]) -> None:
    with pytest.raises(BadBlock) as failure:
        read_block(block)
    assert "SECRET" not in str(failure.value)
    assert "call" in str(failure.value)
