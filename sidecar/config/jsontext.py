"""JSON text to a tree of nodes, for the ``mcpServers`` files of other programs.

Comments and trailing commas are taken, because editors write them into these files; everything
else is RFC 8259, and a duplicate key is a fault. Lines and columns are kept.
"""

from __future__ import annotations

import bisect
import json
import re

from sidecar.config.faults import shown
from sidecar.config.nodes import DEEPEST, MOST_NODES, Mapping, Node, Scalar, Sequence, Stop
from sidecar.config.yamltext import Tell

_SPACE = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_LONGEST_NUMBER = 40


def read(text: str, tell: Tell) -> Node | None:
    """The root, ``None`` for a file that holds only space and comments.

    Raises:
        Stop: a syntax error, or a bound that is exceeded.
    """
    return _Reader(text, tell).document()


class _Reader:
    def __init__(self, text: str, tell: Tell) -> None:
        self._text = text
        self._tell = tell
        self._at = 0
        self._nodes = 0
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._decoder = json.JSONDecoder()

    def document(self) -> Node | None:
        if not self._peek():
            return None
        root = self._value(0)
        if self._peek():
            raise self._stop("one value was expected; something follows it")
        return root

    def _place(self, at: int) -> tuple[int, int]:
        line = bisect.bisect_right(self._lines, at)
        return line, at - self._lines[line - 1] + 1

    def _stop(self, message: str, at: int | None = None) -> Stop:
        return Stop(*self._place(self._at if at is None else at), f"not valid JSON: {message}")

    def _peek(self) -> str:
        """The next character that counts, empty at the end."""
        space = _SPACE.match(self._text, self._at)
        if space is not None:
            self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise self._stop(f"nested deeper than {DEEPEST} levels")
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise self._stop(f"more than {MOST_NODES} values")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first == '"':
            return self._string()
        return self._word()

    def _object(self, depth: int) -> Mapping:
        node = Mapping(*self._place(self._at), entries={})
        self._at += 1
        while (first := self._peek()) != "}":
            if first != '"':
                raise self._stop('a key in double quotes, or "}", was expected')
            key = self._string()
            if self._peek() != ":":
                raise self._stop('":" was expected after the key')
            self._at += 1
            value = self._value(depth + 1)
            if key.text in node.entries:
                line = node.entries[key.text][0].line
                message = f'"{shown(key.text)}" is here twice; the first is at line {line}'
                self._tell(key.line, key.column, message)
            else:
                node.entries[key.text] = (key, value)
            self._comma("}")
        self._at += 1
        return node

    def _array(self, depth: int) -> Sequence:
        node = Sequence(*self._place(self._at), items=[])
        self._at += 1
        while self._peek() != "]":
            node.items.append(self._value(depth + 1))
            self._comma("]")
        self._at += 1
        return node

    def _comma(self, end: str) -> None:
        following = self._peek()
        if following == ",":
            self._at += 1
        elif following != end:
            raise self._stop(f'"," or "{end}" was expected')

    def _string(self) -> Scalar:
        start = self._at
        try:
            value, self._at = self._decoder.raw_decode(self._text, start)
        except ValueError as error:
            at = error.pos if isinstance(error, json.JSONDecodeError) else start
            raise self._stop("a text that does not end, or a bad escape in it", at) from None
        return Scalar(*self._place(start), value=value, text=value)

    def _word(self) -> Scalar:
        start = self._at
        number = _NUMBER.match(self._text, start)
        if number is not None:
            self._at = number.end()
            text = number.group()
            whole = text.lstrip("-").isdigit() and len(text) <= _LONGEST_NUMBER
            return Scalar(*self._place(start), value=int(text) if whole else float(text), text=text)
        for word, value in _WORDS.items():
            if self._text.startswith(word, start):
                self._at += len(word)
                return Scalar(*self._place(start), value=value, text=word)
        raise self._stop("a value was expected")
