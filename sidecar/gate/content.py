"""A result as policy sees it: ``result{is_error, size, text, structured, meta}``.

Nothing is decoded before a rule reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, cast

import msgspec

from sidecar.model import Fields, JsonObject
from sidecar.wire import json

DEPTH: Final = 256
"""How deep a result may nest where a rule reads it; what is deeper is denied."""
PARTS: Final = ("is_error", "size", "text", "structured", "meta")


class Content:
    """What there is to read of a server's words: a result, an error, a notification."""

    def part(self, name: str) -> object:
        """One part, or ``None`` when there is none. Raises BadJson."""
        raise NotImplementedError

    def given(self, parts: frozenset[str] | None) -> JsonObject:
        """The variable ``result`` with these parts, ``None`` for all. Raises BadJson."""
        found: JsonObject = {}
        for name in PARTS if parts is None else parts:
            value = self.part(name)
            if value is not None:
                found[name] = value
        return found


class ResultContent(Content):
    """A result, unread."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def part(self, name: str) -> object:
        match name:
            case "is_error":
                return plain(self._fields.get("isError")) is True
            case "size":
                return sum(_size(value) for value in self._fields.values())
            case "text":
                return "\n".join(texts(self._fields))
            case "structured":
                return plain(self._fields.get("structuredContent"))
            case "meta":
                meta = self._fields.get("_meta")
                items = cast("JsonObject", meta) if isinstance(meta, dict) else {}
                return {key: plain(value) for key, value in items.items()}
        return None


class TextContent(Content):
    """Words that are no result: an error's message, a log message, progress."""

    def __init__(self, text: str, *, is_error: bool = False) -> None:
        self._text = text
        self._is_error = is_error

    def part(self, name: str) -> object:
        match name:
            case "is_error":
                return self._is_error
            case "size":
                return len(self._text.encode("utf-8", "replace"))
            case "text":
                return self._text
            case "meta":
                return {}
        return None


def plain(value: object) -> object:
    """A value of a result, read. Raises BadJson."""
    return json.decode(value, DEPTH) if isinstance(value, msgspec.Raw) else value


def _size(value: object) -> int:
    if isinstance(value, msgspec.Raw):
        return len(memoryview(value))
    return len(json.encode(value))


def texts(fields: Fields) -> Iterator[str]:
    """Every text in a result of any method, in its order. Raises BadJson."""
    for key in ("description", "content", "contents", "messages", "completion"):
        if key in fields:
            yield from _texts(key, plain(fields[key]))


def _texts(key: str, value: object) -> Iterator[str]:
    if key == "description":
        if isinstance(value, str):
            yield value
    elif key == "completion":
        values = value.get("values") if isinstance(value, dict) else None
        if isinstance(values, list):
            yield from (each for each in values if isinstance(each, str))
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, dict):
                yield from _block(each)


def _block(block: Mapping[str, object]) -> Iterator[str]:
    """The texts of a content block, of a resource's contents, of a prompt's message."""
    if isinstance(block.get("text"), str):
        yield cast("str", block["text"])
    for name in ("resource", "content"):
        inner = block.get(name)
        for each in inner if isinstance(inner, list) else (inner,):
            if isinstance(each, dict):
                yield from _block(cast("JsonObject", each))


def untrusted(fields: Fields) -> bool:
    """Whether the server itself says that its result is not to be trusted.

    ``_meta.ifc`` as GitHub's server writes it: ``{integrity: trusted | untrusted, …}``. Only
    what restricts counts: any word but ``trusted`` does, ``trusted`` changes nothing.
    """
    meta = fields.get("_meta")
    if not isinstance(meta, dict) or "ifc" not in meta:
        return False
    try:
        ifc = plain(cast("JsonObject", meta)["ifc"])
    except json.BadJson:
        return True
    if not isinstance(ifc, dict):
        return ifc is not None
    return "integrity" in ifc and ifc["integrity"] != "trusted"
