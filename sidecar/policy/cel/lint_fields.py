"""The lint's checks of names and fields: what is declared, and what may be absent."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import Finding
from sidecar.policy.cel.guards import NO_PATHS, Paths, path_of
from sidecar.policy.cel.nodes import Has, Ident, Index, Literal, Node, Select, Span
from sidecar.policy.cel.types import BOOL, DYN, TYPE, Type, optional_of

Scope: TypeAlias = Mapping[str, Type]


def a(kind: Type) -> str:
    """A type with its article."""
    return f"{'an' if str(kind)[0] in 'aeiou' else 'a'} {kind}"


def suggest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: the one that was meant, or those there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    shown = ", ".join(names[:12])
    return f"; there are {shown}{', …' if len(names) > 12 else ''}" if names else ""


class FieldChecks(ABC):
    """Types of names and fields; the types of everything else are a subclass's."""

    def __init__(self, env: Environment, elsewhere: Mapping[str, str]) -> None:
        self.env: Final = env
        self.elsewhere: Final = elsewhere
        self.findings: list[Finding] = []
        self._defining: frozenset[str] = frozenset()
        self._warned: set[tuple[str, ...]] = set()

    @abstractmethod
    def type_of(self, node: Node, scope: Scope, guards: Paths) -> Type:
        """The type of a node; ``guards`` are the paths known to be there."""

    def error(self, code: str, span: Span, message: str) -> None:
        self.findings.append(Finding(code, span.line, span.column, message))

    def warning(self, code: str, span: Span, message: str) -> None:
        self.findings.append(Finding(code, span.line, span.column, message, warning=True))

    def name_type(self, node: Ident | Select, scope: Scope, guards: Paths) -> Type:
        fields: list[Select] = []
        below: Node = node
        while isinstance(below, Select):
            fields.append(below)
            below = below.operand
        fields.reverse()
        if not isinstance(below, Ident):
            found = self.type_of(below, scope, guards)
            return self._fields(found, fields, below, guards, depends=False)
        if below.name in scope and not below.absolute:
            return self._fields(scope[below.name], fields, below, guards, depends=False)
        names = (below.name, *(field.field for field in fields))
        resolved = self.env.resolve(names, below.absolute)
        if resolved.used == 0:
            self._unknown_variable(below, names)
            return DYN
        rest = fields[resolved.used - 1 :]
        if resolved.kind == "type":
            return self._fields(TYPE, rest, below, guards, depends=False)
        if resolved.kind == "definition":
            found = self._definition(resolved.name, below)
            return self._fields(found, rest, below, guards, depends=False)
        variables = self.env.variables
        found = DYN if variables is None else variables[resolved.name]
        return self._fields(found, rest, below, guards, depends=variables is not None)

    def _unknown_variable(self, node: Ident, names: tuple[str, ...]) -> None:
        unknown, hint = node.name, self.elsewhere.get(node.name)
        if hint is None and len(names) > 1 and f"{node.name}." in self.elsewhere:
            # A space of names: it is there, and this one in it is not.
            unknown, hint = ".".join(names[:2]), self.elsewhere[f"{node.name}."]
        if hint is None:
            hint = suggest(node.name, self.env.variables or {}).removeprefix("; ")
        message = f"unknown variable {unknown}" + (f"; {hint}" if hint else "")
        self.error("unknown-variable", node.span, message)

    def _definition(self, name: str, node: Ident) -> Type:
        if name in self._defining:
            self.error("circular", node.span, f"{name} is defined by itself")
            return DYN
        inner = type(self)(self.env, self.elsewhere)
        inner._defining = self._defining | {name}
        found = inner.type_of(self.env.definitions[name], {}, NO_PATHS)
        if any(finding.code == "circular" for finding in inner.findings):
            self.error("circular", node.span, f"{name} is defined by itself")
        return found

    def _fields(
        self, found: Type, fields: list[Select], root: Node, guards: Paths, *, depends: bool
    ) -> Type:
        """The type below a value; ``depends``: it comes from the input, so it may lack fields."""
        for field in fields:
            found, sure = self._field(found, field.field, field.span, field.optional)
            depends = depends and not field.optional and found.kind != "optional"
            if depends and not sure:
                depends = self._guarded(field, guards)
        return found

    def _guarded(self, field: Select | Index, guards: Paths) -> bool:
        """Warns of a field that may be absent; afterwards the fields below are not told too."""
        path = path_of(field)
        if path is None or path in self._warned:
            return False
        if path in guards:
            return True
        self._warned.add(path)
        base, name = ".".join(path[:-1]), path[-1]
        if name.isidentifier():
            shown, guards_are = f"{base}.{name}", f"has({base}.{name}) or {base}.?{name}.orValue(…)"
        else:
            shown = f'{base}["{name}"]'
            guards_are = f'"{name}" in {base} or {base}[?"{name}"].orValue(…)'
        self.warning("unguarded", field.span, f"{shown} may be absent; guard it with {guards_are}")
        return False

    def _field(self, base: Type, name: str, span: Span, optional: bool) -> tuple[Type, bool]:
        """The type of a field, and whether every value of the base has it."""
        inner = base
        if base.kind == "optional":
            inner, optional = base.element or DYN, True
        sure = False
        match inner.kind:
            case "object":
                field = (inner.fields or {}).get(name)
                if field is None:
                    hint = suggest(name, inner.fields or {})
                    self.error("unknown-field", span, f"there is no field {name}{hint}")
                    return DYN, True
                found, sure = field.type, not field.optional
            case "map":
                found = inner.element or DYN
            case "dyn":
                found = DYN
            case _:
                self.error("unknown-field", span, f"{a(inner)} has no field {name}")
                return DYN, True
        if optional and found.kind != "optional":
            return optional_of(found), True
        return found, sure

    def has_type(self, node: Has, scope: Scope, guards: Paths) -> Type:
        base = self.type_of(node.operand, scope, guards)
        self._field(base, node.field, node.span, node.optional)
        return BOOL

    def index_type(self, node: Index, scope: Scope, guards: Paths) -> Type:
        base = self.type_of(node.operand, scope, guards)
        key = self.type_of(node.key, scope, guards)
        if isinstance(node.key, Literal) and type(node.key.value) is str and base.kind != "list":
            found, sure = self._field(base, node.key.value, node.span, node.optional)
            path = path_of(node)
            if path and path[0] not in scope and not sure and not node.optional:
                self._guarded(node, guards)
            return found
        inner = (base.element or DYN) if base.kind == "optional" else base
        if inner.kind not in ("list", "map", "object", "dyn"):
            self.error("no-overload", node.span, f"{a(inner)} has no elements")
        if inner.kind == "list" and key.kind not in ("int", "uint", "double", "dyn"):
            self.error("no-overload", node.span, f"a list is indexed by int, not {key}")
        found = inner.element or DYN
        return optional_of(found) if node.optional or base.kind == "optional" else found
