"""The parser of expressions: cel-python's grammar, extended, as a Lark LALR parser.

cel-python's ``cel.lark`` is read from the installed package (which is not imported). On top
of it stand what CEL has and that grammar lacks: optional syntax (``a.?b``, ``a[?k]``,
``[?x]``, ``{?k: v}``), trailing commas in lists, maps and messages, fields in backticks, and
literals as the language definition has them.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.policy.cel import tables

if TYPE_CHECKING:
    from lark import Lark

_IMPORTED: Final = """
    expr, conditionalor, conditionaland,
    relation, relation_lt, relation_le, relation_ge, relation_gt, relation_eq, relation_ne,
    relation_in, addition, addition_add, addition_sub,
    multiplication, multiplication_mul, multiplication_div, multiplication_mod,
    unary, unary_not, unary_neg, member, member_dot, member_dot_arg, member_index, member_object,
    primary, dot_ident_arg, dot_ident, ident_arg, ident, paren_expr, list_lit, map_lit,
    exprlist, fieldinits, mapinits, literal,
    UINT_LIT, FLOAT_LIT, INT_LIT, MLSTRING_LIT, STRING_LIT, BYTES_LIT, BOOL_LIT, NULL_LIT, IDENT,
    WHITESPACE, COMMENT
"""

EXTENSION: Final = r"""
%%import cel (%s)
%%ignore WHITESPACE
%%ignore COMMENT

%%override member_dot    : member "." ["?"] (IDENT | ESC_IDENT)
%%override member_index  : member "[" ["?"] expr "]"
%%override member_object : member "{" [fieldinits [","]] "}"
%%override list_lit      : "[" [elements [","]] "]"
%%override map_lit       : "{" [mapinits [","]] "}"
%%override mapinits      : entry | mapinits "," entry
%%override fieldinits    : fieldinit | fieldinits "," fieldinit
elements  : element | elements "," element
element   : ["?"] expr
entry     : ["?"] expr ":" expr
fieldinit : ["?"] (IDENT | ESC_IDENT) ":" expr

%%override BYTES_LIT.5    : /[bB](?:[rR]"{3}(?:(?!"{3})[\s\S])*"{3}|[rR]'{3}(?:(?!'{3})[\s\S])*'{3}|"{3}(?:(?!"{3})(?:[^\\]|\\[\s\S]))*"{3}|'{3}(?:(?!'{3})(?:[^\\]|\\[\s\S]))*'{3}|[rR]"[^"\r\n]*"|[rR]'[^'\r\n]*'|"(?:[^"\\\r\n]|\\[^\r\n])*"|'(?:[^'\\\r\n]|\\[^\r\n])*')/
%%override MLSTRING_LIT.5 : /[rR]"{3}(?:(?!"{3})[\s\S])*"{3}|[rR]'{3}(?:(?!'{3})[\s\S])*'{3}|"{3}(?:(?!"{3})(?:[^\\]|\\[\s\S]))*"{3}|'{3}(?:(?!'{3})(?:[^\\]|\\[\s\S]))*'{3}/
%%override STRING_LIT.4   : /[rR]"[^"\r\n]*"|[rR]'[^'\r\n]*'|"(?:[^"\\\r\n]|\\[^\r\n])*"|'(?:[^'\\\r\n]|\\[^\r\n])*'/
%%override UINT_LIT.3     : /-?(?:0x[0-9a-fA-F]+|[0-9]+)[uU]/
%%override FLOAT_LIT.2    : /-?(?:[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)/
%%override INT_LIT.1      : /-?(?:0x[0-9a-fA-F]+|[0-9]+)/
ESC_IDENT : /`[a-zA-Z0-9_.\-\/ ]+`/
""" % " ".join(_IMPORTED.split())  # noqa: E501, UP031 - regular expressions; braces are the grammar's


def grammar_folder() -> Path:
    """Where the installed cel-python keeps ``cel.lark``; the package is not imported."""
    found = importlib.util.find_spec("celpy")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("cel-python is not installed: pip install cel-python")
    return Path(found.submodule_search_locations[0])


@functools.cache
def lark_parser() -> Lark:
    """The one parser of this process; parsing keeps no state in it."""
    from sidecar.policy.cel.build import Builder

    return tables.load(grammar_text(), Builder()) or build(Builder())


def build(transformer: object | None = None) -> Lark:
    """The parser made from the grammars, which takes a tenth of a second."""
    from lark import Lark

    return Lark(
        EXTENSION,
        parser="lalr",
        lexer="contextual",
        start="expr",
        import_paths=[str(grammar_folder())],
        keep_all_tokens=True,
        maybe_placeholders=False,
        transformer=transformer,
    )


def grammar_text() -> str:
    """Both grammars, ours and the installed one of cel-python."""
    return EXTENSION + (grammar_folder() / "cel.lark").read_text(encoding="utf-8")
