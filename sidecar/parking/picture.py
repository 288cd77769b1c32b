"""What helps a person to judge: what is folded away, and what is other than last time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from sidecar.model import Json, JsonObject
from sidecar.parking.claim import pointer

MOST_DIFFERENCES: Final = 100
MOST_FOLDS: Final = 1000
_DEPTH: Final = 64
_REFS: Final = 32
_APPLY: Final = ("allOf", "anyOf", "oneOf")


def folded(schema: Json, args: Json) -> list[str]:
    """JSON pointers of the arguments whose schema says ``writeOnly`` (JSON Schema, 2020-12,
    validation, 9.4): shown only to who asks to see them.

    Nothing depends on it but what is seen at first: what cannot be followed is not folded.
    """
    found: list[str] = []
    if isinstance(schema, dict):
        _fold(_Root(cast("JsonObject", schema)), schema, args, (), found)
    return found


class _Root:
    """The whole schema, for references into it, and how many may still be followed."""

    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self.steps = MOST_FOLDS * 10

    def follow(self, ref: str) -> object:
        """What a local reference leads to; ``None`` for any other."""
        if not ref.startswith("#/"):
            return self.schema if ref == "#" else None
        at: object = self.schema
        for part in ref[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            at = cast("JsonObject", at).get(key) if isinstance(at, dict) else None
        return at


def _fold(
    root: _Root, schema: object, value: object, path: tuple[str, ...], found: list[str]
) -> None:
    for each in _applied(root, schema, _REFS):
        root.steps -= 1
        if root.steps < 0 or len(path) > _DEPTH or len(found) >= MOST_FOLDS:
            return
        if each.get("writeOnly") is True and path:
            if pointer(path) not in found:
                found.append(pointer(path))
            return
        if isinstance(value, dict):
            properties = each.get("properties")
            more = each.get("additionalProperties")
            for key, item in cast("JsonObject", value).items():
                below = properties.get(key, more) if isinstance(properties, dict) else more
                _fold(root, below, item, (*path, key), found)
        elif isinstance(value, list):
            for i, item in enumerate(cast("list[object]", value)):
                _fold(root, each.get("items"), item, (*path, str(i)), found)


def _applied(root: _Root, schema: object, left: int) -> Iterator[JsonObject]:
    """The schema and those that it says apply as well."""
    if not isinstance(schema, dict) or left <= 0:
        return
    given = cast("JsonObject", schema)
    yield given
    ref = given.get("$ref")
    if isinstance(ref, str):
        yield from _applied(root, root.follow(ref), left - 1)
    for key in _APPLY:
        parts = given.get(key)
        if isinstance(parts, list):
            for part in cast("list[object]", parts[:_REFS]):
                yield from _applied(root, part, left // 2)


def differences(before: Json, now: Json) -> tuple[list[JsonObject], bool]:
    """What is other in ``now``: ``[{path, before, now}]``, a side left out where there is
    nothing; and whether there are more than are told. ``path`` is a JSON pointer."""
    found: list[JsonObject] = []
    for path, was, has in _differing(before, now, ()):
        if len(found) == MOST_DIFFERENCES:
            return found, True
        each: JsonObject = {"path": pointer(path)}
        if was is not _NOTHING:
            each["before"] = was
        if has is not _NOTHING:
            each["now"] = has
        found.append(each)
    return found, False


_NOTHING: Final = object()


def _differing(
    before: object, now: object, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], object, object]]:
    if isinstance(before, dict) and isinstance(now, dict) and len(path) <= _DEPTH:
        was, has = cast("JsonObject", before), cast("JsonObject", now)
        for key in dict.fromkeys([*was, *has]):
            yield from _differing(was.get(key, _NOTHING), has.get(key, _NOTHING), (*path, key))
    elif isinstance(before, list) and isinstance(now, list) and len(path) <= _DEPTH:
        old, new = cast("list[object]", before), cast("list[object]", now)
        for i in range(max(len(old), len(new))):
            was_, has_ = (each[i] if i < len(each) else _NOTHING for each in (old, new))
            yield from _differing(was_, has_, (*path, str(i)))
    elif type(before) is not type(now) or before != now:
        yield path, before, now
