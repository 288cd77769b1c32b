"""Which parts of the input an expression reads: for the cost of building an input."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Final

from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.macros import INDEX_PREFIX
from sidecar.policy.cel.nodes import (
    Bind,
    Block,
    Call,
    Comprehension,
    Has,
    Ident,
    Index,
    Literal,
    Node,
    OptMap,
    Select,
    children,
    dotted,
)

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def references(tree: Node, env: Environment) -> frozenset[str]:
    """The dotted names read, the longest that are certain: ``args.url``, ``session.labels``.

    ``has`` reads the field that it asks for. A name ends where an index that is no constant
    string is used, or a key that is no plain name. Definitions are followed.
    """
    found: set[str] = set()
    _collect(tree, env, frozenset(), found, set())
    return frozenset(found)


def _collect(
    node: Node,
    env: Environment,
    bound: AbstractSet[str],
    found: set[str],
    followed: set[str],
) -> None:
    path = _path(node, bound)
    if path is not None:
        _add(path, env, found, followed)
        return
    match node:
        case Comprehension():
            _collect(node.source, env, bound, found, followed)
            inner = bound | set(node.names)
            for part in (node.condition, node.step):
                if part is not None:
                    _collect(part, env, inner, found, followed)
        case Bind() | OptMap():
            first = node.init if isinstance(node, Bind) else node.target
            _collect(first, env, bound, found, followed)
            _collect(node.body, env, bound | {node.name}, found, followed)
        case Block():
            inner = bound | {f"{INDEX_PREFIX}{i}" for i in range(len(node.slots))}
            for part in (*node.slots, node.body):
                _collect(part, env, inner, found, followed)
        case Call() if node.target is not None and _namespaced(node, env, bound):
            for arg in node.args:
                _collect(arg, env, bound, found, followed)
        case _:
            for child in children(node):
                _collect(child, env, bound, found, followed)


def _namespaced(node: Call, env: Environment, bound: AbstractSet[str]) -> bool:
    names = dotted(node.target) if node.target is not None else None
    if names is None or names[0] in bound:
        return False
    return env.function(".".join((*names, node.function))) is not None


def _path(node: Node, bound: AbstractSet[str]) -> tuple[Ident, tuple[str, ...]] | None:
    """A variable and the fields below it, if the node is nothing but that."""
    fields: list[str] = []
    while True:
        match node:
            case Ident():
                if node.name in bound and not node.absolute:
                    return None
                return node, tuple(reversed(fields))
            case Select() | Has():
                if _PLAIN.fullmatch(node.field) is None:
                    return None
                fields.append(node.field)
                node = node.operand
            case Index(key=Literal(value=str() as key)) if _PLAIN.fullmatch(key):
                fields.append(key)
                node = node.operand
            case _:
                return None


def _add(
    path: tuple[Ident, tuple[str, ...]],
    env: Environment,
    found: set[str],
    followed: set[str],
) -> None:
    root, fields = path
    names = (root.name, *fields)
    resolved = env.resolve(names, root.absolute)
    if resolved.kind == "type" or resolved.used == 0:
        return
    if resolved.kind == "definition":
        if resolved.name not in followed:
            followed.add(resolved.name)
            _collect(env.definitions[resolved.name], env, frozenset(), found, followed)
        return
    found.add(".".join((resolved.name, *names[resolved.used :])))
