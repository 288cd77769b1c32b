"""The tree of an expression: small frozen structs, macros already expanded.

Every node has a ``Span``: ``line`` and ``column`` (1-based) of the thing an error would be
about (an operator, a field, a function's name), ``start`` and ``end`` (0-based offsets) of the
whole sub-expression in its text. ``depth`` counts the levels below and including the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal as Choice
from typing import TypeAlias

import msgspec

from sidecar.policy.cel.values import Value


class Span(msgspec.Struct, frozen=True):
    """Where a node stands in its text."""

    line: int
    column: int
    start: int
    end: int


class Node(msgspec.Struct, frozen=True):
    """What all nodes have."""

    span: Span
    depth: int


class Literal(Node, frozen=True):
    """A constant, written or folded."""

    value: Value


class Ident(Node, frozen=True):
    """A name: a variable, a macro's variable or a type. ``absolute`` is ``.name``."""

    name: str
    absolute: bool = False


class Select(Node, frozen=True):
    """``operand.field``, or with ``optional`` ``operand.?field``."""

    operand: Node
    field: str
    optional: bool = False


class Has(Node, frozen=True):
    """``has(operand.field)``."""

    operand: Node
    field: str
    optional: bool = False


class Index(Node, frozen=True):
    """``operand[key]``, or with ``optional`` ``operand[?key]``."""

    operand: Node
    key: Node
    optional: bool = False


class Call(Node, frozen=True):
    """``function(args)`` or ``target.function(args)``."""

    function: str
    target: Node | None
    args: tuple[Node, ...]


class ListOf(Node, frozen=True):
    """``[a, ?b]``; ``optionals`` are the positions of ``?`` elements."""

    items: tuple[Node, ...]
    optionals: frozenset[int] = frozenset()


class MapOf(Node, frozen=True):
    """``{k: v, ?k: v}``; ``optionals`` are the positions of ``?`` entries."""

    entries: tuple[tuple[Node, Node], ...]
    optionals: frozenset[int] = frozenset()


class Message(Node, frozen=True):
    """``Type{field: value}``. Parsed so that it can be refused with its name and place."""

    type_name: str
    values: tuple[Node, ...]


UnaryOp: TypeAlias = Choice["!", "-"]
BinaryOp: TypeAlias = Choice["<", "<=", ">", ">=", "==", "!=", "in", "+", "-", "*", "/", "%"]


class Unary(Node, frozen=True):
    """``!x`` or ``-x``."""

    op: UnaryOp
    operand: Node


class Binary(Node, frozen=True):
    """``left op right``."""

    op: BinaryOp
    left: Node
    right: Node


class Logic(Node, frozen=True):
    """``a && b && c`` (``stop`` is ``False``) or ``a || b || c`` (``stop`` is ``True``).

    One operand is what folding leaves; it still has to be a boolean.
    """

    stop: bool
    operands: tuple[Node, ...]


class Ternary(Node, frozen=True):
    """``condition ? then : otherwise``."""

    condition: Node
    then: Node
    otherwise: Node


MacroKind: TypeAlias = Choice[
    "all",
    "exists",
    "exists_one",
    "filter",
    "map",
    "transformList",
    "transformMap",
    "transformMapEntry",
]


class Comprehension(Node, frozen=True):
    """``source.kind(names…, condition, step)``; with two names: index or key, and value."""

    kind: MacroKind
    source: Node
    names: tuple[str, ...]
    condition: Node | None
    step: Node | None


class Bind(Node, frozen=True):
    """``cel.bind(name, init, body)``."""

    name: str
    init: Node
    body: Node


class Block(Node, frozen=True):
    """``cel.block([slots…], body)``: slot N is read as ``cel.index(N)``, at most once."""

    slots: tuple[Node, ...]
    body: Node


class OptMap(Node, frozen=True):
    """``target.optMap(name, body)``; ``flat`` is ``optFlatMap``."""

    target: Node
    name: str
    body: Node
    flat: bool


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below, in the text's order."""
    match node:
        case Select() | Has() | Unary():
            return (node.operand,)
        case Index():
            return (node.operand, node.key)
        case Call():
            return node.args if node.target is None else (node.target, *node.args)
        case ListOf():
            return node.items
        case MapOf():
            return tuple(part for entry in node.entries for part in entry)
        case Message():
            return node.values
        case Binary():
            return (node.left, node.right)
        case Logic():
            return node.operands
        case Ternary():
            return (node.condition, node.then, node.otherwise)
        case Comprehension():
            rest = (node.condition, node.step)
            return (node.source, *(part for part in rest if part is not None))
        case Bind():
            return (node.init, node.body)
        case Block():
            return (*node.slots, node.body)
        case OptMap():
            return (node.target, node.body)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Every node, the outer ones first."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def dotted(node: Node) -> tuple[str, ...] | None:
    """``a.b.c`` as its names, or ``None`` when the node is anything else."""
    names: list[str] = []
    while isinstance(node, Select) and not node.optional:
        names.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    names.append(node.name)
    return tuple(reversed(names))


def depth_of(*below: Node | None) -> int:
    """The depth of a node above these."""
    return 1 + max((node.depth for node in below if node is not None), default=0)
