"""Macros, expanded while parsing: ``has``, the comprehensions, ``cel.bind``, ``optMap`` ….

A call of a macro's name with another number of arguments is left as a call, which then names
no function; where the macro is meant and written wrongly, that is a syntax error here.
"""

from __future__ import annotations

from typing import Final

from sidecar.policy.cel.errors import CelSyntaxError
from sidecar.policy.cel.nodes import (
    Bind,
    Block,
    Comprehension,
    Has,
    Ident,
    ListOf,
    Literal,
    MacroKind,
    Node,
    OptMap,
    Select,
    Span,
)

_QUANTIFIERS: Final[dict[str, MacroKind]] = {
    "all": "all",
    "exists": "exists",
    "exists_one": "exists_one",
    "existsOne": "exists_one",
}
_TRANSFORMS: Final[dict[str, MacroKind]] = {
    "transformList": "transformList",
    "transformMap": "transformMap",
    "transformMapEntry": "transformMapEntry",
}
MACRO_NAMES: Final = frozenset(
    (*_QUANTIFIERS, *_TRANSFORMS, "filter", "map", "has", "optMap", "optFlatMap")
)

INDEX_PREFIX: Final = "@index"


def expand_function(at: Span, depth: int, name: str, args: tuple[Node, ...]) -> Node | None:
    """``has(a.b)``; ``None`` when the call is no macro."""
    if name != "has":
        return None
    if len(args) == 1:
        field = args[0]
        if isinstance(field, Select):
            return Has(at, depth, field.operand, field.field, field.optional)
    raise CelSyntaxError("has() takes one field, as in has(a.b)", at.line, at.column)


def expand_method(
    at: Span, depth: int, target: Node, name: str, args: tuple[Node, ...]
) -> Node | None:
    """``target.name(args)`` as a macro; ``None`` when it is none."""
    count = len(args)
    if name in _QUANTIFIERS and count in (2, 3):
        names = _names(name, args[:-1])
        return Comprehension(at, depth, _QUANTIFIERS[name], target, names, args[-1], None)
    if name == "filter" and count == 2:
        return Comprehension(at, depth, "filter", target, _names(name, args[:1]), args[1], None)
    if name == "map" and count in (2, 3):
        condition = args[1] if count == 3 else None
        names = _names(name, args[:1])
        return Comprehension(at, depth, "map", target, names, condition, args[-1])
    if name in _TRANSFORMS and count in (3, 4):
        condition = args[2] if count == 4 else None
        names = _names(name, args[:2])
        return Comprehension(at, depth, _TRANSFORMS[name], target, names, condition, args[-1])
    if name in ("optMap", "optFlatMap") and count == 2:
        (variable,) = _names(name, args[:1])
        return OptMap(at, depth, target, variable, args[1], name == "optFlatMap")
    if isinstance(target, Ident) and target.name == "cel":
        return _cel(at, depth, name, args)
    return None


def _cel(at: Span, depth: int, name: str, args: tuple[Node, ...]) -> Node | None:
    """The macros of the ``cel`` namespace."""
    if name == "bind" and len(args) == 3:
        (variable,) = _names("cel.bind", args[:1])
        return Bind(at, depth, variable, args[1], args[2])
    if name == "block" and len(args) == 2 and isinstance(args[0], ListOf):
        if args[0].optionals:
            raise CelSyntaxError("cel.block() takes no optional elements", at.line, at.column)
        return Block(at, depth, args[0].items, args[1])
    numbers = [arg.value for arg in args if isinstance(arg, Literal) and type(arg.value) is int]
    if len(numbers) != len(args):
        return None
    if name == "index" and len(numbers) == 1:
        return Ident(at, 1, f"{INDEX_PREFIX}{numbers[0]}")
    if name in ("iterVar", "accuVar") and len(numbers) == 2:
        kind = "it" if name == "iterVar" else "ac"
        return Ident(at, 1, f"@{kind}:{numbers[0]}:{numbers[1]}")
    return None


def _names(macro: str, args: tuple[Node, ...]) -> tuple[str, ...]:
    names: list[str] = []
    for arg in args:
        if not isinstance(arg, Ident) or arg.absolute:
            message = f"{macro}() needs a plain name for its variable here"
            raise CelSyntaxError(message, arg.span.line, arg.span.column)
        if arg.name in names:
            message = f"{macro}() needs two different names"
            raise CelSyntaxError(message, arg.span.line, arg.span.column)
        names.append(arg.name)
    return tuple(names)
