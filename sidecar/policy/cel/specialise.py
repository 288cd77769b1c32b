"""Folding of what is known beforehand: constants, and variables whose value will not change.

The folded tree gives the same value or the same error (kind and place) as the tree it was made
from, for every input that agrees with what was known; it only takes fewer steps of the budget.
An operation that fails is never folded: it stays, and fails when it is reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from sidecar.policy.cel.compile import compile_tree
from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import CompileError, EvalError, Stopped
from sidecar.policy.cel.frame import new_frame
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.macros import INDEX_PREFIX
from sidecar.policy.cel.nodes import (
    Binary,
    Bind,
    Block,
    Call,
    Comprehension,
    Has,
    Ident,
    Index,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Message,
    Node,
    OptMap,
    Select,
    Ternary,
    Unary,
    dotted,
)
from sidecar.policy.cel.values import TYPES, Value

_FOLD_BUDGET: Final = 1_000
_NOTHING: Final[frozenset[str]] = frozenset()
_OPEN: Final = frozenset((".",))
"""Marks a tree that reads something unknown; no macro variable has a dot in its name."""


def fold(tree: Node, env: Environment, known: Mapping[str, Value] | None = None) -> Node:
    """The tree with everything folded that ``known`` decides.

    A key of ``known`` is a variable's name, and then its whole value is known, or a dotted
    path below a variable, and then that field is.
    """
    return _Folder(env, known or {}).fold(tree, _NOTHING).node


def specialised(env: Environment, known: Mapping[str, Value]) -> Environment:
    """The environment with its definitions folded the same way."""
    if not env.definitions:
        return env
    definitions = {name: fold(tree, env, known) for name, tree in env.definitions.items()}
    return dataclasses.replace(env, definitions=definitions)


class _Folded(NamedTuple):
    """A node, and the macro variables around it that it reads (``_OPEN`` for unknown input)."""

    node: Node
    free: frozenset[str]


class _Folder:
    def __init__(self, env: Environment, known: Mapping[str, Value]) -> None:
        self.env = env
        self.known = known

    def fold(self, node: Node, bound: frozenset[str]) -> _Folded:
        """Fold a node; ``bound`` are the macro variables around it."""
        folded = self._inside(node, bound)
        if folded.free or isinstance(folded.node, Literal):
            return folded
        return _Folded(self._evaluated(folded.node), folded.free)

    def _evaluated(self, node: Node) -> Node:
        """A closed node as its value; itself when it has none."""
        try:
            code = compile_tree(node, self.env)
            value = code(new_frame({}, Budget(_FOLD_BUDGET)))
        except (CompileError, EvalError, Stopped, RecursionError):
            return node
        return Literal(node.span, 1, value)

    def _all(self, nodes: tuple[Node, ...], bound: frozenset[str]) -> list[_Folded]:
        return [self.fold(node, bound) for node in nodes]

    def _inside(self, node: Node, bound: frozenset[str]) -> _Folded:
        match node:
            case Literal():
                return _Folded(node, _NOTHING)
            case Ident() | Select():
                return self._name(node, bound)
            case Has():
                return self._has(node, bound)
            case Unary():
                below = self.fold(node.operand, bound)
                return _Folded(replace(node, operand=below.node), below.free)
            case Index():
                operand, key = self.fold(node.operand, bound), self.fold(node.key, bound)
                free = operand.free | key.free
                return _Folded(replace(node, operand=operand.node, key=key.node), free)
            case Binary():
                left, right = self.fold(node.left, bound), self.fold(node.right, bound)
                free = left.free | right.free
                return _Folded(replace(node, left=left.node, right=right.node), free)
            case Logic():
                return self._logic(node, bound)
            case Ternary():
                return self._ternary(node, bound)
            case Call():
                return self._call(node, bound)
            case ListOf():
                items = self._all(node.items, bound)
                return _Folded(replace(node, items=_nodes(items)), _free(items))
            case MapOf():
                keys = self._all(tuple(key for key, _ in node.entries), bound)
                values = self._all(tuple(value for _, value in node.entries), bound)
                entries = tuple(zip(_nodes(keys), _nodes(values), strict=True))
                return _Folded(replace(node, entries=entries), _free(keys) | _free(values))
            case Comprehension():
                return self._comprehension(node, bound)
            case Bind() | OptMap() | Block():
                return self._binding(node, bound)
            case Message():
                return _Folded(node, _OPEN)
        raise AssertionError(f"no such node: {type(node).__name__}")

    # ---------------------------------------------------------------------------- names

    def _name(self, node: Ident | Select, bound: frozenset[str]) -> _Folded:
        """A name with fields below it: what is known of it becomes a constant."""
        fields: list[Select] = []
        below: Node = node
        while isinstance(below, Select) and not below.optional:
            fields.append(below)
            below = below.operand
        if not isinstance(below, Ident):
            assert isinstance(node, Select)
            operand = self.fold(node.operand, bound)
            return _Folded(replace(node, operand=operand.node), operand.free)
        if below.name in bound and not below.absolute:
            return _Folded(node, frozenset((below.name,)))
        fields.reverse()
        names = (below.name, *(field.field for field in fields))
        found = self._known(below, names)
        if found is None:
            return _Folded(node, _OPEN)
        literal, used = found
        # What is wrong with the value is wrong at the last name that gave it.
        at = fields[used - 2].span if used > 1 else below.span
        value: Node = replace(literal, span=at)
        for field in fields[used - 1 :]:
            value = replace(field, operand=value)
        return _Folded(value, _NOTHING)

    def _known(self, root: Ident, names: tuple[str, ...]) -> tuple[Literal, int] | None:
        """The constant that the longest known part of a name stands for, and its length."""
        resolved = self.env.resolve(names, root.absolute)
        if resolved.kind == "type":
            return Literal(root.span, 1, TYPES[resolved.name]), resolved.used
        if resolved.kind == "definition":
            tree = self.env.definitions[resolved.name]
            return (tree, resolved.used) if isinstance(tree, Literal) else None
        if resolved.used == 0:
            return None
        for used in range(len(names), resolved.used - 1, -1):
            name = ".".join((resolved.name, *names[resolved.used : used]))
            if name in self.known:
                return Literal(root.span, 1, self.known[name]), used
        return None

    def _has(self, node: Has, bound: frozenset[str]) -> _Folded:
        whole = Select(node.span, node.depth, node.operand, node.field)
        if not node.optional:
            folded = self._name(whole, bound)
            if isinstance(folded.node, Literal) and not folded.free:
                return _Folded(Literal(node.span, 1, True), _NOTHING)
        operand = self.fold(node.operand, bound)
        return _Folded(replace(node, operand=operand.node), operand.free)

    # ------------------------------------------------------------------------ operators

    def _logic(self, node: Logic, bound: frozenset[str]) -> _Folded:
        rest: list[_Folded] = []
        for operand in self._all(node.operands, bound):
            value = operand.node.value if isinstance(operand.node, Literal) else None
            if value is node.stop:
                return _Folded(Literal(node.span, 1, node.stop), _NOTHING)
            if value is not (not node.stop):
                rest.append(operand)
        if not rest:
            return _Folded(Literal(node.span, 1, not node.stop), _NOTHING)
        return _Folded(replace(node, operands=_nodes(rest)), _free(rest))

    def _ternary(self, node: Ternary, bound: frozenset[str]) -> _Folded:
        condition = self.fold(node.condition, bound)
        if isinstance(condition.node, Literal) and type(condition.node.value) is bool:
            return self.fold(node.then if condition.node.value else node.otherwise, bound)
        then, otherwise = self.fold(node.then, bound), self.fold(node.otherwise, bound)
        made = replace(node, condition=condition.node, then=then.node, otherwise=otherwise.node)
        return _Folded(made, condition.free | then.free | otherwise.free)

    def _call(self, node: Call, bound: frozenset[str]) -> _Folded:
        args = self._all(node.args, bound)
        if node.target is None or self._is_namespace(node, bound):
            return _Folded(replace(node, args=_nodes(args)), _free(args))
        target = self.fold(node.target, bound)
        made = replace(node, target=target.node, args=_nodes(args))
        return _Folded(made, target.free | _free(args))

    def _is_namespace(self, node: Call, bound: frozenset[str]) -> bool:
        """Whether ``a.b.f(x)`` calls the function ``a.b.f`` rather than a method."""
        names = dotted(node.target) if node.target is not None else None
        if names is None or names[0] in bound:
            return False
        return self.env.function(".".join((*names, node.function))) is not None

    # --------------------------------------------------------------------------- macros

    def _comprehension(self, node: Comprehension, bound: frozenset[str]) -> _Folded:
        source = self.fold(node.source, bound)
        inner = bound | frozenset(node.names)
        condition = None if node.condition is None else self.fold(node.condition, inner)
        step = None if node.step is None else self.fold(node.step, inner)
        free = _free([part for part in (condition, step) if part is not None])
        made = replace(
            node,
            source=source.node,
            condition=None if condition is None else condition.node,
            step=None if step is None else step.node,
        )
        return _Folded(made, source.free | (free - frozenset(node.names)))

    def _binding(self, node: Bind | OptMap | Block, bound: frozenset[str]) -> _Folded:
        if isinstance(node, Block):
            names = frozenset(f"{INDEX_PREFIX}{i}" for i in range(len(node.slots)))
            slots = self._all(node.slots, bound | names)
            body = self.fold(node.body, bound | names)
            made: Node = replace(node, slots=_nodes(slots), body=body.node)
            return _Folded(made, (_free(slots) | body.free) - names)
        first = self.fold(node.init if isinstance(node, Bind) else node.target, bound)
        body = self.fold(node.body, bound | {node.name})
        if isinstance(node, Bind):
            made = replace(node, init=first.node, body=body.node)
        else:
            made = replace(node, target=first.node, body=body.node)
        return _Folded(made, first.free | (body.free - {node.name}))


def _nodes(folded: list[_Folded]) -> tuple[Node, ...]:
    return tuple(part.node for part in folded)


def _free(folded: list[_Folded]) -> frozenset[str]:
    return frozenset().union(*(part.free for part in folded))
