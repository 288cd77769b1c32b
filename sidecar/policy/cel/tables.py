"""The parser's tables, made beforehand: reading them is ten times quicker than making them.

``tables.json`` holds what Lark makes of the grammars, with a digest of the grammars and of
Lark's version. Where the digest is another (cel-python or Lark were updated), the file is left
alone and the parser is made anew; a test tells when it is to be written anew. It is data
without code: Lark's own cache is a pickle in a temporary folder, which others may write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from lark import Lark

PATH: Final = Path(__file__).with_name("tables.json")
# Lark's own data: nested dicts and lists, whose shape is its business.
Data: TypeAlias = Any


def digest(grammars: str) -> str:
    """What tables are made of, as a sha256 (hex)."""
    return hashlib.sha256(f"{version('lark')}\n{grammars}".encode()).hexdigest()


def dump(parser: Lark, grammars: str) -> bytes:
    """The tables of a parser that was made without a transformer."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    data, memo = parser.memo_serialize([TerminalDef, Rule])
    data["options"]["import_paths"] = []
    content = {"of": digest(grammars), "data": data, "memo": memo}
    # Names in it are Lark's tokens, a subclass of str that msgspec does not take.
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def load(grammars: str, transformer: object) -> Lark | None:
    """A parser of the tables on disk; ``None`` when they are of other grammars."""
    from lark import Lark

    try:
        content = msgspec.json.decode(PATH.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    if content.get("of") != digest(grammars):
        return None
    data, memo = _numbered(content["data"]), _numbered(content["memo"])
    # What parsers that Lark generates as Python files are made with, too.
    make: Callable[..., Lark] = Lark._load_from_dict
    parser = make(data, memo, transformer=transformer)
    return parser


def _numbered(value: Data) -> Data:
    """Keys that are numbers as numbers again: JSON has none."""
    if isinstance(value, dict):
        return {int(k) if k.isdigit() else k: _numbered(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbered(item) for item in value]
    return value
