"""Change some top-level values of a JSON object and no other byte of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

import msgspec

from sidecar.model import Fields
from sidecar.wire import json

_KEY = re.compile(rb'[ \t\r\n]*"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_NEXT = re.compile(rb"[ \t\r\n]*([,}])")
_OPEN = re.compile(rb"[ \t\r\n]*\{")


def replace(data: bytes, changes: Mapping[str, bytes]) -> bytes:
    """``data``, a JSON object, with ``changes`` (key to JSON) in the place of its own values.

    A key that it does not have is added at its end. Everything else keeps its bytes; an object
    that says a key twice keeps the last of them, as JSON readers do.

    Raises:
        BadJson: ``data`` is not a JSON object.
    """
    fields = json.fields(data)
    spans = _spans(data, fields)
    if spans is None:
        data = json.encode(fields)
        spans = _spans(data, fields) or {}
    out = bytearray()
    done = 0
    for key, (start, end) in spans.items():
        if key in changes:
            out += data[done:start]
            out += changes[key]
            done = end
    added = [key for key in changes if key not in fields]
    if not added:
        out += data[done:]
        return bytes(out)
    close = data.rindex(b"}")
    out += data[done:close]
    for position, key in enumerate(added):
        if fields or position:
            out += b","
        out += json.encode(key) + b":" + changes[key]
    out += data[close:]
    return bytes(out)


def _spans(data: bytes, fields: Fields) -> dict[str, tuple[int, int]] | None:
    """Where each value stands, or ``None`` when the object says a key twice.

    The decoder has already checked the grammar and found the values, in their order; this only
    walks over keys and commas, so its cost does not grow with what the values hold.
    """
    opened = _OPEN.match(data)
    if opened is None:
        return None
    position = opened.end()
    spans: dict[str, tuple[int, int]] = {}
    last = b"{"
    for key, raw in fields.items():
        before = _KEY.match(data, position)
        value = bytes(cast("msgspec.Raw", raw))
        if before is None or not data.startswith(value, before.end()):
            return None
        position = before.end() + len(value)
        spans[key] = (before.end(), position)
        after = _NEXT.match(data, position)
        if after is None:
            return None
        position = after.end()
        last = after.group(1)
    return spans if last == b"}" or not fields else None
