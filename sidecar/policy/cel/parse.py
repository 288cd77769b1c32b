"""Text to a tree. Errors say where, and what to write instead where that can be known."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sidecar.policy.cel.errors import CelSyntaxError
from sidecar.policy.cel.limits import MAX_SOURCE
from sidecar.policy.cel.nodes import Node

if TYPE_CHECKING:
    from lark import UnexpectedCharacters, UnexpectedToken

_building = threading.Lock()


def parse(text: str) -> Node:
    """The tree of one expression.

    Raises:
        CelSyntaxError: with the line and column of what is wrong.
    """
    if len(text) > MAX_SOURCE:
        raise CelSyntaxError(f"the expression is longer than {MAX_SOURCE} characters", 1, 1)
    if not text.strip():
        raise CelSyntaxError("the expression is empty", 1, 1)
    from lark import UnexpectedCharacters, UnexpectedToken

    from sidecar.policy.cel.grammar import lark_parser

    with _building:
        parser = lark_parser()
    try:
        tree: object = parser.parse(text)
    except UnexpectedToken as error:
        raise _unexpected_token(text, error) from None
    except UnexpectedCharacters as error:
        raise _unexpected_characters(text, error) from None
    assert isinstance(tree, Node)
    return tree


_TEXT_OR_COMMENT: Final = re.compile(
    r"""[rR]"{3}[\s\S]*?"{3}|[rR]'{3}[\s\S]*?'{3}"""
    r"""|"{3}(?:[^\\]|\\[\s\S])*?"{3}|'{3}(?:[^\\]|\\[\s\S])*?'{3}"""
    r"""|[rR]"[^"\r\n]*"|[rR]'[^'\r\n]*'"""
    r"""|"(?:[^"\\\r\n]|\\[^\r\n])*"|'(?:[^'\\\r\n]|\\[^\r\n])*'"""
    r"""|(?P<comment>//[^\n]*)"""
)


def comments(text: str) -> Iterator[tuple[int, int]]:
    """Where each comment of an expression begins and ends, white space at its end left out."""
    for found in _TEXT_OR_COMMENT.finditer(text):
        if found["comment"]:
            yield found.start(), found.start() + len(found["comment"].rstrip())


_OPERATORS: Final = {
    "and": "write && for and",
    "or": "write || for or",
    "not": "write ! for not",
    "is": "write == to compare",
}


def _unexpected_token(text: str, error: UnexpectedToken) -> CelSyntaxError:
    token = error.token
    if token.type == "$END":
        line = text.count("\n") + 1
        column = len(text) - (text.rfind("\n") + 1) + 1
        return CelSyntaxError("the expression ends too early", line, column)
    shown = str(token)
    hint = _OPERATORS.get(shown, "")
    shown = shown if len(shown) <= 20 else shown[:20] + "…"
    message = f"unexpected {shown!r}" + (f"; {hint}" if hint else "")
    return CelSyntaxError(message, token.line or 1, token.column or 1)


def _unexpected_characters(text: str, error: UnexpectedCharacters) -> CelSyntaxError:
    at = error.pos_in_stream or 0
    character = text[at]
    if character in "\"'":
        message = "this string is not closed"
    elif character == "=":
        message = "unexpected '='; write == to compare"
    elif character in "&|":
        message = f"unexpected {character!r}; write {character * 2}"
    elif character == "`":
        message = "names in backticks stand after a dot, hold letters, digits, _ . - / and spaces"
    else:
        message = f"unexpected {character!r}"
    return CelSyntaxError(message, error.line, error.column)
