"""What the verbs of ``sidecar policy`` share: which policies are meant, and how they are told."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sidecar.cli import common
from sidecar.config.types import SHIPPED
from sidecar.policy import EngineOptions, load
from sidecar.policy.guard import Guarded
from sidecar.policy.reading import BadInput, as_object
from sidecar.ports.policy import PolicyFault

USAGE, BAD, FOUND = 2, 3, 4

__all__ = [
    "BAD",
    "FOUND",
    "USAGE",
    "BadInput",
    "Scope",
    "as_object",
    "complain",
    "dump",
    "many",
    "read_json",
    "scope",
]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which policies a verb is about."""

    paths: tuple[Path, ...]
    engine: str
    default: Literal["allow", "deny"]
    shipped: tuple[str, ...]

    def load(self, options: EngineOptions | None = None) -> Guarded:
        """Load them.

        Raises:
            PolicyErrors: everything that is wrong.
        """
        options = EngineOptions(default=self.default) if options is None else options
        return load(self.paths, engine=self.engine, shipped=self.shipped, options=options)


def scope(arguments: argparse.Namespace, paths: Sequence[Path] | None) -> Scope | None:
    """The files named on the command line alone, or all of the configuration.

    ``None`` after the configuration's faults have been printed.
    """
    if paths:
        shipped = SHIPPED if getattr(arguments, "shipped", False) else ()
        return Scope(tuple(paths), arguments.engine or "cel", "allow", shipped)
    config = common.load_config(arguments, asks=True)
    if config is None:
        return None
    policy = config.policy
    return Scope(config.policies, arguments.engine or policy.engine, policy.default, policy.shipped)


def complain(faults: Sequence[PolicyFault]) -> None:
    """Every fault, a line each, to stderr."""
    for fault in faults:
        print(fault, file=sys.stderr)


def dump(value: object) -> None:
    """JSON for people and scripts."""
    print(common.dumps(value))


def read_json(name: str, what: str) -> object:
    """A file's (or standard input's) JSON.

    Raises:
        BadInput: it cannot be read, or is no JSON.
    """
    from sidecar.wire.json import BadJson, decode

    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return decode(data)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}") from None
    except BadJson as error:
        raise BadInput(f"{what} is not JSON: {error}") from None


def many(count: int, one: str, more: str) -> str:
    """A number with its noun."""
    return f"{count} {one if count == 1 else more}"
