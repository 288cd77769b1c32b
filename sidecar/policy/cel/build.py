"""From the productions of the grammar to nodes. One method a production; no state.

Every production comes with all its tokens, so that spans are exact. Chains of one child
(``expr`` → ``conditionalor`` → …) pass that child on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias, cast

from lark import Token

from sidecar.policy.cel import literals
from sidecar.policy.cel.errors import CelSyntaxError
from sidecar.policy.cel.limits import MAX_DEPTH
from sidecar.policy.cel.macros import expand_function, expand_method
from sidecar.policy.cel.nodes import (
    Binary,
    BinaryOp,
    Call,
    Ident,
    Index,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Message,
    Node,
    Select,
    Span,
    Ternary,
    Unary,
    UnaryOp,
    depth_of,
    dotted,
)

# What a production is made of: tokens, nodes, and what the methods below return.
Parts: TypeAlias = list[Any]

KEYWORDS: Final = frozenset(("true", "false", "null", "in"))
RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let"),
        *("loop", "package", "namespace", "return", "var", "void", "while"),
    )
)


class _Operator(NamedTuple):
    op: BinaryOp
    left: Node
    token: Token


class _Element(NamedTuple):
    value: Node
    optional: bool


class _Entry(NamedTuple):
    key: Node
    value: Node
    optional: bool


def _start(part: Token | Node) -> int:
    return part.span.start if isinstance(part, Node) else cast(int, part.start_pos)


def _end(part: Token | Node) -> int:
    return part.span.end if isinstance(part, Node) else cast(int, part.end_pos)


def _span(point: Token, first: Token | Node, last: Token | Node) -> Span:
    return Span(cast(int, point.line), cast(int, point.column), _start(first), _end(last))


def _depth(at: Span, *below: Node | None) -> int:
    depth = depth_of(*below)
    if depth > MAX_DEPTH:
        message = f"the expression is nested deeper than {MAX_DEPTH} levels"
        raise CelSyntaxError(message, at.line, at.column)
    return depth


def _name(token: Token) -> str:
    """A name that stands for a variable or a function."""
    text = str(token)
    if text in RESERVED or text in KEYWORDS:
        message = f"{text!r} is a reserved word and cannot be a name"
        raise CelSyntaxError(message, cast(int, token.line), cast(int, token.column))
    return text


def _field(token: Token) -> str:
    """A name after a dot, where reserved words are allowed and keywords are not."""
    text = str(token)
    if text.startswith("`"):
        return text[1:-1]
    if text in KEYWORDS:
        message = f"{text!r} is a keyword; write [{text!r}] or .`{text}` for a field of that name"
        raise CelSyntaxError(message, cast(int, token.line), cast(int, token.column))
    return text


def _only(parts: Parts) -> Any:  # noqa: ANN401 - whatever the production holds
    return parts[0]


def _operator(op: BinaryOp) -> Callable[[Builder, Parts], _Operator]:
    def production(self: Builder, parts: Parts) -> _Operator:
        return _Operator(op, parts[0], parts[1])

    return production


class Builder:
    """Lark calls the method of a production's name with the production's parts."""

    # ------------------------------------------------------------------------ operators

    def expr(self, parts: Parts) -> Node:
        if len(parts) == 1:
            return cast(Node, parts[0])
        condition, mark, then, _, otherwise = parts
        at = _span(mark, condition, otherwise)
        return Ternary(at, _depth(at, condition, then, otherwise), condition, then, otherwise)

    def conditionalor(self, parts: Parts) -> Node:
        return self._logic(parts, stop=True)

    def conditionaland(self, parts: Parts) -> Node:
        return self._logic(parts, stop=False)

    def _logic(self, parts: Parts, stop: bool) -> Node:
        if len(parts) == 1:
            return cast(Node, parts[0])
        left, token, right = parts
        at = _span(token, left, right)
        chained = isinstance(left, Logic) and left.stop is stop
        operands = (*left.operands, right) if chained else (left, right)
        if chained:
            at = Span(left.span.line, left.span.column, at.start, at.end)
        return Logic(at, _depth(at, *operands), stop, operands)

    def _binary(self, parts: Parts) -> Node:
        if len(parts) == 1:
            return cast(Node, parts[0])
        operator, right = parts
        at = _span(operator.token, operator.left, right)
        return Binary(at, _depth(at, operator.left, right), operator.op, operator.left, right)

    relation = addition = multiplication = _binary
    relation_lt = _operator("<")
    relation_le = _operator("<=")
    relation_gt = _operator(">")
    relation_ge = _operator(">=")
    relation_eq = _operator("==")
    relation_ne = _operator("!=")
    relation_in = _operator("in")
    addition_add = _operator("+")
    addition_sub = _operator("-")
    multiplication_mul = _operator("*")
    multiplication_div = _operator("/")
    multiplication_mod = _operator("%")

    def unary(self, parts: Parts) -> Node:
        if len(parts) == 1:
            return cast(Node, parts[0])
        token, operand = parts
        at = _span(token, token, operand)
        return Unary(at, _depth(at, operand), cast(UnaryOp, str(token)), operand)

    def unary_not(self, parts: Parts) -> Token:
        return cast(Token, parts[0])

    unary_neg = unary_not

    # -------------------------------------------------------------------------- members

    def member(self, parts: Parts) -> Node:
        return cast(Node, parts[0])

    primary = member

    def member_dot(self, parts: Parts) -> Node:
        operand, token = parts[0], parts[-1]
        at = _span(token, operand, token)
        return Select(at, _depth(at, operand), operand, _field(token), len(parts) == 4)

    def member_index(self, parts: Parts) -> Node:
        operand, bracket, key, close = parts[0], parts[1], parts[-2], parts[-1]
        at = _span(bracket, operand, close)
        return Index(at, _depth(at, operand, key), operand, key, len(parts) == 5)

    def member_dot_arg(self, parts: Parts) -> Node:
        target, token, close = parts[0], parts[2], parts[-1]
        args: tuple[Node, ...] = parts[4] if len(parts) == 6 else ()
        at = _span(token, target, close)
        depth = _depth(at, target, *args)
        name = _field(token)
        return expand_method(at, depth, target, name, args) or Call(at, depth, name, target, args)

    def member_object(self, parts: Parts) -> Node:
        operand, close = parts[0], parts[-1]
        values: tuple[Node, ...] = parts[2] if len(parts) > 3 else ()
        names = dotted(operand)
        if names is None:
            message = "a message needs the name of its type before the brace"
            raise CelSyntaxError(message, operand.span.line, operand.span.column)
        at = Span(operand.span.line, operand.span.column, operand.span.start, _end(close))
        return Message(at, _depth(at, operand, *values), ".".join(names), values)

    # ------------------------------------------------------------------------ primaries

    def ident(self, parts: Parts) -> Node:
        (token,) = parts
        at = _span(token, token, token)
        match str(token):
            case "true":
                return Literal(at, 1, True)
            case "false":
                return Literal(at, 1, False)
            case "null":
                return Literal(at, 1, None)
        return Ident(at, 1, _name(token))

    def dot_ident(self, parts: Parts) -> Node:
        dot, token = parts
        return Ident(_span(token, dot, token), 1, _name(token), absolute=True)

    def ident_arg(self, parts: Parts) -> Node:
        token, close = parts[0], parts[-1]
        args: tuple[Node, ...] = parts[2] if len(parts) == 4 else ()
        at = _span(token, token, close)
        depth = _depth(at, *args)
        name = _name(token)
        return expand_function(at, depth, name, args) or Call(at, depth, name, None, args)

    def dot_ident_arg(self, parts: Parts) -> Node:
        dot, token, close = parts[0], parts[1], parts[-1]
        args: tuple[Node, ...] = parts[3] if len(parts) == 5 else ()
        at = _span(token, dot, close)
        return Call(at, _depth(at, *args), _name(token), None, args)

    def paren_expr(self, parts: Parts) -> Node:
        return cast(Node, parts[1])

    def list_lit(self, parts: Parts) -> Node:
        at = _span(parts[0], parts[0], parts[-1])
        elements: tuple[_Element, ...] = parts[1] if len(parts) > 2 else ()
        items = tuple(element.value for element in elements)
        optionals = frozenset(i for i, element in enumerate(elements) if element.optional)
        return ListOf(at, _depth(at, *items), items, optionals)

    def map_lit(self, parts: Parts) -> Node:
        at = _span(parts[0], parts[0], parts[-1])
        entries: tuple[_Entry, ...] = parts[1] if len(parts) > 2 else ()
        pairs = tuple((entry.key, entry.value) for entry in entries)
        optionals = frozenset(i for i, entry in enumerate(entries) if entry.optional)
        below = (part for pair in pairs for part in pair)
        return MapOf(at, _depth(at, *below), pairs, optionals)

    def element(self, parts: Parts) -> _Element:
        return _Element(parts[-1], len(parts) == 2)

    def entry(self, parts: Parts) -> _Entry:
        return _Entry(parts[-3], parts[-1], len(parts) == 4)

    def fieldinit(self, parts: Parts) -> Node:
        return cast(Node, parts[-1])

    def exprlist(self, parts: Parts) -> tuple[Any, ...]:
        return tuple(parts[::2])

    def elements(self, parts: Parts) -> tuple[Any, ...]:
        return (parts[0],) if len(parts) == 1 else (*parts[0], parts[2])

    mapinits = fieldinits = elements

    def literal(self, parts: Parts) -> Node:
        (token,) = parts
        at = _span(token, token, token)
        try:
            return Literal(at, 1, _LITERALS[token.type](str(token)))
        except literals.BadLiteral as bad:
            line, column = at.line, at.column
            before = str(token)[: bad.offset]
            if "\n" in before:
                line += before.count("\n")
                column = bad.offset - before.rindex("\n")
            else:
                column += bad.offset
            raise CelSyntaxError(bad.message, line, column) from None


_LITERALS: Final[dict[str, Callable[[str], object]]] = {
    "INT_LIT": literals.integer,
    "UINT_LIT": literals.unsigned,
    "FLOAT_LIT": literals.double,
    "STRING_LIT": literals.string,
    "MLSTRING_LIT": literals.string,
    "BYTES_LIT": literals.octets,
    "BOOL_LIT": lambda text: text == "true",
    "NULL_LIT": lambda text: None,
}
