"""Protobuf's wire format, as far as OTLP needs it, and the messages that all signals share.

Field numbers are those of opentelemetry-proto (common/v1, resource/v1). Written by hand because
encoding is most of what an exported span costs; a test reads it all back with the real classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

Value: TypeAlias = "str | bool | int | float | Sequence[str]"
"""What an attribute may be."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

_DOUBLE = struct.Struct("<d").pack
_U64 = struct.Struct("<Q").pack
_U32 = struct.Struct("<I").pack
_MASK: Final = (1 << 64) - 1
_SMALL: Final = tuple(bytes((n,)) for n in range(128))


def varint(number: int) -> bytes:
    """An unsigned number; a negative one as its 64 bits of two's complement."""
    if 0 <= number < 128:
        return _SMALL[number]
    number &= _MASK
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(field: int, wire: int) -> bytes:
    """The key of a field."""
    return varint(field << 3 | wire)


def length(field: int, content: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return tag(field, LENGTH) + varint(len(content)) + content


def string(field: int, text: str) -> bytes:
    """A text field. Half surrogate pairs, which UTF-8 has no bytes for, become ``?``."""
    return length(field, text.encode("utf-8", "replace"))


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return tag(field, VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A fixed64 field: times in nanoseconds since the epoch."""
    return tag(field, FIXED64) + _U64(value & _MASK)


def fixed32(field: int, value: int) -> bytes:
    """A fixed32 field."""
    return tag(field, FIXED32) + _U32(value)


def double(field: int, value: float) -> bytes:
    """A double field."""
    return tag(field, FIXED64) + _DOUBLE(value)


_STRING, _BOOL, _INT, _DOUBLE_VALUE, _ARRAY = 1, 2, 3, 4, 5


def any_value(value: Value) -> bytes:
    """An ``AnyValue``."""
    if isinstance(value, str):
        return string(_STRING, value)
    if isinstance(value, bool):
        return number(_BOOL, int(value))
    if isinstance(value, int):
        return number(_INT, value)
    if isinstance(value, float):
        return double(_DOUBLE_VALUE, value)
    return length(_ARRAY, b"".join(length(1, any_value(each)) for each in value))


def key_value(key: str, value: Value) -> bytes:
    """A ``KeyValue``."""
    return string(1, key) + length(2, any_value(value))


class Attributes:
    """Encodes attributes as one field of a message; remembers those that come again, as most do.

    Bounded in number and in size: what is long is seldom the same twice.
    """

    MOST: Final = 4096
    LONGEST: Final = 128

    def __init__(self, field: int) -> None:
        self._field = field
        self._known: dict[tuple[str, str], bytes] = {}

    def fields(self, attributes: Mapping[str, Value]) -> list[bytes]:
        """A field each, in order."""
        return [self.one(key, value) for key, value in attributes.items()]

    def one(self, key: str, value: Value) -> bytes:
        """One of them."""
        if type(value) is not str or len(value) > self.LONGEST:
            return length(self._field, key_value(key, value))
        known = self._known
        found = known.get((key, value))
        if found is None:
            if len(known) >= self.MOST:
                known.clear()
            found = known[key, value] = length(self._field, key_value(key, value))
        return found


def resource(attributes: Mapping[str, Value]) -> bytes:
    """The content of a ``Resource``."""
    return b"".join(length(1, key_value(key, value)) for key, value in attributes.items())


def scope(name: str, version: str) -> bytes:
    """The content of an ``InstrumentationScope``."""
    return string(1, name) + string(2, version)


def scoped(
    resource: bytes, scope: bytes, field: int, records: Iterable[bytes], schema_url: str = ""
) -> bytes:
    """The request of one resource and one scope, which all three signals have in the same shape:
    ``records`` are whole messages, put in as ``field`` of the scope's message.

    ``Export*ServiceRequest {Resource* {resource = 1, Scope* {scope = 1, records, schema = 3} = 2,
    schema = 3} = 1}``
    """
    prefix = tag(field, LENGTH)
    parts = [length(1, scope)]
    for record in records:
        parts += (prefix, varint(len(record)), record)
    schema = string(3, schema_url) if schema_url else b""
    parts.append(schema)
    return length(1, length(1, resource) + length(2, b"".join(parts)) + schema)


def rejected(answer: bytes) -> tuple[int, str]:
    """What ``partial_success`` of an answer says: how many were not taken, and why.

    ``(0, "")`` for an answer that says nothing, or that cannot be read.
    """
    try:
        partial = dict(_fields(answer)).get(1)
        if not isinstance(partial, bytes):
            return 0, ""
        inner = dict(_fields(partial))
    except (IndexError, ValueError):
        return 0, ""
    count, why = inner.get(1, 0), inner.get(2, b"")
    text = why.decode("utf-8", "replace") if isinstance(why, bytes) else ""
    return (count if isinstance(count, int) else 0), text


def _fields(message: bytes) -> Iterable[tuple[int, int | bytes]]:
    """Raises IndexError or ValueError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 1:
                at += 8
            case 2:
                size, at = _varint(message, at)
                if at + size > len(message):
                    raise ValueError("it ends early")
                yield key >> 3, message[at : at + size]
                at += size
            case 5:
                at += 4
            case _:
                raise ValueError("a group")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 70:
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise ValueError("too long")
