"""Results that stay what the protocol says they are, whatever was taken out of them.

A block of content whose required fields were touched becomes a text block; anything optional
that no longer has its type goes. Types: MCP 2025-11-25 and 2026-07-28, schema.
"""

from __future__ import annotations

from typing import Final, cast

from sidecar.model import JsonObject

_FREE: Final = frozenset(("text", "name", "title", "description"))
"""Fields of blocks and of resources that are any string."""
_OPAQUE: Final = "redacted:///"
"""An address that leads nowhere, in the place of one that held what was taken out."""


def text_block(text: str) -> JsonObject:
    """A block of content that is a text."""
    return {"type": "text", "text": text}


def mended(key: str, before: object, after: object, replacement: str) -> object:
    """The value of a result's ``key`` after something was taken out of it, made valid again."""
    if after is before:
        return before
    match key:
        case "content":
            return _blocks(before, after, replacement)
        case "contents":
            return _contents(before, after, replacement)
        case "messages":
            return _messages(before, after, replacement)
        case "completion":
            return _completion(after)
        case "structuredContent":
            return after if isinstance(after, dict) else {}
        case "_meta":
            return after if isinstance(after, dict) else {}
        case "description":
            return after if isinstance(after, str) else replacement
    return after


def _pairs(before: object, after: object) -> list[tuple[object, object]] | None:
    """Items before and after, where there are as many."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return list(zip(before, after, strict=True))
    return None


def _blocks(before: object, after: object, replacement: str) -> object:
    pairs = _pairs(before, after)
    if pairs is None:
        return [text_block(replacement)]
    return [_block(was, now, replacement) for was, now in pairs]


def _block(before: object, after: object, replacement: str) -> object:
    if after is before:
        return before
    if not isinstance(before, dict) or not isinstance(after, dict):
        return text_block(replacement)
    kept: JsonObject = {}
    for key, now in cast("JsonObject", after).items():
        was = before.get(key)
        if now is was or (key in _FREE and isinstance(now, str)):
            kept[key] = now
        elif key == "uri":
            kept[key] = _OPAQUE
        elif key == "resource":
            kept[key] = _resource(was, now, replacement)
        elif key == "content" and isinstance(was, list | dict):
            # A tool's result in a prompt's message, in revisions that have it.
            inner = _blocks(was, now, replacement) if isinstance(was, list) else None
            kept[key] = inner if inner is not None else _block(was, now, replacement)
        elif key in ("type", "data", "mimeType"):
            return text_block(replacement)
        elif key == "annotations" and isinstance(was, dict) and isinstance(now, dict):
            # Each of its fields is optional, and of a type of its own.
            kept[key] = {name: item for name, item in now.items() if item is was.get(name)}
        elif key != "icons" and type(now) is type(was) and isinstance(now, dict | list):
            kept[key] = now
    return kept


def _contents(before: object, after: object, replacement: str) -> object:
    pairs = _pairs(before, after)
    if pairs is None:
        return [{"uri": _OPAQUE, "text": replacement}]
    return [_resource(was, now, replacement) for was, now in pairs]


def _resource(before: object, after: object, replacement: str) -> object:
    """The contents of a resource: an address, and a text or octets."""
    if after is before:
        return before
    if not isinstance(before, dict) or not isinstance(after, dict):
        uri = before.get("uri") if isinstance(before, dict) else None
        return {"uri": uri if isinstance(uri, str) else _OPAQUE, "text": replacement}
    kept: JsonObject = {}
    for key, now in cast("JsonObject", after).items():
        was = before.get(key)
        if now is was or (key in _FREE and isinstance(now, str)):
            kept[key] = now
        elif key == "uri":
            kept[key] = _OPAQUE
        elif key in ("blob", "text"):
            # Not the octets any more, so not their type either.
            kept["text"] = replacement
        elif type(now) is type(was) and isinstance(now, dict | list):
            kept[key] = now
    if "text" in kept:
        kept.pop("blob", None)
        if "blob" in before:
            kept.pop("mimeType", None)
    return kept


def _messages(before: object, after: object, replacement: str) -> object:
    pairs = _pairs(before, after)
    if pairs is None:
        return [{"role": "user", "content": text_block(replacement)}]
    return [_message(was, now, replacement) for was, now in pairs]


def _message(before: object, after: object, replacement: str) -> object:
    if after is before:
        return before
    if not isinstance(before, dict) or not isinstance(after, dict):
        role = before.get("role", "user") if isinstance(before, dict) else "user"
        return {"role": role, "content": text_block(replacement)}
    kept = {key: now for key, now in after.items() if now is before.get(key)}
    if "role" in before:
        kept["role"] = before["role"]
    if "content" in after:
        was, now = before.get("content"), after["content"]
        kept["content"] = (
            _blocks(was, now, replacement)
            if isinstance(was, list) and isinstance(now, list)
            else _block(was, now, replacement)
        )
    return kept


def _completion(after: object) -> object:
    value = cast("JsonObject", after) if isinstance(after, dict) else {}
    values = value.get("values")
    kept: JsonObject = {
        "values": [each for each in values if isinstance(each, str)]
        if isinstance(values, list)
        else []
    }
    for key, kind in (("total", int), ("hasMore", bool)):
        if type(value.get(key)) is kind:
            kept[key] = value[key]
    return kept
