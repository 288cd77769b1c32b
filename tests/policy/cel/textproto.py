"""A reader of protobuf's text format, as far as cel-spec's conformance files use it.

A message is a ``dict`` of field name to the list of its values, in the file's order; a value
is a message, a ``str``, ``bytes`` are kept in a ``str`` of code points below 256, a number as
its text in ``Word``, as are enum names.
"""

from __future__ import annotations

import re
from typing import TypeAlias

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<any>\[[^\]\s]*[./][^\]\s]*\])
    |(?P<word>[-+]?[A-Za-z0-9_.+\-]+)
    |(?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class Word(str):
    """A bare token: a number or a name."""


class Text(str):
    """A quoted string; ``octets`` is what it means for a bytes field."""

    octets: bytes


Message: TypeAlias = "dict[str, list[Message | Text | Word]]"


def _unquote(literals: list[str]) -> Text:
    text = ""
    octets = b""
    for literal in literals:
        body = literal[1:-1]
        last = 0
        for match in _ESCAPE.finditer(body):
            plain = body[last : match.start()]
            text += plain
            octets += plain.encode()
            last = match.end()
            octal, hexadecimal, short, long, simple = match.groups()
            if octal or hexadecimal:
                point = int(octal, 8) if octal else int(hexadecimal, 16)
                text += chr(point)
                octets += bytes((point & 255,))
            else:
                character = (
                    chr(int(short or long, 16)) if short or long else _SIMPLE.get(simple, simple)
                )
                text += character
                octets += character.encode()
        text += body[last:]
        octets += body[last:].encode()
    found = Text(octets.decode("utf-8", "surrogateescape"))
    found.octets = octets
    return found


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, f"unreadable at {text[at : at + 40]!r}"
        at = match.end()
        if match.lastgroup is not None:
            found.append((match.lastgroup, match[0]))
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self.at += 1
        return token

    def skip(self, *marks: str) -> bool:
        if self.peek()[0] == "mark" and self.peek()[1] in marks:
            self.at += 1
            return True
        return False

    def message(self, end: str) -> Message:
        fields: Message = {}
        while self.peek() not in (("mark", end), ("end", end)):
            kind, name = self.take()
            assert kind in ("word", "any"), f"a field expected, not {name!r}"
            self.skip(":")
            values = fields.setdefault(name, [])
            if self.skip("["):
                while not self.skip("]"):
                    values.append(self.value())
                    self.skip(",")
            else:
                values.append(self.value())
            self.skip(",", ";")
        self.at += 1
        return fields

    def value(self) -> Message | Text | Word:
        kind, text = self.take()
        if text in ("{", "<"):
            return self.message("}" if text == "{" else ">")
        if kind == "string":
            literals = [text]
            while self.peek()[0] == "string":
                literals.append(self.take()[1])
            return _unquote(literals)
        assert kind == "word", f"a value expected, not {text!r}"
        return Word(text)


def read(text: str) -> Message:
    """The message that a file holds."""
    return _Reader(text).message("")
