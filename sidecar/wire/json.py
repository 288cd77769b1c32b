"""JSON that is read strictly and written exactly.

Reading refuses what two parsers could read differently: duplicate keys, ``NaN``, halves of
surrogate pairs, numbers out of range, bytes that are not UTF-8. Integers keep all their digits
(up to the 4300 characters that Python converts); any other number is an IEEE double, as RFC 8259 §6
expects, so ``1.10`` is written as ``1.1``, and ``-0`` as ``0``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TypeAlias, cast

import msgspec

from sidecar.model import Fields, Json

Buffer: TypeAlias = bytes | bytearray | memoryview | msgspec.Raw

MENDED = 1 << 20
"""Bytes of a document beyond which nothing is put right in it: that holds the loop up."""
DEPTH = 64
"""How deep a document may nest where nobody says otherwise. ``{"a": [1]}`` is 2 deep."""


class BadJson(ValueError):
    """The bytes are not JSON as this module reads it. The message never holds any of the input."""


class TooDeep(BadJson):
    """Nested more than was allowed."""

    def __init__(self) -> None:
        super().__init__("the JSON is nested too deeply")


_decoder = msgspec.json.Decoder()
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()
_canonical_encoder = msgspec.json.Encoder(order="sorted")

_STRING = re.compile(rb'"[^"]*"')
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
# An escaped backslash, a half of a pair, or a whole one.
_SURROGATE = re.compile(
    rb"\\(?:\\|u[dD](?:[89abAB][0-9a-fA-F]{2}(?P<low>\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|[c-fC-F][0-9a-fA-F]{2}))"
)
_POSITION = re.compile(r"\(byte (\d+)\)$")


def decode(data: Buffer, depth: int = DEPTH) -> Json:
    """Decode one JSON document, nested at most ``depth`` deep.

    Of duplicate keys the last one wins, as with every common parser; where that matters, use
    ``decode_request``.

    Raises:
        BadJson: not strict JSON, or nested too deeply.
    """
    value = _read(data)
    if type(value) is dict or type(value) is list:
        _survey(cast("dict[str, object] | list[object]", value), depth)
    return value


def decode_request(data: bytes, depth: int = DEPTH) -> Json:
    """Decode what a stranger sent: as ``decode``, and no object may have a key twice.

    A policy that read one of two values and a server that reads the other would be talking
    about different calls, so neither gets the request.

    Raises:
        BadJson: not strict JSON, nested too deeply, or a key appears twice in one object.
    """
    value = _read(data)
    if type(value) is dict or type(value) is list:
        keys = _survey(cast("dict[str, object] | list[object]", value), depth)
        # These bytes are JSON, so outside of strings there is one colon for each key that was
        # written. As many keys as colons: none was lost. Mostly no string holds a colon, and
        # the strings need not be cut out to see it.
        if data.count(b":") != keys and _colons(data) != keys:
            raise BadJson("an object has the same key twice")
    return value


def fields(data: Buffer, *, detach: bool = False) -> Fields:
    """Split an object into its top-level keys; values are ``msgspec.Raw``, checked but unread.

    The values point into ``data`` and keep all of it alive; ``detach`` copies them out, for
    those who keep a small part of something large.

    Raises:
        BadJson: not an object, or not JSON. Strings inside the values are checked for UTF-8,
            numbers are not checked for range.
    """
    try:
        found = _fields_decoder.decode(cast("bytes", data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad(error, data) from None
    _check_utf8(data)
    if detach:
        return {key: value.copy() for key, value in found.items()}
    return cast("Fields", found)


def whole_pairs(data: Buffer) -> bytes:
    """The same JSON with U+FFFD in the place of each half of a surrogate pair.

    Programs that cut a text between the halves of an emoji write such; no UTF-8 can hold one.
    Documents over ``MENDED`` stay as they are.
    """
    if len(memoryview(data)) > MENDED:
        return bytes(data)
    return _SURROGATE.sub(_whole, bytes(data))


def encode(value: object) -> bytes:
    """Write JSON without insignificant space. ``msgspec.Raw`` is spliced in byte for byte."""
    return _encoder.encode(value)


def canonical(value: object) -> bytes:
    """One spelling for one value: keys sorted by code point, no space, integers with all digits.

    An integer and a float are different values here even when they are equal as numbers
    (``1`` and ``1.0``): a digest that took them for the same would let one stand for the other
    in front of a server that tells them apart. Raw values are allowed one level down, as in
    ``Fields``, and are read first.
    """
    if type(value) is msgspec.Raw:
        value = decode(value)
    elif type(value) is dict:
        items = cast("dict[str, object]", value)
        if any(type(item) is msgspec.Raw for item in items.values()):
            value = {
                key: decode(item) if isinstance(item, msgspec.Raw) else item
                for key, item in items.items()
            }
    return _canonical_encoder.encode(value)


def digest(value: object) -> str:
    """The sha256 of ``canonical(value)``, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _read(data: Buffer) -> Json:
    try:
        return cast("Json", _decoder.decode(cast("bytes", data)))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad(error, data) from None


def _survey(value: dict[str, object] | list[object], depth: int) -> int:
    """Count the keys of every object in ``value``; refuse what is nested more than ``depth``."""
    level: list[object] = [value]
    keys = 0
    while level:
        depth -= 1
        if depth < 0:
            raise TooDeep
        below: list[object] = []
        for container in level:
            children: Iterable[object]
            if type(container) is dict:
                keys += len(container)
                children = container.values()
            else:
                children = cast("list[object]", container)
            for child in children:
                if type(child) is dict or type(child) is list:
                    below.append(child)
        level = below
    return keys


def _colons(data: bytes) -> int:
    """How many colons stand outside of strings in ``data``, which is known to be JSON."""
    if b"\\" in data:
        # Escaped backslashes first: what is left before a quote then escapes it.
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    return _STRING.sub(b"", data).count(b":")


def _check_utf8(data: Buffer) -> None:
    if isinstance(data, bytes) and data.isascii():
        return
    try:
        str(cast("bytes", data), "utf-8")
    except UnicodeDecodeError:
        raise BadJson("a string is not UTF-8") from None


def _whole(escape: re.Match[bytes]) -> bytes:
    found = escape[0]
    return found if len(found) == 2 or escape["low"] is not None else rb"\ufffd"


def _bad(error: Exception, data: Buffer) -> BadJson:
    """Say in our own words what is wrong: what libraries say may quote the input."""
    if isinstance(error, RecursionError):
        return TooDeep()
    text = str(error)
    if "out of range" in text:
        return BadJson("a number is too large")
    if isinstance(error, msgspec.ValidationError):
        return BadJson("the JSON is not an object")
    if "UTF-8" in text:
        return BadJson("a string is not UTF-8")
    if _HALF_PAIR.search(cast("bytes", data)):
        return BadJson("the JSON is malformed, or a string holds half of a surrogate pair")
    if "truncated" in text:
        return BadJson("the JSON ends too early")
    position = _POSITION.search(text)
    where = f" at byte {position[1]}" if position else ""
    return BadJson(f"the JSON is malformed{where}")
