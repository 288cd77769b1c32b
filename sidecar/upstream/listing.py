"""Everything a server offers: all pages of all its lists, read within bounds.

A list that could be read to its end, or to a bound, replaces what was known; one of whose pages
failed does not (``Failed``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from sidecar.config import Limits
from sidecar.mcp import definitions, methods
from sidecar.model import Definition, Era, Fields, JsonObject, RpcError, Unavailable
from sidecar.upstream.complaints import Complaints
from sidecar.wire import json

List = Literal["tools", "prompts", "resources", "templates"]

METHODS: Mapping[List, str] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
}
_KEYS: Mapping[List, str] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
}
_CAPABILITIES: Mapping[List, str] = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resources",
}
ALL: frozenset[List] = frozenset(METHODS)

Ask = Callable[[str, JsonObject], Awaitable[Fields]]
"""Sends one request; raises ``RpcError`` or ``Unavailable``."""

Refuse = Callable[[JsonObject], str | None]
"""Why a well-formed entry is dropped all the same, or ``None``."""

LIST_BYTES = 4
"""A whole list may hold this many times ``limits.result``, however many pages it takes."""

_METHOD_NOT_FOUND = -32601

_page_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_text_decoder = msgspec.json.Decoder(str | None)


class Failed(Exception):
    """A page could not be read: what was known stays. The message names the method."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``pages`` and ``size`` (bytes) of one list, ``depth`` of one entry."""

    pages: int
    size: int
    depth: int

    @classmethod
    def of(cls, limits: Limits) -> Bounds:
        return cls(limits.list_pages, limits.result * LIST_BYTES, limits.depth)


def declared(capabilities: JsonObject) -> frozenset[List]:
    """The lists that a server with these capabilities has. An object, even empty, declares."""
    return frozenset(
        which for which, key in _CAPABILITIES.items() if isinstance(capabilities.get(key), dict)
    )


async def read(
    which: List,
    ask: Ask,
    bounds: Bounds,
    complaints: Complaints,
    refuse: Refuse | None = None,
    *,
    era: Era = Era.LEGACY,
) -> tuple[Definition, ...]:
    """Read one list to its end. ``era`` is the one in which the server tells it.

    Entries that no client could read are left out, or put right where that loses nothing.
    A cursor that comes back a second time, too many pages or too many bytes end it with one
    warning; what was read until then counts.

    Raises:
        Failed: a page was answered with an error, or not at all.
    """
    method = METHODS[which]
    found: dict[str, Definition] = {}
    bad = mended = size = 0
    reason = ""
    cursor: str | None = None
    seen: set[str] = set()
    for page in range(bounds.pages):
        raws, cursor = await _page(method, methods.LISTS[method], ask, cursor, first=page == 0)
        for raw in raws:
            size += len(memoryview(raw))
            definition, why, righted = _entry(raw, which, bounds.depth, refuse, era)
            mended += righted
            if definition is None or definition.key in found:
                bad += 1
                reason = reason or why or "its name is taken by an earlier one"
            else:
                found[definition.key] = definition
        if cursor is None:
            complaints.forgive(f"{method} does not end")
            break
        if cursor in seen:
            complaints.warn(f"{method} does not end", f"{method} repeats a cursor; its list ends")
            break
        if size > bounds.size:
            complaints.warn(
                f"{method} does not end",
                f"{method} has more than {bounds.size} bytes in all (4 × limits.result); "
                "the rest is left out",
            )
            break
        seen.add(cursor)
        # A server that answers at once must not keep everybody else from the loop.
        await asyncio.sleep(0)
    else:
        complaints.warn(
            f"{method} does not end",
            f"{method} has more than {bounds.pages} pages (limits.list_pages); "
            "the rest is left out",
        )
    if bad:
        complaints.warn(
            f"{method} bad entries", f"{bad} of its {which} left out; the first because {reason}"
        )
    else:
        complaints.forgive(f"{method} bad entries")
    if mended:
        complaints.warn(
            f"{method} mended",
            f"{mended} of its {which} are not as the protocol has them; they are offered without "
            "what no client could read",
        )
    else:
        complaints.forgive(f"{method} mended")
    return tuple(found.values())


async def _page(
    method: str, list_key: str, ask: Ask, cursor: str | None, *, first: bool
) -> tuple[list[msgspec.Raw], str | None]:
    """One page: its entries unread, and the cursor of the next one."""
    try:
        fields = await ask(method, {} if cursor is None else {"cursor": cursor})
    except RpcError as error:
        if first and error.code == _METHOD_NOT_FOUND:
            return [], None
        raise Failed(f"{method} failed with error {error.code}") from error
    except Unavailable as error:
        raise Failed(f"{method} failed: {error.why}") from error
    try:
        entries = fields.get(list_key)
        raws = _page_decoder.decode(entries) if isinstance(entries, msgspec.Raw) else None
        after = fields.get("nextCursor")
        # An empty cursor can lead nowhere but to the first page again.
        following = (
            _text_decoder.decode(after) if isinstance(after, msgspec.Raw) else None
        ) or None
    except (msgspec.DecodeError, RecursionError):
        raise Failed(f"{method} failed: the answer is not a page") from None
    if raws is None:
        raise Failed(f"{method} failed: the answer has no list {list_key!r}")
    return raws, following or None


def _entry(
    raw: msgspec.Raw, which: List, depth: int, refuse: Refuse | None, era: Era
) -> tuple[Definition | None, str, bool]:
    """One entry and whether it was put right, or why it is left out."""
    key = _KEYS[which]
    try:
        value = json.decode(raw, depth)
    except json.BadJson as error:
        return None, str(error), False
    if not isinstance(value, dict):
        return None, "it is no object", False
    name = value.get(key)
    if not isinstance(name, str) or not name:
        return None, f"it has no {key}", False
    if refuse is not None and (why := refuse(value)) is not None:
        return None, why, False
    try:
        righted = definitions.put_right(which, value, era)
    except definitions.BadDefinition as error:
        return None, str(error), False
    if righted is value:
        return Definition(name, bytes(raw)), "", False
    return Definition(name, _spelled(raw, value, righted)), "", True


def _spelled(raw: msgspec.Raw, before: JsonObject, after: JsonObject) -> bytes:
    """``after`` as JSON; what is as it was before keeps its bytes."""
    spelling = json.fields(raw)
    return json.encode(
        {
            key: spelling[key] if key in before and before[key] is value else value
            for key, value in after.items()
        }
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """Two lists compared by key and by value: the order of keys inside an object is no change."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    moved: bool

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.moved)


def difference(before: tuple[Definition, ...], after: tuple[Definition, ...]) -> Difference:
    """What is new in ``after``, gone from ``before``, and other than it was."""
    old = {entry.key: entry.json for entry in before}
    new = {entry.key: entry.json for entry in after}
    return Difference(
        tuple(key for key in new if key not in old),
        tuple(key for key in old if key not in new),
        tuple(key for key in new if key in old and not _same(old[key], new[key])),
        [key for key in old if key in new] != [key for key in new if key in old],
    )


def _same(before: bytes, after: bytes) -> bool:
    return before == after or json.digest(json.decode(before, _DEEPER)) == json.digest(
        json.decode(after, _DEEPER)
    )


# Entries were held to the configured depth when they were read.
_DEEPER = 10_000
