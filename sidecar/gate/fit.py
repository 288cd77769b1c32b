"""Structured content that still fits the schema its tool declares, after something was taken out.

A client that checks (MCP 2025-06-18, "Output Schema") gives its agent nothing of a result that
does not fit. So each value that was changed becomes one that the schema allows and that says
nothing: the first of an ``enum``, the least number, an address that leads nowhere. Schemas are a
server's own: what is followed of them is bounded, and their patterns are RE2 or are not met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias, cast

from sidecar.model import JsonObject
from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.regex import BadPattern, pattern

Schema: TypeAlias = Mapping[str, object]

_DEEPEST: Final = 64
_MOST_OPTIONS: Final = 32
"""Alternatives of one schema (``anyOf``, ``oneOf``, ``$ref``) that are looked at."""
_LONGEST: Final = 1000
"""Characters, or items, that are made up for a schema's sake."""
_FORMATS: Final[Mapping[str, str]] = {
    "date": "1970-01-01",
    "date-time": "1970-01-01T00:00:00Z",
    "duration": "PT0S",
    "email": "redacted@redacted.invalid",
    "hostname": "redacted.invalid",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "time": "00:00:00Z",
    "uri": "redacted:///",
    "url": "redacted:///",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_GONE: Final = object()
"""In the place of what was there before, where nothing of it may stay."""


class Unfit(Exception):
    """There is no value without what was taken out that the schema is known to allow."""


def fitted(before: object, after: object, schema: JsonObject) -> object:
    """``after`` with each value that is other than in ``before`` made to fit; the same object
    where all of it does.

    Raises:
        Unfit: see there.
    """
    return _Fit(schema).value(before, after, [schema], 0)


class _Fit:
    def __init__(self, root: JsonObject) -> None:
        self._root = root

    def value(self, before: object, after: object, schemas: Sequence[object], depth: int) -> object:
        if after is before:
            return after
        if depth > _DEEPEST:
            raise Unfit
        options = self._options(schemas)
        if type(after) is dict:
            return self._members(before, cast("JsonObject", after), options, depth)
        if type(after) is list:
            return self._items(before, after, options, depth)
        if not options or any(_meets(after, each) for each in options):
            return after
        for option in options:
            for candidate in _candidates(after, option):
                if _meets(candidate, option):
                    return candidate
        raise Unfit

    def _members(
        self, before: object, after: JsonObject, options: Sequence[Schema], depth: int
    ) -> object:
        was = cast("JsonObject", before) if type(before) is dict else {}
        needed = {name for each in options for name in _texts(each.get("required"))}
        if was.keys() != after.keys() and (
            needed & was.keys() - after.keys()
            or any(each.get("additionalProperties") is False for each in options)
        ):
            # A name was taken out that the schema asks for, or does not know in its new form.
            raise Unfit
        made = {
            name: self.value(was.get(name, _GONE), item, _member(options, name), depth + 1)
            for name, item in after.items()
        }
        return made if any(made[name] is not after[name] for name in after) else after

    def _items(
        self, before: object, after: list[object], options: Sequence[Schema], depth: int
    ) -> object:
        was = before if type(before) is list else []
        least = min((_count(each, "minItems", 0) for each in options), default=0)
        items = list(after)
        if len(items) < least <= min(len(was), _LONGEST):
            # Emptied, where some have to be there: as many as that, with nothing in them.
            items += [_blank(item) for item in was[len(items) : least]]
        if len(items) < least:
            raise Unfit
        made = [
            self.value(
                was[place] if len(was) == len(after) else _GONE,
                item,
                _item(options, place),
                depth + 1,
            )
            for place, item in enumerate(items)
        ]
        if any(each.get("uniqueItems") is True for each in options):
            told = [repr(each) for each in made]
            if len(set(told)) < len(told):
                raise Unfit
        same = len(made) == len(after) and all(a is b for a, b in zip(made, after, strict=True))
        return after if same else made

    def _options(self, schemas: Sequence[object]) -> list[Schema]:
        found: list[Schema] = []
        for schema in schemas:
            found += self._flat(schema, 0)
        return found[:_MOST_OPTIONS]

    def _flat(self, schema: object, depth: int) -> list[Schema]:
        """A schema as alternatives that have no alternatives inside."""
        if schema is True:
            return [{}]
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return []
        held = cast("JsonObject", schema)
        made: list[Schema] = [held]
        reference = held.get("$ref")
        if isinstance(reference, str):
            made = _joined(made, self._flat(self._at(reference), depth + 1))
        for each in _list(held.get("allOf")):
            made = _joined(made, self._flat(each, depth + 1))
        for word in ("anyOf", "oneOf"):
            branches = _list(held.get(word))
            if branches:
                inner = [one for each in branches for one in self._flat(each, depth + 1)]
                made = _joined(made, inner)
        return made[:_MOST_OPTIONS]

    def _at(self, reference: str) -> object:
        """What a reference within the schema leads to (RFC 6901)."""
        if not reference.startswith("#"):
            return None
        found: object = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = cast("JsonObject", found).get(name) if isinstance(found, dict) else None
        return found


def _joined(these: Sequence[Schema], others: Sequence[Schema]) -> list[Schema]:
    made: list[Schema] = [{**a, **b} for a in these for b in others]
    return made[:_MOST_OPTIONS]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


def _member(options: Sequence[Schema], name: str) -> list[object]:
    """The schemas that an object's member may have; none where nothing is said of it."""
    found: list[object] = []
    for option in options:
        named = option.get("properties")
        more = option.get("additionalProperties")
        if isinstance(named, dict) and name in named:
            found.append(named[name])
        elif isinstance(more, dict):
            found.append(more)
    return found


def _item(options: Sequence[Schema], place: int) -> list[object]:
    found: list[object] = []
    for option in options:
        first = _list(option.get("prefixItems"))
        if place < len(first):
            found.append(first[place])
        elif isinstance(option.get("items"), dict):
            found.append(option["items"])
    return found


def _blank(value: object) -> object:
    """The same shape with nothing in it."""
    if type(value) is dict:
        return {name: _blank(item) for name, item in cast("JsonObject", value).items()}
    if type(value) is list:
        return []
    if type(value) is str:
        return ""
    return False if type(value) is bool else 0 if type(value) in (int, float) else None


# ------------------------------------------------------------------------------ single values


def _candidates(value: object, schema: Schema) -> Iterator[object]:
    """What may stand in the place of a value, the least telling first."""
    if "const" in schema:
        yield schema["const"]
    yield from _list(schema.get("enum"))[:_LONGEST]
    if isinstance(value, str):
        shape = schema.get("format")
        if isinstance(shape, str) and shape in _FORMATS:
            yield _FORMATS[shape]
        least, most = _count(schema, "minLength", 0), _count(schema, "maxLength", _LONGEST)
        if least <= _LONGEST:
            yield value[:most] + "-" * (least - len(value))
            yield from (letter * least for letter in "-0aA")
    elif isinstance(value, bool):
        yield from (False, True)
    elif isinstance(value, int | float):
        for word, step in (
            ("minimum", 0),
            ("maximum", 0),
            ("exclusiveMinimum", 1),
            ("exclusiveMaximum", -1),
            ("multipleOf", 0),
        ):
            limit = schema.get(word)
            if type(limit) in (int, float):
                yield cast("float", limit) + step
    yield None


def _meets(value: object, schema: Schema) -> bool:
    """Whether a value that is neither list nor object is as the schema says, as far as is known."""
    types = schema.get("type")
    names = [types] if isinstance(types, str) else _texts(types)
    if names and not any(_is(value, name) for name in names):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    if "enum" in schema and not any(_same(value, each) for each in _list(schema["enum"])):
        return False
    if isinstance(value, str):
        return _text_meets(value, schema)
    return type(value) not in (int, float) or _number_meets(cast("float", value), schema)


def _is(value: object, name: str) -> bool:
    if name == "integer" and type(value) is float:
        return value.is_integer()
    return type(value) in _TYPES.get(name, ())


def _same(a: object, b: object) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _text_meets(value: str, schema: Schema) -> bool:
    if not _count(schema, "minLength", 0) <= len(value) <= _count(schema, "maxLength", len(value)):
        return False
    shape = schema.get("format")
    if isinstance(shape, str) and shape in _FORMATS and value != _FORMATS[shape]:
        return False
    wanted = schema.get("pattern")
    if not isinstance(wanted, str):
        return True
    try:
        return pattern(wanted)(value)
    except (BadPattern, EvalError):
        return False


def _number_meets(value: float, schema: Schema) -> bool:
    limits = {
        word: cast("float", schema[word])
        for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        if type(schema.get(word)) in (int, float)
    }
    step = limits.get("multipleOf", 0)
    return (
        limits.get("minimum", value) <= value <= limits.get("maximum", value)
        and ("exclusiveMinimum" not in limits or limits["exclusiveMinimum"] < value)
        and ("exclusiveMaximum" not in limits or value < limits["exclusiveMaximum"])
        and (step == 0 or value % step == 0)
    )


def _count(schema: Schema, word: str, default: int) -> int:
    found = schema.get(word)
    return found if type(found) is int and found >= 0 else default
