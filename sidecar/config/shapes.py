"""What a value may look like: one object reads it, reports its faults, and is its JSON Schema.

A shape never raises for what a file says. It tells its faults to the place it was given and
returns ``BAD``, so that one load finds everything that is wrong.
"""

from __future__ import annotations

import os.path
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Mapping as Map
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from sidecar.config import values
from sidecar.config.faults import Fault, Faults, shown
from sidecar.config.nodes import Mapping, Node, Scalar, Sequence, kind
from sidecar.config.secrets import EnvFileSecrets
from sidecar.config.types import Listen, SecretRef
from sidecar.ports.secrets import SecretError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Schema: TypeAlias = dict[str, object]

_SIMPLE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Bad:
    """The value had a fault, which has been told."""


BAD: Final = Bad()


class Context:
    """One file being read. ``base`` is the folder to which its relative paths belong."""

    __slots__ = ("base", "check_secrets", "environ", "faults", "file", "secrets")

    def __init__(
        self,
        file: str,
        base: Path,
        environ: Map[str, str],
        faults: Faults,
        check_secrets: bool = True,
    ) -> None:
        self.file = file
        self.base = base
        self.environ = environ
        self.faults = faults
        self.check_secrets = check_secrets
        self.secrets = EnvFileSecrets(environ)

    def of(self, file: str, base: Path) -> Context:
        """The same for another file of one load."""
        return Context(file, base, self.environ, self.faults, self.check_secrets)


class At:
    """A place in the settings: ``path`` as people write it, ``key`` its last part."""

    __slots__ = ("context", "key", "path")

    def __init__(self, context: Context, path: str = "", key: str = "") -> None:
        self.context = context
        self.path = path
        self.key = key

    def child(self, key: str) -> At:
        """The setting ``key`` below this one."""
        if _SIMPLE_KEY.fullmatch(key) and len(key) <= 60:
            path = f"{self.path}.{key}" if self.path else key
        else:
            quoted = shown(key).replace("\\", "\\\\").replace('"', '\\"')
            path = f'{self.path}["{quoted}"]'
        return At(self.context, path, key)

    def item(self, index: int) -> At:
        """The list's entry ``index``, counted from 0."""
        return At(self.context, f"{self.path}[{index}]", self.key)

    def fault(self, node: Node, message: str) -> Bad:
        """Tell what is wrong here."""
        self.context.faults.add(
            Fault(self.context.file, node.line, node.column, self.path, message)
        )
        return BAD


class Shape(ABC, Generic[T_co]):
    """One kind of value."""

    @abstractmethod
    def read(self, node: Node, at: At) -> T_co | Bad:
        """The value, or ``BAD`` after telling why not."""

    @abstractmethod
    def schema(self) -> Schema:
        """The JSON Schema (2020-12) of what is read."""


def text_of(node: Node, at: At, what: str) -> str | Bad:
    """The node's text, refused when YAML reads it as something else."""
    if not isinstance(node, Scalar):
        return at.fault(node, f"expected {what}, got {kind(node)}")
    if node.value is None:
        return at.fault(node, f"expected {what}, got nothing; give it a value or remove the key")
    if not isinstance(node.value, str):
        return at.fault(node, f"expected {what}, got {kind(node)}; put it in quotes")
    if "\0" in node.value or any("\ud800" <= c <= "\udfff" for c in node.value):
        return at.fault(node, "has a NUL or half a character in it")
    return node.value


class Text(Shape[T_co]):
    """Text that ``parse`` turns into a value; its ``ValueError`` completes ``"…" <message>``.

    ``what`` names the expected thing. ``bare`` takes an unquoted number as its text, for kinds
    of values that look like one (``4096`` bytes). ``quiet`` is for text that may hold a secret:
    no message repeats it.
    """

    def __init__(
        self,
        what: str,
        parse: Callable[[str], T_co],
        schema: Schema,
        *,
        bare: bool = False,
        quiet: bool = False,
    ) -> None:
        self._what = what
        self._parse = parse
        self._schema = schema
        self._bare = bare
        self._quiet = quiet

    def read(self, node: Node, at: At) -> T_co | Bad:
        bare = self._bare and isinstance(node, Scalar) and isinstance(node.value, int | float)
        if bare and isinstance(node, Scalar) and not isinstance(node.value, bool):
            text: str | Bad = node.text
        else:
            text = text_of(node, at, self._what)
        if isinstance(text, Bad):
            return BAD
        try:
            return self._parse(text)
        except ValueError as error:
            return at.fault(node, str(error) if self._quiet else f'"{shown(text)}" {error}')

    def schema(self) -> Schema:
        return self._schema


def plain_text(what: str = "text", longest: int = 4096) -> Text[str]:
    """Any text that is not empty."""

    def parse(text: str) -> str:
        if not text:
            raise ValueError(f"is empty; expected {what}")
        if len(text) > longest:
            raise ValueError(f"is longer than {longest} characters")
        return text

    return Text(what, parse, {"type": "string", "minLength": 1})


def quiet_text(what: str, check: Callable[[str], object] = str) -> Text[str]:
    """Text that may hold a secret, looked at by ``check``."""

    def parse(text: str) -> str:
        check(text)
        return text

    return Text(what, parse, {"type": "string"}, quiet=True)


class Flag(Shape[bool]):
    """``true`` or ``false``."""

    def read(self, node: Node, at: At) -> bool | Bad:
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            return node.value
        return at.fault(node, f"expected true or false, got {kind(node)}")

    def schema(self) -> Schema:
        return {"type": "boolean"}


class Whole(Shape[int]):
    """A whole number within bounds."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def read(self, node: Node, at: At) -> int | Bad:
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, int) or isinstance(value, bool):
            return at.fault(node, f"expected a whole number, got {kind(node)}")
        if not self._least <= value <= self._most:
            return at.fault(node, f"expected a number from {self._least} to {self._most}")
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self._least, "maximum": self._most}


class Choice(Shape[str]):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def read(self, node: Node, at: At) -> str | Bad:
        text = text_of(node, at, f"one of {', '.join(self._words)}")
        if isinstance(text, Bad):
            return BAD
        if text not in self._words:
            return at.fault(node, f'"{shown(text)}" is not one of {", ".join(self._words)}')
        return text

    def schema(self) -> Schema:
        return {"enum": list(self._words)}


def duration(least: float, most: float) -> Text[float]:
    """Seconds, within bounds (which are in seconds too)."""

    def parse(text: str) -> float:
        seconds = values.duration(text)
        if not least <= seconds <= most:
            raise ValueError(f"is out of bounds; from {span(least)} to {span(most)}")
        return seconds

    schema: Schema = {"type": "string", "pattern": values.DURATION}
    return Text("a duration such as 30s", parse, schema, bare=True)


def span(seconds: float) -> str:
    """Seconds as a file would hold them."""
    for unit, each in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= each and seconds % each == 0:
            return f"{seconds / each:g}{unit}"
    return f"{seconds * 1000:g}ms" if seconds else "0s"


def size(least: int, most: int) -> Text[int]:
    """Bytes, within bounds."""

    def parse(text: str) -> int:
        number = values.size(text)
        if not least <= number <= most:
            raise ValueError(f"is out of bounds; from {least} to {most} bytes")
        return number

    schema: Schema = {"type": ["string", "integer"], "pattern": values.SIZE, "minimum": least}
    return Text("a size such as 4MiB", parse, schema, bare=True)


class Address(Shape[Listen | None]):
    """A listen address; ``off`` is ``None``. ``unix`` says whether it may be a socket's path."""

    def __init__(self, *, unix: bool = True) -> None:
        self._unix = unix

    def read(self, node: Node, at: At) -> Listen | Bad | None:
        if isinstance(node, Scalar) and (node.value is False or node.value == "off"):
            return None
        if isinstance(node, Scalar) and isinstance(node.value, int):
            return at.fault(node, "a port alone; name the address too, such as 127.0.0.1:8808")
        address = Text("an address such as 127.0.0.1:8808", values.listen, {}).read(node, at)
        if isinstance(address, Listen) and address.path is not None and not self._unix:
            return at.fault(node, "cannot be a unix socket; write an address with a port")
        return address

    def schema(self) -> Schema:
        unix = "unix:/.+|" if self._unix else ""
        pattern = rf"^(?:{unix}(?:\[[0-9A-Fa-f:.%]+\]|[^:\[\]*/]+):[0-9]{{1,5}}|off)$"
        return {"anyOf": [{"type": "string", "pattern": pattern}, {"const": False}]}


class FilePath(Shape[Path]):
    """A path: ``~`` is the home folder, a relative one belongs to the file's own folder."""

    def read(self, node: Node, at: At) -> Path | Bad:
        text = text_of(node, at, "a path")
        if isinstance(text, Bad):
            return BAD
        if not text:
            return at.fault(node, "is empty; expected a path")
        return absolute(text, at.context)

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1}


def absolute(text: str, context: Context) -> Path:
    """``text`` as :class:`FilePath` reads it."""
    home = context.environ.get("HOME", "")
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    return Path(os.path.normpath(context.base / text))


class ListOf(Shape[tuple[T_co, ...]]):
    """A list; every entry of it is read."""

    def __init__(self, item: Shape[T_co], *, what: str, least: int = 0) -> None:
        self._item = item
        self._what = what
        self._least = least

    def read(self, node: Node, at: At) -> tuple[T_co, ...] | Bad:
        if not isinstance(node, Sequence):
            got = kind(node)
            hint = "; write it in brackets, as in [a, b]" if isinstance(node, Scalar) else ""
            return at.fault(node, f"expected a list of {self._what}, got {got}{hint}")
        if len(node.items) < self._least:
            return at.fault(node, f"expected a list of {self._what}, got an empty one")
        read = [self._item.read(item, at.item(i)) for i, item in enumerate(node.items)]
        good = tuple(item for item in read if not isinstance(item, Bad))
        return good if len(good) == len(read) else BAD

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self._item.schema()}
        return schema | ({"minItems": self._least} if self._least else {})


class MapOf(Shape[dict[str, T_co]]):
    """A mapping whose keys are the operator's own names."""

    def __init__(
        self, value: Shape[T_co], *, what: str, key: Callable[[str], object], pattern: str = ""
    ) -> None:
        self._value = value
        self._what = what
        self._key = key
        self._pattern = pattern

    def read(self, node: Node, at: At) -> dict[str, T_co] | Bad:
        if not isinstance(node, Mapping):
            return at.fault(node, f"expected a mapping of {self._what}, got {kind(node)}")
        found: dict[str, T_co] = {}
        for name, key, value in node:
            try:
                self._key(name)
            except ValueError as error:
                at.child(name).fault(key, str(error))
            read = self._value.read(value, at.child(name))
            if not isinstance(read, Bad):
                found[name] = read
        return found

    def schema(self) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": self._value.schema()}
        if self._pattern:
            schema["propertyNames"] = {"pattern": self._pattern}
        return schema


class Either(Shape[T_co]):
    """One shape for lists, another for everything else (``gated: true`` or ``[globs]``)."""

    def __init__(self, other: Shape[T_co], listed: Shape[T_co], what: str) -> None:
        self._other = other
        self._listed = listed
        self._what = what

    def read(self, node: Node, at: At) -> T_co | Bad:
        if isinstance(node, Sequence):
            return self._listed.read(node, at)
        if isinstance(node, Scalar) and isinstance(node.value, bool):
            return self._other.read(node, at)
        return at.fault(node, f"expected {self._what}, got {kind(node)}")

    def schema(self) -> Schema:
        return {"anyOf": [self._other.schema(), self._listed.schema()]}


class Secret(Shape[SecretRef]):
    """A secret that is written in place, or referred to by ``from_env`` or ``from_file``.

    ``check`` looks at the value and raises ``ValueError`` with a message that does not hold it.
    """

    keys = ("from_env", "from_file", "template")

    def __init__(self, check: Callable[[str], object]) -> None:
        self.check = check

    def read(self, node: Node, at: At) -> SecretRef | Bad:
        if not isinstance(node, Mapping):
            what = "text, or {from_env: NAME} or {from_file: PATH}"
            text = quiet_text(what).read(node, at)
            return BAD if isinstance(text, Bad) else self.verify(SecretRef(literal=text), node, at)
        from sidecar.config.faults import did_you_mean

        known: dict[str, str] = {}
        for name, key, value in node:
            here = at.child(name)
            if name not in self.keys:
                expected = f"expected {', '.join(self.keys)}{did_you_mean(name, self.keys)}"
                here.fault(key, f"unknown key; {expected}")
                continue
            text = quiet_text("text").read(value, here)
            known[name] = "" if isinstance(text, Bad) else text
            if text == "":
                here.fault(value, "is empty")
        if len(known.keys() & {"from_env", "from_file"}) != 1:
            return at.fault(node, "needs from_env or from_file, and only one of them")
        template = known.get("template")
        if template and template.count("{}") != 1:
            place = node.entries["template"][1]
            return at.child("template").fault(place, "needs {} once, where the secret goes")
        if not all(known.values()):
            return BAD
        file = known.get("from_file")
        ref = SecretRef(
            known.get("from_env"), None if file is None else absolute(file, at.context), template
        )
        return self.verify(ref, node, at)

    def verify(self, ref: SecretRef, node: Node, at: At) -> SecretRef | Bad:
        """Look at the value; a file that was not asked to check secrets skips that."""
        if ref.literal is None and not at.context.check_secrets:
            return ref
        try:
            self.check(at.context.secrets.read(ref))
        except (SecretError, ValueError) as error:
            return at.fault(node, f"{error}" if isinstance(error, SecretError) else f"it {error}")
        return ref

    def schema(self) -> Schema:
        text: Schema = {"type": "string"}
        reference: Schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "from_env": text | {"description": "The environment variable that holds it."},
                "from_file": text | {"description": "The file that holds it, read again each use."},
                "template": text | {"description": "Text around it; {} is where it goes."},
            },
            "oneOf": [{"required": ["from_env"]}, {"required": ["from_file"]}],
        }
        return {"anyOf": [text, reference]}


class SecretReference(Secret):
    """A secret that may not stand in the file itself."""

    def read(self, node: Node, at: At) -> SecretRef | Bad:
        if not isinstance(node, Mapping):
            return at.fault(node, "write {from_file: PATH} or {from_env: NAME}: it is a secret")
        return super().read(node, at)

    def schema(self) -> Schema:
        both = super().schema()["anyOf"]
        assert isinstance(both, list)
        reference: Schema = both[1]
        return reference


class OrOff(Shape[T_co | None]):
    """A value, or ``off``."""

    def __init__(self, shape: Shape[T_co]) -> None:
        self._shape = shape

    def read(self, node: Node, at: At) -> T_co | Bad | None:
        if isinstance(node, Scalar) and (node.value is False or node.value == "off"):
            return None
        return self._shape.read(node, at)

    def schema(self) -> Schema:
        return {"anyOf": [self._shape.schema(), {"enum": ["off", False]}]}


class TokenFile(Shape[SecretRef]):
    """The path of a file that holds a bearer token."""

    def read(self, node: Node, at: At) -> SecretRef | Bad:
        path = FilePath().read(node, at)
        if isinstance(path, Bad):
            return BAD
        return Secret(values.token).verify(SecretRef(from_file=path), node, at)

    def schema(self) -> Schema:
        return FilePath().schema()
