"""cel-spec's conformance tests as data, and how an engine fares in them.

The files are not in this repository: they are looked for in ``$SIDECAR_CEL_SPEC``, or in
``shared/cases/cel-spec`` beside the folder that holds the repository.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.policy.cel.functions.time import duration_of, timestamp_of
from sidecar.policy.cel.values import (
    BoolKey,
    Duration,
    Optional,
    Timestamp,
    TypeValue,
    UInt,
    from_pairs,
)
from tests.policy.cel.textproto import Message, Text, Word, read

REPOSITORY = Path(__file__).resolve().parents[3]

# What the engine does not have by design. A test that needs it does not apply.
MESSAGES = "protobuf messages, enums, wrappers or extensions"
CHECKER = "the deduced type alone is asked for"

_PROTO = re.compile(
    r"TestAllTypes|GlobalEnum|NestedEnum|ImportedGlobalEnum|\bproto\.(?:has|get)Ext"
    r"|google\.protobuf\.(?!Timestamp\b(?!\{)|Duration\b(?!\{))\w+|protobuf\.Timestamp\{"
)
_MESSAGE = re.compile(r"\b[A-Z]\w*\{")
_TIMES = {
    "[type.googleapis.com/google.protobuf.Timestamp]": timestamp_of,
    "[type.googleapis.com/google.protobuf.Duration]": duration_of,
}


class NeedsMessages(Exception):
    """A value of the test is a protobuf message."""


def folder() -> Path | None:
    """Where the conformance files are, if they are anywhere."""
    named = os.environ.get("SIDECAR_CEL_SPEC")
    path = Path(named) if named else REPOSITORY.parent / "shared" / "cases" / "cel-spec"
    return path if path.is_dir() else None


def _one(message: Message, name: str) -> Any:
    values = message.get(name)
    return values[0] if values else None


def value_of(message: Message) -> Any:
    """A ``cel.expr.Value`` as a CEL value of the engine."""
    ((name, (raw, *_)),) = message.items()
    match name:
        case "null_value":
            return None
        case "bool_value":
            return raw == "true"
        case "int64_value":
            return int(raw, 0)
        case "uint64_value":
            return UInt(int(raw, 0))
        case "double_value":
            return float(raw)
        case "string_value":
            return str(raw)
        case "bytes_value":
            assert isinstance(raw, Text)
            return raw.octets
        case "type_value":
            return TypeValue(str(raw))
        case "list_value":
            return [value_of(item) for item in raw.get("values", [])]
        case "map_value":
            entries = raw.get("entries", [])
            return from_pairs(
                (value_of(_one(entry, "key")), value_of(_one(entry, "value"))) for entry in entries
            )
        case "object_value":
            ((kind, (body, *_)),) = raw.items()
            if kind not in _TIMES:
                raise NeedsMessages(kind)
            seconds = int(_one(body, "seconds") or 0)
            return _TIMES[kind](seconds * 10**9 + int(_one(body, "nanos") or 0))
    raise NeedsMessages(name)


@dataclass
class Case:
    """One conformance test. ``skipped`` says why it does not apply, if it does not.

    ``error`` holds the expected messages when an error is expected.
    """

    file: str
    section: str
    name: str
    expr: str
    container: str = ""
    unchecked: bool = False
    variables: tuple[str, ...] = ()
    bindings: dict[str, Any] = field(default_factory=dict)
    value: Any = True
    error: tuple[str, ...] | None = None
    skipped: str | None = None

    @property
    def id(self) -> str:
        return f"{self.file}/{self.section}/{self.name}"


def _case(file: str, section: str, test: Message) -> Case:
    case = Case(file, section, str(_one(test, "name")), str(_one(test, "expr")))
    case.container = str(_one(test, "container") or "")
    case.unchecked = _one(test, "disable_check") == "true"
    if _one(test, "check_only") == "true":
        case.skipped = CHECKER
    try:
        if _PROTO.search(case.expr) or _MESSAGE.search(case.expr):
            raise NeedsMessages(case.expr)
        for declared in test.get("type_env", []):
            case.variables += (str(_one(declared, "name")),)
            if "message_type" in repr(declared) and "google.protobuf" not in repr(declared):
                raise NeedsMessages(repr(declared))
        for binding in test.get("bindings", []):
            name = str(_one(binding, "key"))
            case.bindings[name] = value_of(_one(_one(binding, "value"), "value"))
            case.variables += (name,)
        expected = _one(test, "value")
        typed = _one(test, "typed_result")
        if typed is not None:
            expected = _one(typed, "result")
        if expected is not None:
            case.value = value_of(expected)
        failure = _one(test, "eval_error")
        if failure is not None:
            case.error = tuple(str(_one(e, "message")) for e in failure.get("errors", []))
    except NeedsMessages:
        case.skipped = MESSAGES
    return case


def cases(path: Path) -> Iterator[Case]:
    """Every test of every file."""
    for file in sorted(path.glob("*.textproto")):
        for section in read(file.read_text(encoding="utf-8")).get("section", []):
            assert isinstance(section, dict)
            for test in section.get("test", []):
                yield _case(file.stem, str(_one(section, "name")), test)


def tagged(value: Any) -> Any:
    """A value so that equal means equal in CEL's strictest sense: types count, NaN is NaN."""
    kind = type(value)
    if kind is float:
        return ("double", "nan" if math.isnan(value) else repr(value))
    if kind is list:
        return ("list", tuple(tagged(item) for item in value))
    if kind is dict:
        return ("map", frozenset((tagged(k), tagged(v)) for k, v in value.items()))
    if kind is Optional:
        return ("optional", value.present, tagged(value.value))
    if kind is BoolKey:
        return ("bool", value.value)
    if kind in (bool, int, UInt, str, bytes, type(None), TypeValue, Timestamp, Duration):
        return (kind.__name__, value)
    return (kind.__name__, str(value))


@dataclass
class Outcome:
    """How one case went: ``failure`` is empty when it passed."""

    case: Case
    failure: str


class Failed(Exception):
    """What an engine raises for a test when it ends in an error."""


Engine = Callable[[Case], Any]


def run(engine: Engine, case: Case) -> Outcome:
    """One case through an engine, which returns a value or raises ``Failed``."""
    try:
        value = engine(case)
    except Failed as error:
        if case.error is None:
            return Outcome(case, f"error {error}, expected {case.value!r}")
        return Outcome(case, _wrong_error(str(error), case.error))
    if case.error is not None:
        return Outcome(case, f"value {value!r}, expected an error")
    if tagged(value) != tagged(case.value):
        return Outcome(case, f"value {value!r}, expected {case.value!r}")
    return Outcome(case, "")


def _wrong_error(got: str, expected: tuple[str, ...]) -> str:
    """A test that expects an error does not pass because something is missing in the engine."""
    if not re.search(r"unknown (?:function|variable)|unexpected", got):
        return ""
    wanted = " ".join(expected)
    if re.search(r"unbound|unknown|undeclared|overload|reference|no_such|parse|Syntax", wanted):
        return ""
    return f"error {got}, expected one like {wanted!r}"


def summary(outcomes: list[Outcome], skipped: list[Case]) -> dict[str, Counter[str]]:
    """Counts by file: passed, failed, and one for each reason to skip."""
    table: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        row = table.setdefault(outcome.case.file, Counter())
        row["failed" if outcome.failure else "passed"] += 1
    for case in skipped:
        assert case.skipped is not None
        table.setdefault(case.file, Counter())[case.skipped] += 1
    return table


__all__ = [
    "CHECKER",
    "MESSAGES",
    "Case",
    "Engine",
    "Failed",
    "Message",
    "Outcome",
    "Word",
    "cases",
    "folder",
    "run",
    "summary",
    "tagged",
    "value_of",
]
