"""The values of literals as they are written (cel-spec langdef, "Syntax")."""

from __future__ import annotations

import math
import re
from typing import Final

from sidecar.policy.cel.values import INT_MAX, INT_MIN, UINT_MAX, UInt

_ESCAPE: Final = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\?\"'`])|(?P<octal>[0-3][0-7]{2})|[xX](?P<hex>[0-9a-fA-F]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<bad>.?))",
    re.DOTALL,
)
_SIMPLE: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "?": "?",
    '"': '"',
    "'": "'",
    "`": "`",
}


class BadLiteral(ValueError):
    """The literal has no value; the message says why. ``offset`` is within the literal."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


def integer(text: str) -> int:
    """``-12``, ``0x1F``: within a signed 64-bit integer."""
    value = int(text, 16 if "x" in text else 10)
    if not INT_MIN <= value <= INT_MAX:
        raise BadLiteral("this integer does not fit into 64 bits")
    return value


def unsigned(text: str) -> UInt:
    """``12u``, ``0x1Fu``: within an unsigned 64-bit integer."""
    value = int(text[:-1], 16 if "x" in text else 10)
    if not 0 <= value <= UINT_MAX or text.startswith("-"):
        raise BadLiteral("an unsigned integer is from 0 to 2**64-1")
    return UInt(value)


def double(text: str) -> float:
    """``1.5``, ``.5``, ``1e3``."""
    value = float(text)
    if math.isinf(value):
        raise BadLiteral("this number is too large for a double")
    return value


def string(text: str) -> str:
    """A string literal, its quotes and prefix included."""
    body, raw, offset = _body(text)
    if raw:
        return body

    def replace(match: re.Match[str]) -> str:
        point = _point(match, offset)
        return point if isinstance(point, str) else _character(point, match, offset)

    return _ESCAPE.sub(replace, body) if "\\" in body else body


def octets(text: str) -> bytes:
    """A bytes literal, its quotes and prefix included: text is UTF-8, escapes are octets."""
    body, raw, offset = _body(text[1:])
    if raw or "\\" not in body:
        return body.encode()
    out = bytearray()
    last = 0
    for match in _ESCAPE.finditer(body):
        out += body[last : match.start()].encode()
        last = match.end()
        if match["short"] or match["long"]:
            raise BadLiteral("bytes have no \\u escapes; write the octets as \\x", offset + 1)
        point = _point(match, offset + 1)
        out += point.encode() if isinstance(point, str) else bytes((point,))
    out += body[last:].encode()
    return bytes(out)


def _body(text: str) -> tuple[str, bool, int]:
    """What is between the quotes, whether it is raw, and where it starts."""
    raw = text[0] in "rR"
    start = 1 if raw else 0
    quotes = 3 if text.startswith(('"""', "'''"), start) else 1
    return text[start + quotes : -quotes], raw, start + quotes


def _point(match: re.Match[str], offset: int) -> str | int:
    """The character of a simple escape, or the number of any other."""
    if match["simple"]:
        return _SIMPLE[match["simple"]]
    if match["octal"]:
        return int(match["octal"], 8)
    digits = match["hex"] or match["short"] or match["long"]
    if digits:
        return int(digits, 16)
    raise BadLiteral(f"unknown escape \\{match['bad']}", offset + match.start())


def _character(point: int, match: re.Match[str], offset: int) -> str:
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise BadLiteral("the escape names no Unicode character", offset + match.start())
    return chr(point)
