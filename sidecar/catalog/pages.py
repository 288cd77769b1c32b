"""Lists in pages, with cursors that outlive changes between two pages.

A cursor says where a walk stands: which order of keys it began with (a digest), how far it
got, and the last key it was given. The order itself is kept here for a while, so that a walk
under way meets each entry that stays exactly once, whatever is added, removed or moved around
it. Where the order is no longer known (too many walks since, another replica, a restart) the
walk goes on behind the last key it was given.

Equal lists have equal cursors: nothing in them depends on time or on this process.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from sidecar.catalog.shelf import Entry, Kind, Shelf
from sidecar.wire import json

PAGE_ENTRIES = 1000
PAGE_BYTES = 1 << 20
_WALKS = 32
_CURSOR_LIMIT = 512


class BadCursor(ValueError):
    """A cursor that was not made here."""


@dataclass(frozen=True, slots=True)
class Page:
    """``items`` is a JSON array; ``cursor`` leads on, ``None`` at the end."""

    items: bytes
    cursor: str | None = None


class _Cursor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    kind: str
    mark: str
    offset: int
    server: str
    key: str
    index: int


_decoder = msgspec.json.Decoder(_Cursor)


@dataclass(frozen=True, slots=True)
class _Walk:
    """An order somebody walks along: server and key of each entry."""

    mark: str
    order: Sequence[tuple[str, str]]


class Pages:
    """Cuts lists into pages and keeps the orders of recent walks."""

    def __init__(self, entries: int = PAGE_ENTRIES, size: int = PAGE_BYTES) -> None:
        self._entries = entries
        self._size = size
        self._walks: OrderedDict[tuple[Kind, str], _Walk] = OrderedDict()

    def page(
        self,
        kind: Kind,
        shelves: Sequence[Shelf],
        cursor: str | None,
        *,
        own: bool = False,
        offers: Callable[[Entry], bool] | None = None,
        shown: Callable[[Entry, bytes], bytes | None] | None = None,
    ) -> Page:
        """One page of what the shelves hold, in their order.

        ``own`` shows the servers' own names. ``offers`` leaves out what it denies; ``shown`` is
        asked of harnesses alone, whose definitions depend on who looks.

        Raises:
            BadCursor: ``cursor`` is none of ours.
        """
        rows: Sequence[Entry | None]
        walk: _Walk | None = None
        if cursor is None:
            offset, rows = 0, merged(kind, shelves)
        else:
            at = _read(kind, cursor)
            walk = self._walks.get((kind, at.mark))
            if walk is not None and at.offset <= len(walk.order):
                offset, rows = at.offset, _present(kind, shelves, walk)
            else:
                rows = merged(kind, shelves)
                offset, walk = _behind(rows, at), None
        parts: list[bytes] = []
        size = 0
        for index in range(offset, len(rows)):
            entry = rows[index]
            if entry is None or (offers is not None and not offers(entry)):
                continue
            data = entry.own_json if own else entry.json
            if shown is not None and kind == "tools" and entry.name == entry.server:
                told = shown(entry, data)
                if told is None:
                    continue
                data = told
            if parts and (len(parts) >= self._entries or size + len(data) > self._size):
                if walk is None:
                    walk = _Walk(_mark(kind, shelves), [(e.server, e.key) for e in rows if e])
                return Page(_array(parts), self._cursor(kind, walk, index))
            parts.append(data)
            size += len(data) + 1
        return Page(_array(parts))

    def _cursor(self, kind: Kind, walk: _Walk, offset: int) -> str:
        """A cursor to ``offset``; the walk is kept for whoever comes back with it."""
        self._walks[kind, walk.mark] = walk
        self._walks.move_to_end((kind, walk.mark))
        while len(self._walks) > _WALKS:
            self._walks.popitem(last=False)
        server, key = walk.order[offset - 1]
        index = 0
        while index < offset and walk.order[offset - 1 - index][0] == server:
            index += 1
        value = _Cursor(kind, walk.mark, offset, server, _short(key), index)
        return base64.urlsafe_b64encode(json.encode(value)).rstrip(b"=").decode()


def merged(kind: Kind, shelves: Sequence[Shelf]) -> list[Entry]:
    """The shelves' entries one after the other; of a URI that several list, the first one's."""
    rows = [entry for shelf in shelves for entry in shelf.rows[kind]]
    if kind in ("tools", "prompts") or len(shelves) == 1:
        return rows
    first: dict[str, Entry] = {}
    for entry in rows:
        first.setdefault(entry.key, entry)
    return list(first.values())


def _present(kind: Kind, shelves: Sequence[Shelf], walk: _Walk) -> list[Entry | None]:
    """The walk's entries as they are now, ``None`` for those that are gone."""
    nothing: dict[str, Entry] = {}
    by_key = {shelf.config.name: shelf.by_key[kind] for shelf in shelves}
    return [by_key.get(server, nothing).get(key) for server, key in walk.order]


def _behind(rows: Sequence[Entry], at: _Cursor) -> int:
    """The best place to go on where the walk's own order is not known."""
    begin: int | None = None
    length = 0
    for position, entry in enumerate(rows):
        if entry.server == at.server:
            begin = position if begin is None else begin
            length += 1
            if _short(entry.key) == at.key:
                return position + 1
    if begin is None:
        return min(at.offset, len(rows))
    return begin + min(at.index, length)


def _mark(kind: Kind, shelves: Sequence[Shelf]) -> str:
    digest = hashlib.sha256()
    for shelf in shelves:
        digest.update(shelf.config.name.encode() + b"\0" + shelf.mark(kind))
    return digest.hexdigest()[:16]


def _short(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _array(parts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(parts) + b"]"


def _read(kind: Kind, cursor: str) -> _Cursor:
    if len(cursor) > _CURSOR_LIMIT:
        raise BadCursor
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        data = base64.b64decode(padded, altchars=b"-_", validate=True)
        at = _decoder.decode(data)
    except (UnicodeEncodeError, binascii.Error, msgspec.MsgspecError, RecursionError):
        raise BadCursor from None
    if at.kind != kind or at.offset < 0 or at.index < 0:
        raise BadCursor
    return at
