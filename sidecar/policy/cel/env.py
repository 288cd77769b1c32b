"""What an expression may name: variables, definitions, functions, types, and where from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from sidecar.policy.cel.functions import STANDARD
from sidecar.policy.cel.functions.registry import Function, Functions
from sidecar.policy.cel.types import Type
from sidecar.policy.cel.values import TYPES

if TYPE_CHECKING:
    from sidecar.policy.cel.nodes import Node


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """The names of one place where expressions stand (a phase of a policy).

    ``variables`` are the names an input may have; a name with dots is one variable. ``None``
    takes any name from the input. ``definitions`` are expressions under a (dotted) name,
    evaluated when first read and once a decision. ``container`` is CEL's namespace for
    relative names. With ``checked`` an unknown name does not compile; without, it is an error
    when it is reached.
    """

    variables: Mapping[str, Type] | None = None
    definitions: Mapping[str, Node] = field(default_factory=dict)
    functions: Functions = field(default_factory=lambda: STANDARD, repr=False)
    container: str = ""
    checked: bool = True

    def resolve(self, names: Sequence[str], absolute: bool) -> Resolved:
        """What a dotted name stands for: the longest declared prefix of it.

        ``used`` is how many of the names it takes; the rest are fields. 0 means that nothing
        of that name is declared.
        """
        prefixes = [""] if absolute else _prefixes(self.container)
        for prefix in prefixes:
            for used in range(len(names), 0, -1):
                name = prefix + ".".join(names[:used])
                if name in self.definitions:
                    return Resolved("definition", name, used)
                if self.variables is not None and name in self.variables:
                    return Resolved("variable", name, used)
                if name in TYPES:
                    return Resolved("type", name, used)
        if self.variables is None:
            return Resolved("variable", names[0], 1)
        return Resolved("variable", names[0], 0)

    def function(self, name: str) -> Function | None:
        """The function of that (dotted) name, looked up in the container first."""
        for prefix in _prefixes(self.container):
            found = self.functions.get(prefix + name)
            if found is not None:
                return found
        return None


ResolvedKind: TypeAlias = Literal["variable", "definition", "type"]


class Resolved(NamedTuple):
    """What a name stands for, under which full name, and how many of its parts that took."""

    kind: ResolvedKind
    name: str
    used: int


def _prefixes(container: str) -> list[str]:
    """``a.b`` → ``a.b.``, ``a.`` and nothing: the order of name resolution."""
    if not container:
        return [""]
    parts = container.split(".")
    return [".".join(parts[:n]) + "." for n in range(len(parts), 0, -1)] + [""]


OPEN: Final = Environment()
"""Takes any variable from the input, and the standard functions."""
