"""The catalog as model APIs take it, and the calls that their models make of it.

Anthropic Messages: ``{name, description, input_schema}``; a call is ``{type: "tool_use", name,
input}``. OpenAI Chat Completions: ``{type: "function", function: {name, description,
parameters}}``; a call is ``{type: "function", function: {name, arguments}}`` with ``arguments``
as JSON in a string (some clients hand on the object that it holds).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

import msgspec

from sidecar.model import JsonObject
from sidecar.wire import json

Format: TypeAlias = Literal["mcp", "anthropic", "openai"]
FORMATS: tuple[Format, ...] = ("mcp", "anthropic", "openai")

_NO_SCHEMA: JsonObject = {"type": "object", "properties": {}}


class BadBlock(ValueError):
    """Not a call of a format we know. The message says what one looks like, and quotes nothing."""


def as_anthropic(name: str, definition: bytes) -> bytes:
    """One MCP tool definition (JSON) as an Anthropic tool, its schema byte for byte."""
    fields = json.fields(definition)
    tool: JsonObject = {"name": name}
    if "description" in fields:
        tool["description"] = fields["description"]
    tool["input_schema"] = fields.get("inputSchema", _NO_SCHEMA)
    return json.encode(tool)


def as_openai(name: str, definition: bytes) -> bytes:
    """One MCP tool definition (JSON) as an OpenAI function, its schema byte for byte.

    But for ``properties``: a tool without parameters need not name any in MCP, and OpenAI's API
    refuses a whole request for one whose schema does not.
    """
    fields = json.fields(definition)
    function: JsonObject = {"name": name}
    if "description" in fields:
        function["description"] = fields["description"]
    schema = fields.get("inputSchema", _NO_SCHEMA)
    if isinstance(schema, msgspec.Raw) and "properties" not in (parts := json.fields(schema)):
        schema = {**parts, "properties": {}}
    function["parameters"] = schema
    return json.encode({"type": "function", "function": function})


def read_block(block: JsonObject, depth: int = json.DEPTH) -> tuple[str, JsonObject]:
    """The name and the arguments of a model's call.

    Raises:
        BadBlock: neither format, or arguments that are not an object.
    """
    kind = block.get("type")
    if kind == "tool_use":
        return _name(block.get("name")), _arguments(block.get("input"), "input", depth)
    function = block.get("function")
    if kind in ("function", None) and isinstance(function, dict):
        called = cast("JsonObject", function)
        return (
            _name(called.get("name")),
            _arguments(called.get("arguments"), "function.arguments", depth),
        )
    raise BadBlock(
        'a call is {"type": "tool_use", "name": …, "input": {…}} (Anthropic) or '
        '{"type": "function", "function": {"name": …, "arguments": "{…}"}} (OpenAI)'
    )


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadBlock("the call's name is missing or not text")
    return value


def _arguments(value: object, where: str, depth: int) -> JsonObject:
    """An object, or JSON text of one. Models leave it out or empty for tools without arguments."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.decode_request(value.encode("utf-8", "surrogatepass"), depth)
        except json.BadJson as error:
            raise BadBlock(f"the call's {where} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise BadBlock(f"the call's {where} has to be an object, or JSON text of one")
    return cast("JsonObject", value)
