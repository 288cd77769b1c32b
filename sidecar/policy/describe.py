"""What rules can use, from the same tables that they are checked against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sidecar.model import JsonObject, Phase
from sidecar.policy.cel.functions import STANDARD
from sidecar.policy.cel.macros import MACRO_NAMES
from sidecar.policy.cel.types import Field, Type
from sidecar.policy.phases import EFFECTS
from sidecar.policy.variables import ABOUT, TYPES, of_phase

_JSON: Final[dict[str, JsonObject]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "object": {"type": "object"},
    "timestamp": {"type": "string", "format": "date-time"},
}


def rows(phase: Phase) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of every variable and field of a phase; ``?`` marks what may lack."""
    for name in of_phase(phase):
        yield name, str(TYPES[name]), ABOUT[name]
        yield from _below(name, TYPES[name])


def _below(name: str, of: Type) -> Iterator[tuple[str, str, str]]:
    inner, prefix = of, name
    if of.kind == "list" and of.element is not None and of.element.fields:
        inner, prefix = of.element, f"{name}[]"
    for field, each in (inner.fields or {}).items():
        mark = "?" if each.optional else ""
        yield f"{prefix}.{field}{mark}", str(each.type), each.about
        yield from _below(f"{prefix}.{field}", each.type)


def schema(phase: Phase) -> JsonObject:
    """The JSON Schema (2020-12) of a phase's input."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Input of policies at {phase}",
        "type": "object",
        "properties": {
            name: {**_schema(TYPES[name]), "description": ABOUT[name]} for name in of_phase(phase)
        },
    }


def _schema(of: Type) -> JsonObject:
    made = dict(_JSON.get(of.kind, {}))
    if of.kind == "list" and of.element is not None:
        made["items"] = _schema(of.element)
    if of.fields is not None:
        made["properties"] = {name: _field(field) for name, field in of.fields.items()}
        made["required"] = [name for name, field in of.fields.items() if not field.optional]
    return made


def _field(field: Field) -> JsonObject:
    return {**_schema(field.type), "description": field.about}


def functions() -> list[str]:
    """The names of all functions and macros."""
    return sorted({*STANDARD, *MACRO_NAMES, "cel.bind"})


def everything() -> JsonObject:
    """``{phases: {connect: {effects, variables}, …}, functions}``."""
    return {
        "phases": {
            phase.value: {"effects": list(EFFECTS[phase]), "variables": schema(phase)}
            for phase in Phase
        },
        "functions": functions(),
    }
