"""A parsed file as a tree whose every node knows its place. YAML and JSON both become this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

MOST_BYTES = 4 << 20
"""No configuration file is larger."""
MOST_NODES = 200_000
"""Nor has more values, aliases counted as often as they are used."""
DEEPEST = 64
"""Nor is nested deeper."""


class Stop(Exception):
    """The text cannot be read any further."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.message = message


# Plain classes: making a dataclass costs an import more than reading a typical file does.


class Scalar:
    """One value. ``text`` is how it is written, without its quotes."""

    __slots__ = ("column", "line", "size", "text", "value")

    def __init__(
        self, line: int, column: int, value: str | int | float | bool | None, text: str
    ) -> None:
        self.line = line
        self.column = column
        self.value = value
        self.text = text
        self.size = 1


class Sequence:
    """A list."""

    __slots__ = ("column", "items", "line", "size")

    def __init__(self, line: int, column: int, items: list[Node]) -> None:
        self.line = line
        self.column = column
        self.items = items
        self.size = 1


class Mapping:
    """Keys in the order of the file, each with the place where it stands."""

    __slots__ = ("column", "entries", "line", "size")

    def __init__(self, line: int, column: int, entries: dict[str, tuple[Scalar, Node]]) -> None:
        self.line = line
        self.column = column
        self.entries = entries
        self.size = 1

    def __iter__(self) -> Iterator[tuple[str, Scalar, Node]]:
        for name, (key, value) in self.entries.items():
            yield name, key, value


Node: TypeAlias = Scalar | Sequence | Mapping


def plain(node: Node) -> Plain:
    """The bare values; the tree's bounds have been checked when it was read."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {name: plain(value) for name, _, value in node}


def of(value: Plain) -> Node:
    """The tree of bare values, which have no place in a file (line and column 0).

    Whoever decoded them has checked their depth.
    """
    if isinstance(value, list):
        return Sequence(0, 0, [of(item) for item in value])
    if isinstance(value, dict):
        return Mapping(
            0, 0, {key: (Scalar(0, 0, key, key), of(item)) for key, item in value.items()}
        )
    return Scalar(0, 0, value, "" if value is None else str(value))


def kind(node: Node) -> str:
    """What was found, in words a message can use."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return "true or false"
    return "text" if isinstance(node.value, str) else "a number"
