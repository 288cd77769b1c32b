"""How functions are declared, and how a call finds the implementation for its types.

An implementation takes the evaluation's ``Budget`` and then its arguments, the receiver
first. Before it is called the arguments have exactly the declared types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from sidecar.policy.cel.types import CLASSES, Type
from sidecar.policy.cel.values import Value, no_overload

Implementation: TypeAlias = Callable[..., Value]


class Overload(msgspec.Struct, frozen=True):
    """One signature. ``member`` is ``a.f(b)``, otherwise ``f(a, b)``.

    ``variadic``: the last parameter may come any number of times, at least once.
    """

    params: tuple[Type, ...]
    result: Type
    call: Implementation
    member: bool = False
    variadic: bool = False

    def takes(self, count: int) -> bool:
        """Whether that many arguments (the receiver included) fit."""
        return count >= len(self.params) if self.variadic else count == len(self.params)

    def param(self, position: int) -> Type:
        """The declared type of an argument."""
        return self.params[min(position, len(self.params) - 1)]


class Function:
    """A name with its overloads."""

    __slots__ = ("name", "overloads")

    def __init__(self, name: str, *overloads: Overload) -> None:
        self.name = name
        self.overloads = overloads

    def candidates(self, count: int, member: bool) -> list[Overload]:
        """The overloads for that many arguments in that style."""
        return [o for o in self.overloads if o.member is member and o.takes(count)]

    def arities(self, member: bool) -> list[str]:
        """How many arguments a call in that style may have, for messages."""
        receiver = 1 if member else 0
        counts = {
            f"{len(o.params) - receiver}{' or more' if o.variadic else ''}"
            for o in self.overloads
            if o.member is member
        }
        return sorted(counts)


Functions: TypeAlias = Mapping[str, Function]


def table(functions: Iterable[Function]) -> dict[str, Function]:
    """Functions by name; the same name in two rooms has the overloads of both."""
    found: dict[str, Function] = {}
    for function in functions:
        known = found.get(function.name)
        overloads = (*known.overloads, *function.overloads) if known else function.overloads
        found[function.name] = Function(function.name, *overloads)
    return found


class Dispatch:
    """Finds the implementation of one function, style and number of arguments.

    ``exact`` maps the Python classes of the arguments to the implementation; it is filled as
    combinations come up (there are few) and may be read without going through ``find``.
    """

    __slots__ = ("_overloads", "exact", "name")

    def __init__(self, name: str, overloads: list[Overload]) -> None:
        self.name = name
        self.exact: dict[tuple[type, ...], Implementation] = {}
        self._overloads = overloads

    def find(self, *args: Value) -> Implementation:
        """The implementation for these arguments.

        Raises:
            EvalError: no overload has these types.
        """
        classes = tuple(map(type, args))
        known = self.exact.get(classes)
        if known is not None:
            return known
        for overload in self._overloads:
            if all(_fits(overload.param(i), cls) for i, cls in enumerate(classes)):
                self.exact[classes] = overload.call
                return overload.call
        raise no_overload(self.name, *args)


def _fits(declared: Type, cls: type) -> bool:
    return declared.kind == "dyn" or cls in CLASSES[declared.kind]
