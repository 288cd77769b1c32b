"""What a condition says about which fields are there, for the lint of optional fields.

A path is a variable's name and the fields below it: ``("args", "url")``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from sidecar.policy.cel.nodes import (
    Binary,
    Call,
    Has,
    Ident,
    Index,
    Literal,
    Logic,
    Node,
    Select,
    Unary,
)

Path: TypeAlias = tuple[str, ...]
Paths: TypeAlias = frozenset[Path]
NO_PATHS: Final[Paths] = frozenset()


def path_of(node: Node) -> Path | None:
    """``a.b["c"]`` as a path; ``None`` for anything but names, fields and constant keys."""
    names: list[str] = []
    while True:
        match node:
            case Ident():
                names.append(node.name)
                return tuple(reversed(names))
            case Select(optional=False):
                names.append(node.field)
                node = node.operand
            case Index(key=Literal(value=str() as key), optional=False):
                names.append(key)
                node = node.operand
            case _:
                return None


def present_if(node: Node, holds: bool) -> Paths:
    """The paths that are there whenever the condition is true (or false)."""
    match node:
        case Has(optional=False):
            path = path_of(node.operand)
            return frozenset(((*path, node.field),)) if holds and path else NO_PATHS
        case Binary(op="in", left=Literal(value=str() as key)):
            path = path_of(node.right)
            return frozenset(((*path, key),)) if holds and path else NO_PATHS
        case Call(function="hasValue", target=Select(optional=True) as field):
            path = path_of(field.operand)
            return frozenset(((*path, field.field),)) if holds and path else NO_PATHS
        case Unary(op="!"):
            return present_if(node.operand, not holds)
        case Logic():
            parts = [present_if(operand, holds) for operand in node.operands]
            # ``a && b`` true: both are true. ``a && b`` false: one of them is, who knows which.
            if node.stop is holds:
                return frozenset.intersection(*parts)
            return frozenset().union(*parts)
    return NO_PATHS


def beside(node: Logic, position: int) -> Paths:
    """The paths that may be relied on in one operand because of the others.

    The order does not matter: an error in one operand is absorbed when another decides.
    """
    return frozenset().union(
        *(
            present_if(operand, not node.stop)
            for i, operand in enumerate(node.operands)
            if i != position
        )
    )
