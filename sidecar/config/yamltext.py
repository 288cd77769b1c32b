"""YAML text to a tree of nodes, bounded, with every position.

Built on the parser's events rather than on its constructors: those keep no positions, build
any Python object a tag names, take the last of duplicate keys, and recurse as deep as the file.
Plain scalars are resolved as YAML 1.1 does (``yes``, ``off`` and ``0x10`` are what people know
from other tools), except for base-60 numbers and dates, which stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from sidecar.config.faults import shown
from sidecar.config.nodes import DEEPEST, MOST_NODES, Mapping, Node, Scalar, Sequence, Stop

if TYPE_CHECKING:
    import yaml

# A fault that does not keep the rest from being read: line, column, message.
Tell: TypeAlias = Callable[[int, int, str], None]

_TAG = "tag:yaml.org,2002:"
_TRUE = {"yes", "true", "on"}
_FALSE = {"no", "false", "off"}
_NULL = {"", "~", "null", "Null", "NULL"}
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_LONGEST_NUMBER = 40
_TAGGED: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


class _Open:
    """A collection that has not ended; ``key`` waits for its value, ``merges`` for the end."""

    __slots__ = ("anchor", "key", "merges", "node")

    def __init__(self, node: Sequence | Mapping, anchor: str | None) -> None:
        self.node = node
        self.anchor = anchor
        self.key: Scalar | None = None
        self.merges: list[tuple[Scalar, Node]] = []


def read(text: str, tell: Tell) -> Node | None:
    """The document's root, ``None`` when there is none.

    Args:
        text: the decoded file.
        tell: called for each fault that leaves the rest readable (duplicate keys, tags, …).

    Raises:
        Stop: a syntax error, a second document, or a bound that is exceeded.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(tell)
    documents = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    line, column = _place(event)
                    raise Stop(line, column, "a second document starts here; write one only")
            else:
                builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise Stop(line, column, "a character that YAML does not allow here") from None
    return builder.root


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Stop:
    """The parser's complaint at its place; a tab is told as what it is."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    lines = text.split("\n")
    here = lines[line] if line < len(lines) else ""
    indent = here[: len(here) - len(here.lstrip())]
    if "\t" in indent and column <= len(indent):
        message = "a tab is used to indent; YAML takes spaces only"
    else:
        said = error.problem or "cannot be read"
        context = f" {error.context}" if error.context else ""
        message = f"not valid YAML: {said}{context}"
    return Stop(line + 1, column + 1, message)


def _place(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


class _Builder:
    """Takes events in order; holds the collections that are still open."""

    def __init__(self, tell: Tell) -> None:
        self.root: Node | None = None
        self._tell = tell
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}

    def take(self, event: yaml.Event) -> None:
        """One event of the document."""
        import yaml

        if isinstance(event, yaml.ScalarEvent):
            self._closed(self._scalar(event), event.anchor)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._start(Sequence(*_place(event), items=[]), event, "seq")
        elif isinstance(event, yaml.MappingStartEvent):
            self._start(Mapping(*_place(event), entries={}), event, "map")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)

    def _start(self, node: Sequence | Mapping, event: yaml.CollectionStartEvent, tag: str) -> None:
        if event.tag not in (None, "!", _TAG + tag):
            self._tell(node.line, node.column, f"the tag {shown(event.tag)} is not used here")
        if len(self._open) >= DEEPEST:
            raise Stop(node.line, node.column, f"nested deeper than {DEEPEST} levels")
        if event.anchor is not None:
            # An alias to it before its end would make a tree that contains itself.
            self._anchors.pop(event.anchor, None)
        self._open.append(_Open(node, event.anchor))

    def _end(self) -> None:
        done = self._open.pop()
        if isinstance(done.node, Mapping) and done.merges:
            self._merge(done.node, done.merges)
        self._closed(done.node, done.anchor)

    def _alias(self, event: yaml.AliasEvent) -> None:
        line, column = _place(event)
        name = event.anchor or ""
        target = self._anchors.get(name)
        if target is None:
            inside = any(frame.anchor == name for frame in self._open)
            why = "contains itself" if inside else "is not defined above"
            raise Stop(line, column, f"the anchor &{shown(name)} {why}")
        self._add(target)

    def _closed(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        self._add(node)

    def _add(self, node: Node) -> None:
        """Put a complete node where it belongs: the root, a list, a key, or a key's value."""
        if not self._open:
            self.root = node
            return
        frame = self._open[-1]
        frame.node.size += node.size
        if frame.node.size > MOST_NODES:
            place = frame.node
            raise Stop(
                place.line,
                place.column,
                f"more than {MOST_NODES} values, aliases counted each time they are used",
            )
        if isinstance(frame.node, Sequence):
            frame.node.items.append(node)
        elif frame.key is None:
            frame.key = self._key(node)
        else:
            key, frame.key = frame.key, None
            if key.value == "<<":
                frame.merges.append((key, node))
            elif key.text in frame.node.entries:
                first = frame.node.entries[key.text][0]
                self._tell(
                    key.line,
                    key.column,
                    f'"{shown(key.text)}" is here twice; the first is at line {first.line}',
                )
            else:
                frame.node.entries[key.text] = (key, node)

    def _key(self, node: Node) -> Scalar:
        """Keys are text, whatever they look like: a server may be called ``no`` or ``7``."""
        if isinstance(node, Scalar):
            return node
        self._tell(node.line, node.column, "a key is text, not a list or a mapping")
        return Scalar(node.line, node.column, None, f"?{node.line}:{node.column}")

    def _merge(self, into: Mapping, merges: list[tuple[Scalar, Node]]) -> None:
        """``<<``: keys of other mappings; what is written here wins, then the earlier one."""
        for key, value in merges:
            for other in value.items if isinstance(value, Sequence) else (value,):
                if not isinstance(other, Mapping):
                    self._tell(key.line, key.column, "<< takes a mapping, or a list of mappings")
                    continue
                for name, entry in other.entries.items():
                    into.entries.setdefault(name, entry)

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        line, column = _place(event)
        text = event.value
        if event.tag in (None, "!"):
            plain = event.implicit[0] and event.tag is None
            return Scalar(line, column, resolve(text) if plain else text, text)
        if event.tag == _TAG + "str":
            return Scalar(line, column, text, text)
        value = resolve(text)
        kinds = _TAGGED.get(event.tag.removeprefix(_TAG))
        if kinds is None:
            self._tell(line, column, f"the tag {shown(event.tag)} is not used here")
        elif not isinstance(value, kinds):
            self._tell(line, column, f"this is not {shown(event.tag.removeprefix(_TAG))}")
        return Scalar(line, column, value, text)


def resolve(text: str) -> str | int | float | bool | None:
    """What a plain scalar means."""
    if text in _NULL:
        return None
    if len(text) <= 5 and text in (text.lower(), text.capitalize(), text.upper()):
        lower = text.lower()
        if lower in _TRUE:
            return True
        if lower in _FALSE:
            return False
    if text[0] in "0123456789+-." and len(text) <= _LONGEST_NUMBER:
        digits = text.replace("_", "")
        if _INT.fullmatch(text):
            return _integer(digits)
        if _FLOAT.fullmatch(text):
            return float(digits.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _integer(digits: str) -> int:
    sign = -1 if digits.startswith("-") else 1
    bare = digits.lstrip("+-")
    if bare.startswith("0b"):
        return sign * int(bare[2:] or "0", 2)
    if bare.startswith("0x"):
        return sign * int(bare[2:] or "0", 16)
    return sign * int(bare, 8 if bare.startswith("0") else 10)
