"""Inputs that people write: in tests, and for ``policy eval`` on the command line and over the
admin API. What the gateway would never ask about is a mistake in them, and would test nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias, cast

from sidecar.config.faults import did_you_mean
from sidecar.model import JsonObject, Phase
from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.time import parse_timestamp
from sidecar.policy.cel.types import CLASSES, Type
from sidecar.policy.phases import VARIABLES
from sidecar.policy.variables import TYPES

Steps: TypeAlias = tuple[str | int, ...]
"""The way to a part of a value: names of members and places in lists."""

_WORDS: Final = {
    "bool": "true or false",
    "int": "a whole number",
    "string": "a text",
    "list": "a list",
    "map": "an object",
    "object": "an object",
    "timestamp": "a time such as 2026-01-31T12:00:00Z",
}


class BadInput(Exception):
    """What was given is no input; the text says what it should be, and quotes no value of it."""


def as_object(value: object, what: str) -> JsonObject:
    """A JSON object.

    Raises:
        BadInput: it is something else.
    """
    if not isinstance(value, dict):
        raise BadInput(f"{what} has to be a JSON object")
    return cast("JsonObject", value)


def read_input(value: object) -> tuple[Phase, JsonObject]:
    """The phase (``call`` where it is absent) and the variables of an input.

    Raises:
        BadInput: a key or a value that no input has.
    """
    given = dict(as_object(value, "the input"))
    known = frozenset().union(*VARIABLES.values())
    for name in given:
        if name not in known and name != "phase":
            near = did_you_mean(name, known) or f"; it has phase, {', '.join(sorted(known))}"
            raise BadInput(f"an input has no {name!r}{near}")
    phases = [phase.value for phase in Phase]
    named = given.pop("phase", "call")
    if named not in phases:
        raise BadInput(f"phase has to be one of {', '.join(phases)}")
    found = [f"{_dotted((name, *way))} {why}" for name in given for way, why in wrong(name, given)]
    if found:
        raise BadInput("; ".join(found))
    return Phase(str(named)), given


def wrong(name: str, given: JsonObject) -> Iterator[tuple[Steps, str]]:
    """What a variable can never be: the way to each such part of it, and why, without values.

    What is absent is absent, and wrong in nothing. Arguments may be anything.
    """
    return _wrong(given[name], TYPES[name], ())


def _wrong(value: object, of: Type, way: Steps) -> Iterator[tuple[Steps, str]]:
    if of.kind == "dyn":
        return
    if not _is(value, of):
        yield way, f"has to be {_WORDS[of.kind]}"
    elif isinstance(value, list) and of.element is not None:
        for place, item in enumerate(value):
            yield from _wrong(item, of.element, (*way, place))
    elif isinstance(value, dict) and of.fields is not None:
        for key, item in value.items():
            if key in of.fields:
                yield from _wrong(item, of.fields[key].type, (*way, key))
            else:
                near = did_you_mean(key, of.fields) or f"; there are {', '.join(of.fields)}"
                yield (*way, key), f"is no field there{near}"


def _is(value: object, of: Type) -> bool:
    if of.kind != "timestamp":
        return type(value) in CLASSES[of.kind]
    if type(value) is str:
        try:
            parse_timestamp(value)
        except (EvalError, ValueError):
            return False
    return type(value) in (str, int, float)


def _dotted(way: Steps) -> str:
    first, *rest = way
    return str(first) + "".join(f"[{s}]" if isinstance(s, int) else f".{s[:40]}" for s in rest)
