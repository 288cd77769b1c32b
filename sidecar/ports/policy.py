"""Policy engines: files in, decisions out. Found by entry point ``sidecar.policy_engines``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from sidecar.model import Decision, JsonObject, Phase


@dataclass(frozen=True, slots=True)
class PolicyFault:
    """One thing wrong with a policy file. ``line`` and ``column`` are 1-based, 0 for the file.

    ``rule`` is ``policy/id`` as far as known; ``code`` is the kind of fault, for machines.
    """

    file: str
    line: int
    column: int
    rule: str
    message: str
    warning: bool = False
    code: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        kind = "warning: " if self.warning else ""
        rule = f"{self.rule}: " if self.rule else ""
        return f"{where}: {kind}{rule}{self.message}"


class PolicyErrors(Exception):
    """Every fault of a load, all at once."""

    def __init__(self, faults: Sequence[PolicyFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


class Policy(Protocol):
    """One loaded revision. Immutable, safe to ask from any thread."""

    @property
    def revision(self) -> str:
        """The sha256 (hex) of all its files."""
        ...

    def decide(self, phase: Phase, given: JsonObject) -> Decision:
        """The decision for one input. Total: whatever goes wrong is a deny that says so."""
        ...

    def refs(self, phase: Phase) -> frozenset[str]:
        """The dotted names of the input that some rule of the phase reads."""
        ...

    def specialise(self, known: Mapping[str, object]) -> Policy:
        """The same policy with part of its input known beforehand (a tool's static fields)."""
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is made with. ``default`` is the decision where no rule matches.

    ``schemas`` gives the input schema of a tool (server, its own name for the tool), or
    ``None``; an engine may check the names of arguments with it.
    """

    default: Literal["allow", "deny"] = "allow"
    schemas: Callable[[str, str], JsonObject | None] | None = None


class PolicyEngine(Protocol):
    """Turns files into a policy.

    An entry point of the group ``sidecar.policy_engines`` names what makes one: it is called
    with ``EngineOptions``. What it makes is asked through ``sidecar.policy.guard``, so that
    whatever it does wrong is a deny.
    """

    def load(self, files: Sequence[Path]) -> Policy:
        """Compile and check every file.

        Raises:
            PolicyErrors: every error found, in file order.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExpressionError:
    """Why an expression has no value. ``line`` and ``column`` are 1-based in its text.

    ``message`` never quotes a value of the input.
    """

    kind: str
    line: int
    column: int
    message: str


class Expression(Protocol):
    """A compiled expression: its value, or an ``ExpressionError``."""

    def __call__(self, given: JsonObject) -> object: ...


class ExpressionEngine(Protocol):
    """Inside the CEL engine: text to a compiled expression (``cel``, ``celpy``)."""

    def compile(self, text: str) -> Expression: ...
