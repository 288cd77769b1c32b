"""From nodes to closures. Nothing is generated and nothing is executed but these.

A ``Compiler`` is used once, for one tree. What it finds wrong (unknown names, wrong numbers of
arguments, bad patterns) is collected and raised together. ``wrap`` may put something around
the code of every node, which is how ``explain`` watches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from sidecar.policy.cel import access, calls, comprehension, logic, operators
from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import CompileError, EvalError, Finding
from sidecar.policy.cel.frame import Code, Frame, constant, failing, new_slot, placed
from sidecar.policy.cel.functions.regex import BadPattern
from sidecar.policy.cel.functions.registry import Dispatch, Function
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
    Span,
    Ternary,
    Unary,
    dotted,
)
from sidecar.policy.cel.values import TYPES, Optional, Value, from_pairs, no_overload

Scope: TypeAlias = Mapping[str, int]
Wrap: TypeAlias = Callable[[Node, Code], Code]

DEFINITION_PREFIX: Final = "@"


def compile_tree(tree: Node, env: Environment, wrap: Wrap | None = None) -> Code:
    """The code of a tree.

    Raises:
        CompileError: everything that keeps it from being compiled.
    """
    compiler = Compiler(env, wrap)
    code = compiler.compile(tree, {})
    if compiler.findings:
        raise CompileError(sorted(compiler.findings, key=lambda f: (f.line, f.column)))
    return code


class Compiler:
    """Compiles one tree; ``findings`` is what is wrong with it."""

    def __init__(self, env: Environment, wrap: Wrap | None = None) -> None:
        self.env = env
        self.findings: list[Finding] = []
        self._wrap = wrap
        self._lazy: dict[int, Code] = {}
        self._defining: set[str] = set()

    def compile(self, node: Node, scope: Scope) -> Code:
        """The code of a node; ``scope`` has the slots of the macro variables around it."""
        code: Code = _METHODS[type(node)](self, node, scope)
        return code if self._wrap is None else self._wrap(node, code)

    def _refuse(self, code: str, span: Span, message: str, kind: str = "") -> Code:
        """A finding, or in an unchecked environment an error when it is reached."""
        if self.env.checked:
            self.findings.append(Finding(code, span.line, span.column, message))
        error = EvalError("no_such_overload", message, span.line, span.column)
        if kind == "variable":
            error.kind = "no_such_variable"
        return failing(error)

    # ---------------------------------------------------------------------------- names

    def _literal(self, node: Literal, scope: Scope) -> Code:
        return constant(node.value)

    def _ident(self, node: Ident, scope: Scope) -> Code:
        return self._chain(node, [], scope)

    def _select(self, node: Select, scope: Scope) -> Code:
        fields: list[access.Step] = []
        below: Node = node
        while isinstance(below, Select) and not below.optional and self._wrap is None:
            fields.append((below.field, below.span))
            below = below.operand
        if isinstance(below, Ident) and fields:
            return self._chain(below, fields[::-1], scope)
        names = dotted(node)
        if names is not None and self._is_whole_name(names, node, scope):
            root = node
            while isinstance(root.operand, Select):
                root = root.operand
            assert isinstance(root.operand, Ident)
            return self._named(root.operand, names, node.span)
        operand = self.compile(node.operand, scope)
        return access.field_of(operand, node.field, node.span, node.optional)

    def _is_whole_name(self, names: tuple[str, ...], node: Select, scope: Scope) -> bool:
        """Whether ``a.b`` is one name with a dot in it, rather than a field of ``a``."""
        absolute = _root(node).absolute
        if names[0] in scope and not absolute:
            return False
        return self.env.resolve(names, absolute).used == len(names)

    def _chain(self, root: Ident, fields: list[access.Step], scope: Scope) -> Code:
        """A name and the fields below it, as one closure where it is a variable."""
        if root.name in scope and not root.absolute:
            slot = scope[root.name]
            if slot in self._lazy:
                return _fields(self._lazy[slot], fields)
            return access.variable(slot, root.name, root.span, fields)
        names = (root.name, *(field for field, _ in fields))
        resolved = self.env.resolve(names, root.absolute)
        if resolved.used == 0:
            message = f"unknown variable {root.name!r}"
            return self._refuse("unknown-variable", root.span, message, "variable")
        rest = fields[resolved.used - 1 :]
        if resolved.kind == "variable":
            return access.variable(resolved.name, resolved.name, root.span, rest)
        return _fields(self._named(root, names[: resolved.used], root.span), rest)

    def _named(self, root: Ident, names: tuple[str, ...], span: Span) -> Code:
        """A whole name: a variable, a definition or a type."""
        resolved = self.env.resolve(names, root.absolute)
        if resolved.kind == "variable":
            return access.variable(resolved.name, resolved.name, span, [])
        if resolved.kind == "type":
            return constant(TYPES[resolved.name])
        return self._definition(resolved.name, span)

    def _definition(self, name: str, span: Span) -> Code:
        if name in self._defining:
            return self._refuse("circular", span, f"{name} is defined by itself")
        self._defining.add(name)
        inner = Compiler(self.env)
        inner._defining = self._defining
        code = inner.compile(self.env.definitions[name], {})
        self._defining.discard(name)
        if inner.findings:
            first = inner.findings[0]
            where = f"{name} (at its {first.line}:{first.column})"
            return self._refuse(first.code, span, f"{where}: {first.message}")
        return comprehension.memoised(DEFINITION_PREFIX + name, placed(code, span))

    # --------------------------------------------------------------------------- access

    def _has(self, node: Has, scope: Scope) -> Code:
        operand = self.compile(node.operand, scope)
        if node.optional:
            inner = operand

            def optional(frame: Frame) -> Value:
                value = inner(frame)
                return value if type(value) is Optional else Optional(value)

            operand = optional
        return access.has(operand, node.field, node.span)

    def _index(self, node: Index, scope: Scope) -> Code:
        operand = self.compile(node.operand, scope)
        if isinstance(node.key, Literal) and type(node.key.value) is str:
            return access.key_of(operand, node.key.value, node.span, node.optional)
        return access.index_of(operand, self.compile(node.key, scope), node.span, node.optional)

    # ------------------------------------------------------------------------ operators

    def _unary(self, node: Unary, scope: Scope) -> Code:
        operand = self.compile(node.operand, scope)
        if node.op == "!":
            return logic.negation(operand, node.span)
        return placed(operators.negate(operand), node.span)

    def _binary(self, node: Binary, scope: Scope) -> Code:
        left = self.compile(node.left, scope)
        if isinstance(node.right, Literal):
            short = operators.with_constant(node.op, left, node.right.value, node.span)
            if short is not None:
                return short
        return operators.binary(node.op, left, self.compile(node.right, scope), node.span)

    def _logic(self, node: Logic, scope: Scope) -> Code:
        operands = [self.compile(operand, scope) for operand in node.operands]
        spans = [operand.span for operand in node.operands]
        return (logic.any_of if node.stop else logic.all_of)(operands, spans)

    def _ternary(self, node: Ternary, scope: Scope) -> Code:
        return logic.choice(
            self.compile(node.condition, scope),
            self.compile(node.then, scope),
            self.compile(node.otherwise, scope),
            node.span,
        )

    # --------------------------------------------------------------- lists, maps, macros

    def _list(self, node: ListOf, scope: Scope) -> Code:
        items = [self.compile(item, scope) for item in node.items]
        if not node.optionals:
            return lambda frame: [item(frame) for item in items]
        marked = [(item, i in node.optionals) for i, item in enumerate(items)]

        def run(frame: Frame) -> list[Value]:
            made: list[Value] = []
            for item, optional in marked:
                value = item(frame)
                if not optional:
                    made.append(value)
                elif type(value) is not Optional:
                    raise no_overload("[?]", value)
                elif value.present:
                    made.append(value.value)
            return made

        return placed(run, node.span)

    def _map(self, node: MapOf, scope: Scope) -> Code:
        entries = [
            (self.compile(key, scope), self.compile(value, scope), i in node.optionals)
            for i, (key, value) in enumerate(node.entries)
        ]

        def run(frame: Frame) -> dict[Value, Value]:
            pairs: list[tuple[Value, Value]] = []
            for key, value, optional in entries:
                found = value(frame)
                if optional:
                    if type(found) is not Optional:
                        raise no_overload("{?:}", found)
                    if not found.present:
                        continue
                    found = found.value
                pairs.append((key(frame), found))
            return from_pairs(pairs)

        return placed(run, node.span)

    def _message(self, node: Message, scope: Scope) -> Code:
        message = f"there are no messages here: {node.type_name}{{…}}"
        return self._refuse("message", node.span, message)

    def _comprehension(self, node: Comprehension, scope: Scope) -> Code:
        source = self.compile(node.source, scope)
        slots = [new_slot() for _ in node.names]
        inner = {**scope, **dict(zip(node.names, slots, strict=True))}
        condition = None if node.condition is None else self.compile(node.condition, inner)
        step = None if node.step is None else self.compile(node.step, inner)
        loop = comprehension.Loop(node.kind, source, slots, condition=condition, span=node.span)
        return placed(comprehension.comprehension(loop, step), node.span)

    def _bind(self, node: Bind, scope: Scope) -> Code:
        slot = new_slot()
        self._lazy[slot] = comprehension.memoised(slot, self.compile(node.init, scope))
        body = self.compile(node.body, {**scope, node.name: slot})
        return comprehension.scoped((slot,), body)

    def _block(self, node: Block, scope: Scope) -> Code:
        inner: dict[str, int] = dict(scope)
        slots: list[int] = []
        for i, part in enumerate(node.slots):
            slot = new_slot()
            self._lazy[slot] = comprehension.memoised(slot, self.compile(part, inner))
            inner[f"{INDEX_PREFIX}{i}"] = slot
            slots.append(slot)
        return comprehension.scoped(slots, self.compile(node.body, inner))

    def _opt_map(self, node: OptMap, scope: Scope) -> Code:
        target = self.compile(node.target, scope)
        slot = new_slot()
        body = self.compile(node.body, {**scope, node.name: slot})
        return comprehension.opt_map(target, slot, body, node.flat, node.span)

    # ---------------------------------------------------------------------------- calls

    def _call(self, node: Call, scope: Scope) -> Code:
        function, member = self._function(node, scope)
        if function is None:
            return self._unknown(node)
        receiver = (node.target,) if member and node.target is not None else ()
        nodes = (*receiver, *node.args)
        overloads = function.candidates(len(nodes), member)
        if not overloads:
            return self._wrong_call(node, function, member)
        args = [self.compile(arg, scope) for arg in nodes]
        if member and node.function == "orValue":
            return calls.or_value(args[0], args[1], node.span)
        if member and node.function == "or":
            return calls.or_optional(args[0], args[1], node.span)
        if len(nodes) == 2 and isinstance(nodes[1], Literal):
            try:
                short = calls.with_constant(function.name, args[0], nodes[1].value, node.span)
            except BadPattern as bad:
                message = f"bad {'glob' if function.name == 'glob' else 'regular expression'}"
                return self._refuse("bad-regex", nodes[1].span, f"{message}: {bad}")
            if short is not None:
                return short
        return calls.call(Dispatch(function.name, overloads), args, node.span)

    def _function(self, node: Call, scope: Scope) -> tuple[Function | None, bool]:
        """The function that a call names, and whether its target is the receiver."""
        if node.target is None:
            return self.env.function(node.function), False
        names = dotted(node.target)
        if names is not None and (names[0] not in scope or _root(node.target).absolute):
            found = self.env.function(".".join((*names, node.function)))
            if found is not None:
                return found, False
        return self.env.functions.get(node.function), True

    def _unknown(self, node: Call) -> Code:
        return self._refuse("unknown-function", node.span, f"unknown function {node.function!r}")

    def _wrong_call(self, node: Call, function: Function, member: bool) -> Code:
        arities = function.arities(member)
        name = function.name
        if arities:
            given = len(node.args)
            message = f"{name}() takes {' or '.join(arities)} arguments, not {given}"
        elif member:
            message = f"{name}() is not a method; write {name}(…)"
        else:
            message = f"{name}() is a method; write x.{name}(…)"
        return self._refuse("arguments", node.span, message)


def _fields(code: Code, fields: list[access.Step]) -> Code:
    """The fields below a value, one after the other."""
    for field, span in fields:
        code = access.field_of(code, field, span, optional=False)
    return code


def _root(node: Node) -> Ident:
    """The name that a dotted chain starts with."""
    while isinstance(node, Select):
        node = node.operand
    assert isinstance(node, Ident)
    return node


_METHODS: Final[Mapping[type[Node], Callable[..., Code]]] = {
    Literal: Compiler._literal,
    Ident: Compiler._ident,
    Select: Compiler._select,
    Has: Compiler._has,
    Index: Compiler._index,
    Unary: Compiler._unary,
    Binary: Compiler._binary,
    Logic: Compiler._logic,
    Ternary: Compiler._ternary,
    ListOf: Compiler._list,
    MapOf: Compiler._map,
    Message: Compiler._message,
    Comprehension: Compiler._comprehension,
    Bind: Compiler._bind,
    Block: Compiler._block,
    OptMap: Compiler._opt_map,
    Call: Compiler._call,
}
