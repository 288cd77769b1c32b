"""What ``redact`` rules take out of a result, so that what is left is still a result.

Structured content and the text that repeats it say the same afterwards. Only what has to be
read is decoded; a result whose parts cannot be is not handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from sidecar.gate.content import plain
from sidecar.gate.fit import Unfit, fitted
from sidecar.gate.patterns import Budget, Patterns, is_document
from sidecar.gate.shapes import mended, text_block
from sidecar.model import Fields, JsonObject, Redaction
from sidecar.wire import json

Path = tuple[str | int | None, ...]

_OURS: Final = frozenset(("isError", "resultType", "nextCursor", "ttlMs", "cacheScope"))
"""Fields of the protocol's own, which hold nobody's words."""
_BLOCKS: Final = frozenset(("content", "contents", "messages", "completion"))
"""Fields whose objects have the protocol's names."""
UNFIT: Final = (
    "Policy takes something out of this result, and what is left does not fit the output schema of "
    "its tool, so the structured content is left out. The tool itself has run."
)
"""What a result says first whose structured content had to go."""
_MOST_REMOVED: Final = 100
_LEAST_TEXT: Final = 4
_LEAST_NUMBER: Final = 6


class TooLarge(Exception):
    """What is put in place makes the result larger than it may be."""


def redact(
    fields: Fields,
    redactions: Sequence[Redaction],
    *,
    schema: JsonObject | None = None,
    limit: int = 16 << 20,
) -> Fields:
    """The result without what the rules take out, the same object where that is nothing.

    ``schema`` is the output schema that the tool declares, so values of structured content keep
    their types: a number becomes 0, a truth false, a list empty, and whatever else the schema
    asks for. Where nothing fits, the result is an error without structured content. ``limit`` is
    in bytes.

    Raises:
        BadJson: a part that has to be read cannot be.
        TooLarge: see there.
    """
    work = _Work(fields, schema)
    for redaction in redactions:
        if not redaction.paths and not redaction.patterns:
            work.everything(redaction.replacement)
        for path in redaction.paths:
            work.path(path, redaction.replacement)
    # Patterns come last, and see what the paths left.
    budget = Budget()
    for redaction in redactions:
        if redaction.patterns:
            work.patterns(Patterns(redaction.patterns, redaction.replacement, budget), redaction)
    return work.finish(limit)


class _Work:
    """A result while things are taken out. ``values`` has the parts that were read."""

    def __init__(self, fields: Fields, schema: JsonObject | None) -> None:
        self._original = fields
        self._fields = dict(fields)
        self._before: dict[str, object] = {}
        self._values: dict[str, object] = {}
        self._schema = schema
        self._typed = schema is not None
        self._changed = False

    def _read(self, key: str) -> object:
        if key not in self._values:
            value = plain(self._fields[key])
            if key == "_meta" and isinstance(value, dict):
                value = {name: plain(item) for name, item in value.items()}
            self._before[key] = self._values[key] = value
        return self._values[key]

    def _write(self, key: str, value: object, replacement: str) -> None:
        before = self._values[key]
        if value is not before:
            self._changed = True
            self._values[key] = mended(key, before, value, replacement)

    # ------------------------------------------------------------------------ all of it

    def everything(self, replacement: str) -> None:
        """Nothing of what the server said is left."""
        self._changed = True
        kept: Fields = {key: value for key, value in self._fields.items() if key in _OURS}
        meta = self._fields.get("_meta")
        if isinstance(meta, dict) and "ifc" in meta:
            # What it says of its own trust restricts, and names nothing.
            kept["_meta"] = {"ifc": meta["ifc"]}
        structured = self._read("structuredContent") if "structuredContent" in self._fields else {}
        for key in ("contents", "messages", "completion"):
            if key in self._fields:
                kept[key] = mended(key, None, False, replacement)
        if "content" in self._fields or "structuredContent" in self._fields:
            kept["content"] = [text_block(replacement)]
        if self._typed and "structuredContent" in self._fields:
            kept["structuredContent"] = blank(structured, replacement, typed=True)
        self._fields = kept
        self._before, self._values = {}, {}
        if "structuredContent" in kept:
            # Read, with what it was: at the end it is made to fit.
            self._before["structuredContent"] = structured
            self._values["structuredContent"] = kept["structuredContent"]

    # --------------------------------------------------------------------------- by path

    def path(self, path: Path, replacement: str) -> None:
        """Take out what the path leads to."""
        root, rest = path[0], path[1:]
        if isinstance(root, int):
            return
        for key in [name for name in self._fields if root is None or name == root]:
            if key not in _OURS:
                self._below(key, rest, replacement)

    def _below(self, key: str, rest: Path, replacement: str) -> None:
        structured = key == "structuredContent"
        before = self._read(key)
        removed: list[object] = []

        def take(value: object) -> object:
            removed.append(value)
            return blank(value, replacement, typed=self._typed and structured)

        mirrors = list(self._mirrors())
        if not rest:
            self._whole(key, take(before), replacement)
        else:
            self._write(key, _at(before, rest, take), replacement)
        if structured and removed:
            self._repeat(mirrors, removed, replacement)
        elif key == "content" and any(self._gone(position) for position in mirrors):
            # The text that was taken out stands in structured content as well.
            value = blank(self._read("structuredContent"), replacement, typed=self._typed)
            self._whole("structuredContent", value, replacement)

    def _whole(self, key: str, value: object, replacement: str) -> None:
        """All of one field: what stands in its place has to be of its kind."""
        if key in ("content", "contents", "messages", "completion", "description"):
            self._write(key, value if key == "description" else False, replacement)
        elif key == "structuredContent" and self._typed:
            self._write(key, value, replacement)
        else:
            self._changed = True
            del self._fields[key], self._values[key], self._before[key]

    def _mirrors(self) -> Iterator[int]:
        """The text blocks that repeat structured content as JSON, as the spec advises."""
        if "structuredContent" not in self._fields or "content" not in self._fields:
            return
        structured = self._read("structuredContent")
        for position, text in _texts(self._read("content")):
            if is_document(text):
                try:
                    same = json.decode(text.encode()) == structured
                except (json.BadJson, UnicodeEncodeError):
                    continue
                if same:
                    yield position

    def _gone(self, position: int) -> bool:
        before, after = self._before["content"], self._values["content"]
        if not isinstance(before, list) or not isinstance(after, list):
            return True
        return len(before) != len(after) or before[position] is not after[position]

    def _repeat(self, mirrors: Sequence[int], removed: Sequence[object], replacement: str) -> None:
        """Make texts say what structured content says now."""
        if "content" not in self._fields:
            return
        content = self._read("content")
        if not isinstance(content, list):
            return
        words = _words(removed)
        items = list(content)
        for position, text in _texts(content):
            if position in mirrors and "structuredContent" in self._values:
                told = json.encode(self._values["structuredContent"]).decode()
            elif position in mirrors or len(words) > _MOST_REMOVED:
                told = replacement
            else:
                told = text
                for word in words:
                    told = told.replace(word, replacement)
            if told != text:
                items[position] = {**cast("JsonObject", content[position]), "text": told}
        if items != content:
            self._write("content", items, replacement)

    # ------------------------------------------------------------------------ by pattern

    def patterns(self, patterns: Patterns, redaction: Redaction) -> None:
        """Take out what the patterns match, wherever a string of the server's stands."""
        for key in [name for name in self._fields if name not in _OURS]:
            value = self._read(key)
            cleaned = _in_blocks(value, patterns) if key in _BLOCKS else patterns.value(value)
            self._write(key, cleaned, redaction.replacement)

    # ---------------------------------------------------------------------------- the end

    def finish(self, limit: int) -> Fields:
        """The fields, those that are as they were still unread."""
        if not self._changed:
            return self._original
        self._fit()
        size = 0
        for key, value in self._values.items():
            if value is not self._before[key]:
                self._fields[key] = value
                size += len(json.encode(value))
        if size > limit:
            raise TooLarge
        return self._fields

    def _fit(self) -> None:
        """Make structured content what the tool's schema says it is, and texts repeat that."""
        if self._schema is None or "structuredContent" not in self._values:
            return
        before, value = (which["structuredContent"] for which in (self._before, self._values))
        mirrors = list(self._mirrors())
        try:
            made = fitted(before, value, self._schema)
        except Unfit:
            del self._fields["structuredContent"]
            del self._values["structuredContent"], self._before["structuredContent"]
            content = self._read("content") if "content" in self._fields else []
            told = [text_block(UNFIT), *(content if isinstance(content, list) else [])]
            self._before.setdefault("content", None)
            self._values["content"] = told
            self._fields["isError"] = True
            return
        if made is value:
            return
        self._values["structuredContent"] = made
        if mirrors:
            content = list(cast("list[object]", self._read("content")))
            for position in mirrors:
                block = cast("JsonObject", content[position])
                content[position] = {**block, "text": json.encode(made).decode()}
            self._values["content"] = content


def blank(value: object, replacement: str, *, typed: bool) -> object:
    """What stands in the place of a value."""
    if not typed or type(value) is str:
        return replacement
    if type(value) is dict:
        items = cast("JsonObject", value)
        return {key: blank(item, replacement, typed=True) for key, item in items.items()}
    if type(value) is list:
        return []
    if type(value) is bool:
        return False
    return 0 if type(value) in (int, float) else None


def _at(value: object, path: Path, take: Callable[[object], object]) -> object:
    """The value with what the path leads to taken out, the same where it leads nowhere."""
    if not path:
        return take(value)
    step, rest = path[0], path[1:]
    if type(value) is dict:
        names = list(value) if step is None else [step] if step in value else []
        found = {name: _at(value[name], rest, take) for name in names}
        return {**value, **found} if any(found[n] is not value[n] for n in names) else value
    if type(value) is list:
        if step is None:
            places = list(range(len(value)))
        elif isinstance(step, int) and -len(value) <= step < len(value):
            places = [step % len(value)]
        else:
            return value
        items = list(value)
        for place in places:
            items[place] = _at(value[place], rest, take)
        return items if any(items[p] is not value[p] for p in places) else value
    return value


def _texts(content: object) -> Iterator[tuple[int, str]]:
    """Place and text of each text block."""
    if isinstance(content, list):
        for position, block in enumerate(content):
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                yield position, block["text"]


def _words(removed: Sequence[object]) -> list[str]:
    """What was taken out, as it may stand in a text; the longest first."""
    found: set[str] = set()
    left = list(removed)
    while left and len(found) <= _MOST_REMOVED:
        value = left.pop()
        if type(value) is dict:
            left += value.values()
        elif type(value) is list:
            left += value
        elif type(value) is str and len(value) >= _LEAST_TEXT:
            found.add(value)
        elif type(value) in (int, float) and len(word := json.encode(value)) >= _LEAST_NUMBER:
            found.add(word.decode())
    return sorted(found, key=lambda word: (-len(word), word))


def _in_blocks(value: object, patterns: Patterns) -> object:
    """As ``Patterns.value``, where the names of members are the protocol's, and texts may be
    documents of their own."""
    if type(value) is list:
        items = [_in_blocks(item, patterns) for item in value]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if type(value) is dict:
        members = cast("JsonObject", value)
        found = {
            key: patterns.text(item) if type(item) is str else _in_blocks(item, patterns)
            for key, item in members.items()
        }
        return found if any(found[key] is not members[key] for key in members) else value
    return patterns.text(value) if type(value) is str else value
