"""From a place in an expression to the place in its file, so that every message names the latter.

YAML folds, indents and quotes what it holds. The expression's characters are found again in the
file's text in their order, starting where the value starts; that works for every way to write a
value, and where it does not (an escape that nobody uses), the value's own place is told.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar, cast

import msgspec
from msgspec.structs import replace

from sidecar.policy.cel.nodes import Node, Span

N = TypeVar("N", bound=Node)
_ESCAPES: Final = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/", " ": " ", "0": "\0"}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(\r?\n)|(.))"
)
_PROPERTIES: Final = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)*")
"""Anchor and tag, which stand before a value."""


class Source:
    """A file's text, and where its lines begin."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = _line_starts(text)

    def offset(self, line: int, column: int) -> int | None:
        """The offset of a place; ``None`` when the text has no such line."""
        if not 1 <= line <= len(self._starts):
            return None
        return self._starts[line - 1] + column - 1


class Places:
    """The places of one value's characters. Lines and columns are 1-based, everywhere."""

    def __init__(self, source: Source, value: str, line: int, column: int) -> None:
        """``value`` is what the file holds at ``line`` and ``column``."""
        self._starts = _line_starts(value)
        self._fallback = (line, column)
        self._places = _aligned(source, value, line, column)

    def __call__(self, line: int, column: int) -> tuple[int, int]:
        """The file's line and column of a line and column of the value."""
        if not 1 <= line <= len(self._starts):
            return self._fallback
        return self.of(self._starts[line - 1] + column - 1)

    def of(self, at: int) -> tuple[int, int]:
        """The file's line and column of the value's character number ``at``, from 0."""
        if not self._places:
            return self._fallback
        return self._places[min(max(at, 0), len(self._places) - 1)]


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for at, character in enumerate(text):
        if character == "\n":
            starts.append(at + 1)
    return starts


def _aligned(where: Source, value: str, line: int, column: int) -> list[tuple[int, int]] | None:
    """For each character of the value its place; ``None`` when it is not found again."""
    start = where.offset(line, column)
    if start is None:
        return None
    source = where.text
    place = _Cursor(source, start, line, column)
    properties = _PROPERTIES.match(source, start)
    start = start if properties is None else properties.end()
    head = source[start : start + 1]
    quote = head if head in ("'", '"') and head else ""
    at = start + len(quote)
    if head in ("|", ">") and head:
        # A block scalar begins on the line after its header.
        at = source.find("\n", start) + 1
    found: list[tuple[int, int]] = []
    for character in value:
        if character.isspace():
            # White space is folded: what matters is where the next visible character stands.
            found.append(place.at(min(at, len(source))))
            if source[at : at + 1] == "\\":
                at += _blank(source, at, quote)
            continue
        while width := _blank(source, at, quote):
            at += width
        width = _matches(source, at, character, quote)
        if not width:
            return None
        found.append(place.at(at))
        at += width
    return found


def _blank(source: str, at: int, quote: str) -> int:
    """How many characters of the file stand for one of white space, or for none; 0 for others."""
    if source[at : at + 1].isspace():
        return 1
    meant, width = _escaped(source, at) if quote == '"' else ("x", 0)
    return 0 if meant.strip() else width


def _escaped(source: str, at: int) -> tuple[str, int]:
    """What an escape of a text in double quotes stands for, and how long it is."""
    found = _ESCAPE.match(source, at)
    if found is None:
        return "x", 0
    short, middle, long, end, word = found.groups()
    if end:
        return "", found.end() - at
    number = short or middle or long
    if number and int(number, 16) > 0x10FFFF:
        return "x", 0
    return chr(int(number, 16)) if number else _ESCAPES.get(word, "x"), found.end() - at


def _matches(source: str, at: int, character: str, quote: str) -> int:
    """How many characters of the file stand for this one; 0 when they stand for another."""
    if quote == '"' and source[at : at + 1] == "\\":
        meant, width = _escaped(source, at)
        return width if meant == character else 0
    if quote == "'" and source[at : at + 2] == "''":
        return 2 if character == "'" else 0
    return 1 if source[at : at + 1] == character else 0


class _Cursor:
    """Offsets to lines and columns, asked in rising order."""

    def __init__(self, source: str, offset: int, line: int, column: int) -> None:
        self._source = source
        self._offset = offset
        self._line = line
        self._column = column

    def at(self, offset: int) -> tuple[int, int]:
        for character in self._source[self._offset : offset]:
            if character == "\n":
                self._line += 1
                self._column = 1
            else:
                self._column += 1
        self._offset = max(self._offset, offset)
        return self._line, self._column


def relocated(tree: N, places: Places) -> N:
    """The tree with the file's lines and columns in its spans.

    ``start`` and ``end`` still count in the expression's own text, which is what is quoted.
    """
    changes: dict[str, object] = {}
    for name in tree.__struct_fields__:
        value = getattr(tree, name)
        if isinstance(value, Span):
            line, column = places(value.line, value.column)
            changes[name] = Span(line, column, value.start, value.end)
        elif isinstance(value, Node | tuple):
            changes[name] = _below(value, places)
    return replace(tree, **changes)


def _below(value: object, places: Places) -> object:
    if isinstance(value, tuple):
        return tuple(_below(each, places) for each in value)
    return relocated(cast("Node", value), places) if isinstance(value, msgspec.Struct) else value
