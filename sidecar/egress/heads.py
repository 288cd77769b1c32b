"""Heads of HTTP/1 messages as a proxy has to read them: strictly, or not at all (RFC 9112).

Pure. What two parsers could read differently (bare line feeds, folded lines, two lengths) is
refused, so that nobody behind the proxy sees another message than the one that was decided on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

MOST_HEAD: Final = 32 << 10
"""Bytes of a head."""
MOST_FIELDS: Final = 200

Headers: TypeAlias = tuple[tuple[str, str], ...]
Framing: TypeAlias = int | Literal["chunked", "close"]
"""How a body ends: after so many bytes, by its last chunk, or with the connection."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_REQUEST = re.compile(r"([A-Z]{1,20}) ([^ ]+) HTTP/1\.([01])")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: (.*))?")
_DIGITS = re.compile(r"[0-9]{1,18}")

# RFC 9110 section 7.6.1, and what was said to this proxy.
_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "upgrade",
    )
)


class BadHead(ValueError):
    """Not a head that everybody reads alike; the text quotes none of it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head. ``minor`` is that of HTTP/1.``minor``."""

    method: str
    target: str
    minor: int
    headers: Headers

    @property
    def framing(self) -> Framing:
        """How its body ends: without a length there is none. Raises BadHead."""
        found = _framing(self.headers)
        return 0 if found == "close" else found


@dataclass(frozen=True, slots=True)
class Response:
    """A response's head."""

    status: int
    reason: str
    minor: int
    headers: Headers

    def framing(self, method: str) -> Framing:
        """How the body of the answer to ``method`` ends (RFC 9112 section 6.3). Raises BadHead."""
        if method == "HEAD" or self.status < 200 or self.status in (204, 304):
            return 0
        return _framing(self.headers)


def request(data: bytes) -> Request:
    """Read a request's head, its empty line included.

    Raises:
        BadHead: it is not one.
    """
    line, headers = _lines(data)
    parts = _REQUEST.fullmatch(line)
    if parts is None:
        raise BadHead("the request line is not one of HTTP/1.0 or HTTP/1.1")
    return Request(parts[1], parts[2], int(parts[3]), headers)


def response(data: bytes) -> Response:
    """Read a response's head. Raises BadHead."""
    line, headers = _lines(data)
    parts = _STATUS.fullmatch(line)
    if parts is None:
        raise BadHead("the status line is not one of HTTP/1.0 or HTTP/1.1")
    return Response(int(parts[2]), parts[3] or "", int(parts[1]), headers)


def values(headers: Headers, name: str) -> list[str]:
    """Every value of a field; ``name`` is in lower case."""
    return [value for key, value in headers if key.lower() == name]


def end_to_end(headers: Headers) -> Headers:
    """The fields that a proxy sends on: not those of the connection, nor those it names."""
    named = {
        name.strip().lower() for value in values(headers, "connection") for name in value.split(",")
    }
    # What frames the message cannot be named away.
    named -= {"content-length", "transfer-encoding", "host"}
    drop = _HOP | named
    return tuple((key, value) for key, value in headers if key.lower() not in drop)


def encode(line: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """A head as bytes."""
    fields = "".join(f"{key}: {value}\r\n" for key, value in headers)
    return f"{line}\r\n{fields}\r\n".encode("latin-1")


def _lines(data: bytes) -> tuple[str, Headers]:
    if len(data) > MOST_HEAD:
        raise BadHead(f"the head has more than {MOST_HEAD} bytes")
    # Latin-1 keeps every byte as it is, so that what goes on is what came.
    lines = data.decode("latin-1").split("\r\n")
    if len(lines) < 3 or lines[-2:] != ["", ""]:
        raise BadHead("the head does not end with an empty line")
    first, *fields = lines[:-2]
    if any(c < " " and c != "\t" for line in lines for c in line) or "\x7f" in "".join(lines):
        raise BadHead("the head has a control character in it")
    if len(fields) > MOST_FIELDS:
        raise BadHead(f"the head has more than {MOST_FIELDS} fields")
    headers = []
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadHead("a line of the head is no field")
        headers.append((name, value.strip(" \t")))
    return first, tuple(headers)


def _framing(headers: Headers) -> Framing:
    coded, lengths = values(headers, "transfer-encoding"), values(headers, "content-length")
    if coded:
        if lengths:
            raise BadHead("the head has a Content-Length and a Transfer-Encoding")
        if [value.lower() for value in coded] != ["chunked"]:
            raise BadHead("the head has a Transfer-Encoding other than chunked")
        return "chunked"
    if not lengths:
        return "close"
    if len(set(lengths)) > 1 or not _DIGITS.fullmatch(lengths[0]):
        raise BadHead("the head has no one Content-Length")
    return int(lengths[0])
