"""CEL values as plain Python objects, their types, equality and order (cel-spec, langdef).

JSON is used as it was decoded: ``bool``, ``int``, ``float``, ``str``, ``None``, ``list`` and
``dict``. What JSON lacks has a class here: ``UInt`` (an ``int``), ``BoolKey`` (a boolean as
the key of a map), ``Optional``, ``TypeValue``; ``Timestamp`` and ``Duration`` are in ``time``;
addresses are ``ipaddress`` objects. Every test of a type is exact (``type(x) is …``), because
Python's ``bool`` is an ``int`` and CEL's is not.

An ``int`` of the input may lie beyond 64 bits, as JSON allows: it compares exactly, and
arithmetic on it overflows.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final, TypeAlias, final

import msgspec

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.limits import Budget

# A CEL value. Its shape is known at run time only: that is what the evaluator is for.
Value: TypeAlias = Any

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


class UInt(int):
    """CEL's unsigned integer: ``1u``. Always inside 0 … 2**64-1."""

    __slots__ = ()


class BoolKey(msgspec.Struct, frozen=True):
    """A boolean as a map's key: in a ``dict``, ``True`` and ``1`` would be one key."""

    value: bool


TRUE_KEY: Final = BoolKey(True)
FALSE_KEY: Final = BoolKey(False)


@final
class Optional:
    """A value that may be absent (``optional.of(x)``, ``optional.none()``)."""

    __slots__ = ("present", "value")

    def __init__(self, value: Value, present: bool = True) -> None:
        self.value = value
        self.present = present

    def __repr__(self) -> str:
        return "optional.of(…)" if self.present else "optional.none()"


NONE: Final = Optional(None, present=False)


class TypeValue(msgspec.Struct, frozen=True):
    """What ``type(x)`` gives; equal by name."""

    name: str


class Timestamp(msgspec.Struct, frozen=True, order=True):
    """A point in time: nanoseconds since 1970-01-01T00:00:00Z, years 1 to 9999."""

    nanos: int


class Duration(msgspec.Struct, frozen=True, order=True):
    """A span of time in nanoseconds, within a signed 64-bit integer."""

    nanos: int


class Url(msgspec.Struct, frozen=True):
    """A parsed URL; equal when the text is. ``port`` is empty when the text names none."""

    text: str
    scheme: str
    host: str
    hostname: str
    port: str
    path: str
    query: str


TYPE_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    type(None): "null_type",
    TypeValue: "type",
    Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration",
    Optional: "optional_type",
    IPv4Address: "net.IP",
    IPv6Address: "net.IP",
    IPv4Interface: "net.CIDR",
    IPv6Interface: "net.CIDR",
    Url: "net.URL",
}

TYPES: Final = {name: TypeValue(name) for name in TYPE_NAMES.values()}
"""The types that an expression can name."""

NUMBERS: Final = frozenset((int, float, UInt))


def type_name(value: Value) -> str:
    """CEL's name of a value's type; for an object of no CEL type, of its Python class."""
    kind = type(value)
    return TYPE_NAMES.get(kind) or kind.__name__


def no_overload(name: str, *values: Value) -> EvalError:
    """The error of an operation that does not exist for these types."""
    types = ", ".join(type_name(value) for value in values)
    return EvalError("no_such_overload", f"no such overload: {name} for ({types})")


def number_order(a: Value, b: Value) -> int | None:
    """-1, 0 or 1 for two numbers; ``None`` when one is NaN.

    An integer beside a double is compared as a double, as cel-go and cel-cpp do: exact up to
    2**53, and by range beyond 64 bits.
    """
    if type(a) is float:
        if type(b) is not float:
            b = widen(b)
    elif type(b) is float:
        a = widen(a)
    if a < b:
        return -1
    if a > b:
        return 1
    return 0 if a == b else None


def widen(value: int) -> float:
    """An integer as a double; what no double can hold is an infinity."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def equal(a: Value, b: Value, budget: Budget) -> bool:
    """``==``: numbers by value whatever their type, other types never equal to each other."""
    ta, tb = type(a), type(b)
    if ta is tb:
        if ta is list:
            return _equal_lists(a, b, budget)
        if ta is dict:
            return _equal_maps(a, b, budget)
        if ta is Optional:
            if not (a.present and b.present):
                return a.present is b.present
            return equal(a.value, b.value, budget)
        if ta is str or ta is bytes:
            budget.text(len(a) if len(a) == len(b) else 0)
        return bool(a == b)
    if ta in NUMBERS and tb in NUMBERS:
        return number_order(a, b) == 0
    return False


def _equal_lists(a: list[Value], b: list[Value], budget: Budget) -> bool:
    if len(a) != len(b):
        return False
    budget.charge(len(a) >> 2)
    return all(equal(x, y, budget) for x, y in zip(a, b, strict=True))


def _equal_maps(a: dict[Value, Value], b: dict[Value, Value], budget: Budget) -> bool:
    if len(a) != len(b):
        return False
    budget.charge(len(a) >> 2)
    return all(key in b and equal(value, b[key], budget) for key, value in a.items())


def compare(name: str, a: Value, b: Value, budget: Budget) -> int | None:
    """Order of two values as ``number_order`` tells it.

    Raises:
        EvalError: the types have no order.
    """
    ta, tb = type(a), type(b)
    if ta in NUMBERS and tb in NUMBERS:
        return number_order(a, b)
    if ta is not tb or ta not in _ORDERED:
        raise no_overload(name, a, b)
    if ta is str or ta is bytes:
        budget.text(min(len(a), len(b)))
    if a == b:
        return 0
    return -1 if a < b else 1


_ORDERED: Final = frozenset((str, bytes, bool, Timestamp, Duration))


# ---------------------------------------------------------------------------- maps, lists


def map_key(value: Value) -> Value:
    """A value as it is kept as a key: booleans apart from 0 and 1.

    Raises:
        EvalError: maps have no keys of that type.
    """
    kind = type(value)
    if kind is str or kind is int or kind is UInt:
        return value
    if kind is bool:
        return TRUE_KEY if value else FALSE_KEY
    raise EvalError("no_such_overload", f"unsupported key type: {type_name(value)}")


def lookup_key(value: Value) -> Value:
    """A value as a key to look for; ``NO_KEY`` when no map can hold it."""
    kind = type(value)
    if kind is str or kind is int or kind is UInt:
        return value
    if kind is bool:
        return TRUE_KEY if value else FALSE_KEY
    if kind is float and value.is_integer():
        return int(value)
    return NO_KEY


NO_KEY: Final = object()


def keys(value: dict[Value, Value]) -> list[Value]:
    """The keys of a map as CEL values, in the map's order."""
    return [key.value if type(key) is BoolKey else key for key in value]


def contains(container: Value, item: Value, budget: Budget) -> bool:
    """``item in container`` for lists (by equality) and maps (by key).

    Raises:
        EvalError: the container is neither, or a map could never have such a key.
    """
    kind = type(container)
    if kind is dict and type(item) in _KEY_LIKE:
        return lookup_key(item) in container
    if kind is not list:
        raise no_overload("in", item, container)
    if type(item) is str:
        budget.items(len(container))
        budget.text(len(item) * len(container))
        return item in container
    budget.items(4 * len(container))
    return any(equal(item, other, budget) for other in container)


_KEY_LIKE: Final = frozenset((str, bool, int, UInt, float))


def is_zero(value: Value) -> bool:
    """Whether ``optional.ofNonZeroValue`` takes it for absent."""
    kind = type(value)
    if kind is Timestamp or kind is Duration:
        return bool(value.nanos == 0)
    return kind in _SIZED_OR_NUMBER and not value


_SIZED_OR_NUMBER: Final = frozenset((bool, int, UInt, float, str, bytes, list, dict, type(None)))


def plain(value: Value) -> Value:
    """A value for people and JSON: keys, types, times and addresses as text, the rest as is."""
    kind = type(value)
    if kind is list:
        return [plain(item) for item in value]
    if kind is dict:
        return {_plain_key(key): plain(item) for key, item in value.items()}
    if kind is Optional:
        return plain(value.value) if value.present else None
    if kind is TypeValue:
        return value.name
    if kind is Url:
        return value.text
    if kind is bytes:
        return value.decode("utf-8", "backslashreplace")
    if kind is UInt:
        return int(value)
    if kind in TYPE_NAMES and kind not in _TEXTUAL:
        return value
    return _as_text(value)


def _plain_key(key: Value) -> str:
    if type(key) is BoolKey:
        return "true" if key.value else "false"
    return str(key)


_TEXTUAL: Final = frozenset(
    (Timestamp, Duration, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface)
)


def _as_text(value: Value) -> str:
    from sidecar.policy.cel.functions.time import format_duration, format_timestamp

    if type(value) is Timestamp:
        return format_timestamp(value)
    if type(value) is Duration:
        return format_duration(value)
    return str(value)


def from_pairs(pairs: Iterable[tuple[Value, Value]]) -> dict[Value, Value]:
    """A map of key and value pairs.

    Raises:
        EvalError: a key's type is not allowed, or a key comes twice (1 and 1u are one key).
    """
    made: dict[Value, Value] = {}
    for key, value in pairs:
        kept = map_key(key)
        if kept in made:
            raise EvalError("invalid_argument", "a key comes twice in a map")
        made[kept] = value
    return made
