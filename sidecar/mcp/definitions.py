"""What a server lists, put right where it is not what the protocol says.

Clients read a whole list with one schema: a single tool with ``"description": null`` or without
``inputSchema`` costs them every tool of every server. So an optional field that is not what the
protocol says is left out, and an entry whose required fields are not is refused. Everything
else, unknown fields too, stays as it came. Pure.

Shapes: 2025-11-25 and 2026-07-28 ``schema.ts``: Tool, Prompt, Resource, ResourceTemplate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

from sidecar.model import Era, JsonObject

_WRONG: Final = object()
_Check: TypeAlias = Callable[[object], object]
"""The value, another one that means the same, or ``_WRONG``."""

_ANYTHING: Final[JsonObject] = {"type": "object"}
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class BadDefinition(ValueError):
    """No client could read this entry. The message says what is wrong and quotes nothing."""


def put_right(kind: str, entry: JsonObject, era: Era) -> JsonObject:
    """An entry of a list of ``tools``, ``prompts``, ``resources`` or ``templates``.

    What it is called by (``name``, ``uri``, ``uriTemplate``) is text, as the caller has seen to.
    The same object if nothing was wrong with it; values that were right are the same objects.

    Raises:
        BadDefinition: a field that has to be there is not, or is something else.
    """
    checked = _checked(entry, _FIELDS[kind])
    if kind in ("resources", "templates") and "name" not in checked:
        # Every client wants one, and what it is called matters to nobody but people.
        return {**checked, "name": checked["uri" if kind == "resources" else "uriTemplate"]}
    if kind != "tools":
        return checked
    given = entry.get("inputSchema")
    schema = _object_schema(_ANYTHING if given is None else given)
    if schema is _WRONG:
        raise BadDefinition("its inputSchema is not the schema of an object")
    output = entry.get("outputSchema", _WRONG)
    if era is Era.LEGACY:
        # A modern one may be of any type.
        shaped = _object_schema(output)
    else:
        shaped = output if isinstance(output, dict) else _WRONG
    for key, value in (("inputSchema", schema), ("outputSchema", shaped)):
        if value is _WRONG and key in checked:
            checked = {name: kept for name, kept in checked.items() if name != key}
        elif value is not _WRONG and checked.get(key) is not value:
            checked = {**checked, key: value}
    return checked


def _checked(fields: JsonObject, checks: Mapping[str, _Check]) -> JsonObject:
    """Without the fields that are wrong; the same object if none is."""
    changed = False
    kept: JsonObject = {}
    for key, value in fields.items():
        check = checks.get(key)
        now = value if check is None else check(value)
        changed = changed or now is not value
        if now is not _WRONG:
            kept[key] = now
    return kept if changed else fields


def _text(value: object) -> object:
    return value if isinstance(value, str) else _WRONG


def _flag(value: object) -> object:
    return value if isinstance(value, bool) else _WRONG


def _number(value: object) -> object:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _WRONG


def _fraction(value: object) -> object:
    number = _number(value)
    return value if number is not _WRONG and 0 <= cast("float", number) <= 1 else _WRONG


def _moment(value: object) -> object:
    return value if isinstance(value, str) and _MOMENT.fullmatch(value) else _WRONG


def _any_object(value: object) -> object:
    return value if isinstance(value, dict) else _WRONG


def _one_of(*words: str) -> _Check:
    return lambda value: value if value in words else _WRONG


def _list_of(check: _Check) -> _Check:
    """A list all of whose items are right, or can be put right."""

    def each(value: object) -> object:
        if not isinstance(value, list):
            return _WRONG
        items = [check(item) for item in value]
        if any(item is _WRONG for item in items):
            return _WRONG
        same = all(now is before for now, before in zip(items, value, strict=True))
        return value if same else items

    return each


def _object(checks: Mapping[str, _Check], *required: str) -> _Check:
    def each(value: object) -> object:
        if not isinstance(value, dict):
            return _WRONG
        kept = _checked(cast("JsonObject", value), checks)
        return kept if all(key in kept for key in required) else _WRONG

    return each


def _object_schema(value: object) -> object:
    """A JSON Schema of objects, as clients expect one. ``true`` is ``{}`` by another name."""
    if value is True:
        return _ANYTHING
    if not isinstance(value, dict):
        return _WRONG
    schema = cast("JsonObject", value)
    if schema.get("type", "object") not in ("object", None):
        return _WRONG
    properties = schema.get("properties")
    if properties is not None and not isinstance(properties, dict):
        return _WRONG
    kept = _checked(schema, {"properties": _properties, "required": _list_of(_text)})
    return kept if kept.get("type") == "object" else {**kept, "type": "object"}


def _properties(value: object) -> object:
    if not isinstance(value, dict):
        return _WRONG
    properties = cast("JsonObject", value)
    kept: JsonObject = {
        name: schema if isinstance(schema, dict) else {"not": {}} if schema is False else {}
        for name, schema in properties.items()
    }
    same = all(kept[name] is schema for name, schema in properties.items())
    return value if same else kept


_ICONS: Final = _list_of(
    _object(
        {
            "src": _text,
            "mimeType": _text,
            "sizes": _list_of(_text),
            "theme": _one_of("light", "dark"),
        },
        "src",
    )
)
_COMMON: Final[Mapping[str, _Check]] = {
    "title": _text,
    "description": _text,
    "icons": _ICONS,
    "_meta": _any_object,
}
_ANNOTATIONS: Final = _object(
    {
        "audience": _list_of(_one_of("user", "assistant")),
        "priority": _fraction,
        "lastModified": _moment,
    }
)
_FIELDS: Final[Mapping[str, Mapping[str, _Check]]] = {
    "tools": {
        **_COMMON,
        "annotations": _object(
            {
                "title": _text,
                "readOnlyHint": _flag,
                "destructiveHint": _flag,
                "idempotentHint": _flag,
                "openWorldHint": _flag,
            }
        ),
        "execution": _object({"taskSupport": _one_of("required", "optional", "forbidden")}),
    },
    "prompts": {
        **_COMMON,
        "arguments": _list_of(
            _object(
                {"name": _text, "title": _text, "description": _text, "required": _flag}, "name"
            )
        ),
    },
    "resources": {
        **_COMMON,
        "name": _text,
        "mimeType": _text,
        "size": _number,
        "annotations": _ANNOTATIONS,
    },
    "templates": {**_COMMON, "name": _text, "mimeType": _text, "annotations": _ANNOTATIONS},
}
