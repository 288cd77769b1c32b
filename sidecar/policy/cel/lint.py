"""Checks of an expression before it is ever evaluated: names, fields, types, patterns, guards.

Errors keep a rule from loading, warnings do not. What is not known (``dyn``) is not guessed at:
an error is only reported for what could never be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final

from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import Finding
from sidecar.policy.cel.functions.glob import glob
from sidecar.policy.cel.functions.regex import BadPattern, pattern
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.guards import NO_PATHS, Paths, beside, present_if
from sidecar.policy.cel.lint_fields import FieldChecks, Scope, a
from sidecar.policy.cel.macros import INDEX_PREFIX, MACRO_NAMES
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
from sidecar.policy.cel.signatures import may_equal, result_of
from sidecar.policy.cel.specialise import fold
from sidecar.policy.cel.types import (
    BOOL,
    DYN,
    INT,
    MAP,
    Type,
    compatible,
    joined,
    list_of,
    map_of,
    of_value,
    optional_of,
)

MAX_NESTING: Final = 2
"""Macros inside macros before the cost is worth a warning."""


def lint(
    tree: Node,
    env: Environment,
    expect: Type | None = BOOL,
    elsewhere: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Everything found in one expression, in the text's order.

    ``expect`` is the type it has to have, ``None`` for any. ``elsewhere`` has a sentence for
    names that exist, but not in this environment.
    """
    linter = _Linter(env, elsewhere or {})
    found = linter.type_of(tree, {}, NO_PATHS)
    if expect is not None and not compatible(expect, found):
        message = f"this has to be {a(expect)}, it is {a(found)}"
        linter.error("not-boolean" if expect.kind == "bool" else "type", tree.span, message)
    if expect == BOOL and not linter.findings and not isinstance(tree, Literal):
        folded = fold(tree, env)
        if isinstance(folded, Literal):
            shown = str(folded.value).lower()
            linter.warning("constant", tree.span, f"this is always {shown}")
    return sorted(set(linter.findings), key=lambda f: (f.line, f.column, f.code))


def type_of(tree: Node, env: Environment) -> Type:
    """The type of an expression as far as it is known."""
    return _Linter(env, {}).type_of(tree, {}, NO_PATHS)


class _Linter(FieldChecks):
    def __init__(self, env: Environment, elsewhere: Mapping[str, str]) -> None:
        super().__init__(env, elsewhere)
        self._nesting = 0

    def type_of(self, node: Node, scope: Scope, guards: Paths) -> Type:
        return _METHODS[type(node)](self, node, scope, guards)

    def _literal(self, node: Literal, scope: Scope, guards: Paths) -> Type:
        return of_value(node.value)

    # -------------------------------------------------------------------------- operators

    def _unary(self, node: Unary, scope: Scope, guards: Paths) -> Type:
        found = self.type_of(node.operand, scope, guards)
        if node.op == "!":
            self._boolean(found, node.operand, "!")
            return BOOL
        if found.kind not in ("int", "double", "dyn"):
            self.error("no-overload", node.span, f"- does not take {a(found)}")
        return found

    def _boolean(self, found: Type, node: Node, what: str) -> None:
        if found.kind not in ("bool", "dyn"):
            self.error("not-boolean", node.span, f"{what} takes a bool, not {a(found)}")

    def _binary(self, node: Binary, scope: Scope, guards: Paths) -> Type:
        left = self.type_of(node.left, scope, guards)
        right = self.type_of(node.right, scope, guards)
        if node.op == "in":
            self._in(node, left, right)
            return BOOL
        found = result_of(node.op, left, right)
        if found is None:
            message = f"{node.op} does not go with {a(left)} and {a(right)}"
            self.error("no-overload", node.span, message)
            return DYN
        if node.op in ("==", "!=") and not may_equal(left, right):
            outcome = "false" if node.op == "==" else "true"
            message = f"{a(left)} is never equal to {a(right)}: this is always {outcome}"
            self.error("comparison", node.span, message)
        return found

    def _in(self, node: Binary, left: Type, right: Type) -> None:
        if right.kind == "string":
            message = "'in' does not look into strings; write text.contains(part)"
            self.error("in-string", node.span, message)
        elif result_of("in", left, right) is None:
            self.error("no-overload", node.span, f"'in' does not look into {a(right)}")
        elif right.kind == "list" and not may_equal(left, right.element or DYN):
            message = f"{a(left)} is never in {a(right)}"
            self.error("comparison", node.span, message)

    def _logic(self, node: Logic, scope: Scope, guards: Paths) -> Type:
        name = "||" if node.stop else "&&"
        for i, operand in enumerate(node.operands):
            found = self.type_of(operand, scope, guards | beside(node, i))
            self._boolean(found, operand, name)
        return BOOL

    def _ternary(self, node: Ternary, scope: Scope, guards: Paths) -> Type:
        condition = node.condition
        self._boolean(self.type_of(condition, scope, guards), condition, "?:")
        then = self.type_of(node.then, scope, guards | present_if(condition, True))
        otherwise = self.type_of(node.otherwise, scope, guards | present_if(condition, False))
        return joined(then, otherwise)

    # -------------------------------------------------------------------- lists, maps, macros

    def _list(self, node: ListOf, scope: Scope, guards: Paths) -> Type:
        element: Type | None = None
        for i, item in enumerate(node.items):
            found = self.type_of(item, scope, guards)
            if i in node.optionals:
                found = found.element or DYN
            element = found if element is None else joined(element, found)
        return list_of(element or DYN)

    def _map(self, node: MapOf, scope: Scope, guards: Paths) -> Type:
        element: Type | None = None
        for i, (key, value) in enumerate(node.entries):
            kind = self.type_of(key, scope, guards).kind
            if kind not in ("string", "int", "uint", "bool", "dyn"):
                self.error("no-overload", key.span, f"a map has no keys of type {kind}")
            found = self.type_of(value, scope, guards)
            if i in node.optionals:
                found = found.element or DYN
            element = found if element is None else joined(element, found)
        return map_of(element or DYN)

    def _message(self, node: Message, scope: Scope, guards: Paths) -> Type:
        self.error("message", node.span, f"there are no messages here: {node.type_name}{{…}}")
        return DYN

    def _comprehension(self, node: Comprehension, scope: Scope, guards: Paths) -> Type:
        source = self.type_of(node.source, scope, guards)
        if source.kind not in ("list", "map", "object", "dyn"):
            message = f"{node.kind}() runs over lists and maps, not {a(source)}"
            self.error("no-overload", node.span, message)
        inner = {**scope, **_variables(node, source)}
        self._nesting += 1
        if self._nesting == MAX_NESTING + 1:
            message = f"macros nested deeper than {MAX_NESTING}: the steps multiply"
            self.warning("nesting", node.span, message)
        step = DYN
        if node.condition is not None:
            found = self.type_of(node.condition, inner, guards)
            self._boolean(found, node.condition, f"{node.kind}()")
            guards = guards | present_if(node.condition, True)
        if node.step is not None:
            step = self.type_of(node.step, inner, guards)
        self._nesting -= 1
        match node.kind:
            case "all" | "exists" | "exists_one":
                return BOOL
            case "filter":
                return list_of((source.element or DYN) if source.kind == "list" else DYN)
            case "map" | "transformList":
                return list_of(step)
            case "transformMap":
                return map_of(step)
        return MAP

    def _bind(self, node: Bind, scope: Scope, guards: Paths) -> Type:
        init = self.type_of(node.init, scope, guards)
        return self.type_of(node.body, {**scope, node.name: init}, guards)

    def _block(self, node: Block, scope: Scope, guards: Paths) -> Type:
        inner = dict(scope)
        for i, slot in enumerate(node.slots):
            inner[f"{INDEX_PREFIX}{i}"] = self.type_of(slot, inner, guards)
        return self.type_of(node.body, inner, guards)

    def _opt_map(self, node: OptMap, scope: Scope, guards: Paths) -> Type:
        target = self.type_of(node.target, scope, guards)
        if target.kind not in ("optional", "dyn"):
            self.error("no-overload", node.span, f"optMap() is of optionals, not {a(target)}")
        body = self.type_of(node.body, {**scope, node.name: target.element or DYN}, guards)
        return body if node.flat else optional_of(body)

    # ------------------------------------------------------------------------------ calls

    def _call(self, node: Call, scope: Scope, guards: Paths) -> Type:
        function, member = self._function(node, scope)
        if function is None:
            self._unknown_function(node)
            return DYN
        nodes = node.args if not member or node.target is None else (node.target, *node.args)
        given = [self.type_of(arg, scope, guards) for arg in nodes]
        overloads = function.candidates(len(nodes), member)
        if not overloads:
            self._wrong_arguments(node, function, member)
            return DYN
        fitting = [o for o in overloads if _takes(o, given)]
        if not fitting:
            receiver = 1 if member else 0
            shown = ", ".join(map(str, given[receiver:])) or "nothing"
            of = f" of {a(given[0])}" if member else ""
            message = f"{function.name}(){of} does not take {shown}"
            self.error("no-overload", node.span, message)
            return DYN
        if function.name in ("matches", "glob"):
            self._pattern(node, function.name, nodes[1])
        if function.name in ("or", "orValue", "value", "optional.of"):
            return _of_optional(function.name, given)
        found = fitting[0].result
        for overload in fitting[1:]:
            found = joined(found, overload.result)
        return found

    def _function(self, node: Call, scope: Scope) -> tuple[Function | None, bool]:
        if node.target is None:
            return self.env.function(node.function), False
        names = dotted(node.target)
        if names is not None and names[0] not in scope:
            found = self.env.function(".".join((*names, node.function)))
            if found is not None:
                return found, False
        return self.env.functions.get(node.function), True

    def _unknown_function(self, node: Call) -> None:
        name = node.function
        if name in MACRO_NAMES:
            message = f"{name}() is a macro and takes other arguments, as in list.{name}(x, …)"
            self.error("arguments", node.span, message)
            return
        space = dotted(node.target) if node.target is not None else None
        whole = ".".join((*(space or ()), name))
        close = difflib.get_close_matches(whole, self.env.functions, n=1, cutoff=0.7)
        if not close or "." not in close[0]:
            if space is None or self.env.resolve(space, False).used:
                whole = name
            close = difflib.get_close_matches(name, [*self.env.functions, *MACRO_NAMES], n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        self.error("unknown-function", node.span, f"unknown function {whole}{hint}")

    def _wrong_arguments(self, node: Call, function: Function, member: bool) -> None:
        arities = function.arities(member)
        if arities:
            many = "" if arities == ["1"] else "s"
            takes = f"takes {' or '.join(arities)} argument{many}, not {len(node.args)}"
        else:
            takes = (
                f"is written {function.name}(…)" if member else f"is written x.{function.name}(…)"
            )
        self.error("arguments", node.span, f"{function.name}() {takes}")

    def _pattern(self, node: Call, name: str, argument: Node) -> None:
        folded = fold(argument, self.env)
        if not isinstance(folded, Literal):
            if name == "matches":
                message = "the pattern of matches() has to be constant"
                self.error("computed-regex", argument.span, message)
            return
        if type(folded.value) is not str:
            return
        try:
            (pattern if name == "matches" else glob)(folded.value)
        except BadPattern as bad:
            what = "regular expression" if name == "matches" else "glob"
            self.error("bad-regex", argument.span, f"bad {what}: {bad}")


def _takes(overload: Overload, given: list[Type]) -> bool:
    return all(compatible(overload.param(i), kind) for i, kind in enumerate(given))


def _of_optional(name: str, given: list[Type]) -> Type:
    if name == "optional.of":
        return optional_of(given[0])
    element = given[0].element or DYN
    if name == "value":
        return element
    other = given[1].element or DYN if name == "or" else given[1]
    found = joined(element, other)
    return optional_of(found) if name == "or" else found


def _variables(node: Comprehension, source: Type) -> dict[str, Type]:
    """The types of a macro's variables."""
    element = source.element or DYN
    if len(node.names) == 1:
        return {node.names[0]: element if source.kind == "list" else DYN}
    first = INT if source.kind == "list" else DYN
    return {node.names[0]: first, node.names[1]: element}


_METHODS: Final[Mapping[type[Node], Callable[..., Type]]] = {
    Literal: _Linter._literal,
    Ident: _Linter.name_type,
    Select: _Linter.name_type,
    Has: _Linter.has_type,
    Index: _Linter.index_type,
    Unary: _Linter._unary,
    Binary: _Linter._binary,
    Logic: _Linter._logic,
    Ternary: _Linter._ternary,
    ListOf: _Linter._list,
    MapOf: _Linter._map,
    Message: _Linter._message,
    Comprehension: _Linter._comprehension,
    Bind: _Linter._bind,
    Block: _Linter._block,
    OptMap: _Linter._opt_map,
    Call: _Linter._call,
}
