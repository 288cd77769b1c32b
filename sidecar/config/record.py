"""A mapping with known keys: its fields, what is not built yet, and what follows from both."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as Map
from typing import Final, Generic, TypeVar, cast

from sidecar.config.faults import did_you_mean, shown
from sidecar.config.nodes import Mapping, Node, Plain, Scalar, kind, plain
from sidecar.config.shapes import At, Bad, Schema, Shape, span
from sidecar.config.types import Listen, Rate

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Field(Generic[T_co]):
    """One key: its shape, what it is when absent, and a sentence about it.

    ``empty`` says that a key without a value is as good as no key. Only where that cannot lift
    a restriction: an ``only:`` whose entries are all commented out must not offer everything.
    """

    def __init__(
        self,
        key: str,
        shape: Shape[T_co],
        default: T_co,
        help: str,
        *,
        empty: bool = False,
        required: bool = False,
    ) -> None:
        self.key: Final = key
        self.shape: Final = shape
        self.default: Final = default
        self.help: Final = help
        self.empty: Final = empty
        self.required: Final = required


class NotBuilt:
    """A key of the design whose feature this version lacks.

    ``noop`` are the values that change nothing, which are taken: a file written for a later
    version loads as long as it asks for nothing.
    """

    def __init__(self, what: str, noop: tuple[Plain, ...] = ()) -> None:
        self.what: Final = what
        self.noop: Final = noop


class Got:
    """The fields of one mapping that were read, and their places for checks across fields."""

    def __init__(self, node: Mapping, at: At, values: dict[str, object]) -> None:
        self.node: Final = node
        self.at: Final = at
        self._values = values

    def __getitem__(self, wanted: Field[T]) -> T:
        """The field's value, its default where the file has none or a bad one."""
        return cast(T, self._values.get(wanted.key, wanted.default))

    def has(self, wanted: Field[T]) -> bool:
        """Whether the file has the key, be its value good or bad."""
        return wanted.key in self.node.entries

    def good(self, wanted: Field[T]) -> bool:
        """Whether the file has the key with a value that could be read."""
        return wanted.key in self._values

    def place(self, wanted: Field[T]) -> Node:
        """The value's node; the whole mapping's where the key is absent."""
        entry = self.node.entries.get(wanted.key)
        return self.node if entry is None else entry[1]

    def fault(self, wanted: Field[T] | None, message: str) -> None:
        """Tell what is wrong with a field, or with the mapping."""
        if wanted is None:
            self.at.fault(self.node, message)
        else:
            self.at.child(wanted.key).fault(self.place(wanted), message)


class Record(Shape[T_co]):
    """A mapping with known keys.

    ``not_built`` and ``hints`` are by key; a hint is what to do instead of a key that people
    try. ``build`` makes the value and tells the faults across fields. ``rules`` is JSON Schema
    for the same.
    """

    def __init__(
        self,
        what: str,
        fields: tuple[Field[object], ...],
        build: Callable[[Got], T_co],
        not_built: Map[str, NotBuilt] | None = None,
        *,
        hints: Map[str, str] | None = None,
        rules: Schema | None = None,
    ) -> None:
        self.what: Final = what
        self.fields: Final = fields
        self.build: Final = build
        self.not_built: Final = not_built or {}
        self.hints: Final = hints or {}
        self.rules: Final = rules or {}

    def read(self, node: Node, at: At) -> T_co | Bad:
        if not isinstance(node, Mapping):
            return at.fault(node, f"expected {self.what}, got {kind(node)}")
        known = {each.key: each for each in self.fields}
        values: dict[str, object] = {}
        for name, key, value in node:
            here = at.child(name)
            wanted = known.get(name)
            if wanted is None:
                self._unknown(name, key, value, here)
            elif isinstance(value, Scalar) and value.value is None:
                if not wanted.empty:
                    here.fault(key, "has no value; give it one or remove the key")
            else:
                read = wanted.shape.read(value, here)
                if not isinstance(read, Bad):
                    values[name] = read
        for wanted in self.fields:
            if wanted.required and wanted.key not in node.entries:
                at.fault(node, f"{wanted.key} is missing: {wanted.help}")
        return self.build(Got(node, at, values))

    def _unknown(self, name: str, key: Scalar, value: Node, here: At) -> None:
        missing = self.not_built.get(name)
        if missing is not None:
            given = plain(value)
            if given is not None and given not in missing.noop:
                here.fault(key, not_available(missing.what))
            return
        hint = self.hints.get(name)
        if hint is not None:
            here.fault(key, f"unknown key; {hint}")
            return
        keys = [each.key for each in self.fields]
        near = did_you_mean(name, [*keys, *self.not_built])
        listed = "" if near else f"; {self.what} takes {', '.join(keys)}"
        here.fault(key, f'unknown key "{shown(name)}"{near or listed}')

    def schema(self) -> Schema:
        properties: dict[str, object] = {}
        for each in self.fields:
            shape = each.shape.schema()
            if each.empty:
                shape = {"anyOf": [shape, {"type": "null"}]}
            default = None if isinstance(each.shape, Record) else written(each.default)
            shape |= {"description": each.help} | ({} if default is None else {"default": default})
            properties[each.key] = shape
        for name, missing in self.not_built.items():
            about = f"Not available in this version: {missing.what}."
            properties[name] = {"description": about, "enum": [*missing.noop, None]}
        schema: Schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
        }
        required = [each.key for each in self.fields if each.required]
        return schema | ({"required": required} if required else {}) | self.rules


def not_available(what: str) -> str:
    """What is said of a key whose feature this version lacks."""
    return f"not available in this version ({what}); remove it"


def written(default: object) -> object:
    """A default as a file would hold it; ``None`` where a schema cannot tell it."""
    if isinstance(default, Listen):
        return str(default)
    if isinstance(default, float):
        return span(default)
    if isinstance(default, Rate):
        return str(default)
    return default if isinstance(default, bool | int | str) and default != "" else None


def every(namespace: type) -> tuple[Field[object], ...]:
    """The fields that a class holds, in the order in which they are written."""
    return tuple(each for each in vars(namespace).values() if isinstance(each, Field))
