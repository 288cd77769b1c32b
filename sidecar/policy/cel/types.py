"""Types as far as policies need them: to declare variables and functions, and to lint.

``dyn`` is a value of unknown type. An ``object`` is a map whose fields are declared; a field
may be ``optional``, and then a policy has to guard its use.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Final, Literal, TypeAlias

import msgspec

from sidecar.policy.cel.values import Duration, Optional, Timestamp, TypeValue, UInt, Url

Kind: TypeAlias = Literal[
    "dyn",
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "null",
    "list",
    "map",
    "object",
    "type",
    "timestamp",
    "duration",
    "optional",
    "ip",
    "cidr",
    "url",
]


class Type(msgspec.Struct, frozen=True):
    """A type. ``element`` is what a list, a map's values or an optional hold."""

    kind: Kind
    element: Type | None = None
    fields: Mapping[str, Field] | None = None

    def __str__(self) -> str:
        if self.kind == "object":
            return "map"
        return self.kind if self.element is None else f"{self.kind}({self.element})"


class Field(msgspec.Struct, frozen=True):
    """A declared field: its type, whether it may be absent, and one line for people."""

    type: Type
    optional: bool = False
    about: str = ""


DYN: Final = Type("dyn")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
NULL: Final = Type("null")
TYPE: Final = Type("type")
TIMESTAMP: Final = Type("timestamp")
DURATION: Final = Type("duration")
IP: Final = Type("ip")
CIDR: Final = Type("cidr")
URL: Final = Type("url")
LIST: Final = Type("list", DYN)
MAP: Final = Type("map", DYN)
OPTIONAL: Final = Type("optional", DYN)


def list_of(element: Type) -> Type:
    """A list of one type of element."""
    return Type("list", element)


def map_of(element: Type) -> Type:
    """A map with any keys to one type of value."""
    return Type("map", element)


def object_of(**fields: Field | Type) -> Type:
    """A map with these fields and no others."""
    return Type(
        "object",
        fields={
            name: field if isinstance(field, Field) else Field(field)
            for name, field in fields.items()
        },
    )


def optional_of(element: Type) -> Type:
    """An optional of one type."""
    return Type("optional", element)


CLASSES: Final[dict[Kind, tuple[type, ...]]] = {
    "bool": (bool,),
    "int": (int,),
    "uint": (UInt,),
    "double": (float,),
    "string": (str,),
    "bytes": (bytes,),
    "null": (type(None),),
    "list": (list,),
    "map": (dict,),
    "object": (dict,),
    "type": (TypeValue,),
    "timestamp": (Timestamp,),
    "duration": (Duration,),
    "optional": (Optional,),
    "ip": (IPv4Address, IPv6Address),
    "cidr": (IPv4Interface, IPv6Interface),
    "url": (Url,),
}
"""The Python classes of the values of a type; ``dyn`` has none because it has all."""

NUMERIC: Final = frozenset(("int", "uint", "double"))


def of_value(value: object) -> Type:
    """The type of a constant."""
    kind = _KINDS.get(type(value), "dyn")
    if kind == "list":
        return LIST
    return MAP if kind == "map" else Type(kind)


_KINDS: Final[dict[type, Kind]] = {
    cls: kind for kind, classes in CLASSES.items() if kind != "object" for cls in classes
}


def joined(a: Type, b: Type) -> Type:
    """The type of something that is one or the other."""
    if a == b:
        return a
    if a.kind == b.kind and a.kind in ("list", "map", "optional"):
        return Type(a.kind, joined(a.element or DYN, b.element or DYN))
    return DYN


def compatible(declared: Type, given: Type) -> bool:
    """Whether a value of type ``given`` may be taken where ``declared`` is asked for."""
    if "dyn" in (declared.kind, given.kind):
        return True
    maps = ("map", "object")
    if declared.kind in maps and given.kind in maps:
        return True
    if declared.kind != given.kind:
        return False
    return compatible(declared.element or DYN, given.element or DYN)
