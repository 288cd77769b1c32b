"""Files of kind PolicyTest: tables of inputs and the decisions that are expected of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from sidecar.config.faults import Faults
from sidecar.config.nodes import Mapping, Node, Sequence, kind, plain
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.shapes import (
    At,
    Bad,
    Choice,
    Context,
    FilePath,
    ListOf,
    MapOf,
    Schema,
    Shape,
    Text,
    plain_text,
)
from sidecar.config.types import SHIPPED
from sidecar.model import JsonObject, Phase
from sidecar.policy.document import API_VERSION, GoodOnes, as_policy_fault, read_tree
from sidecar.policy.files import PolicyFile
from sidecar.policy.phases import VARIABLES
from sidecar.policy.reading import Steps, wrong
from sidecar.ports.policy import PolicyFault


@dataclass(frozen=True, slots=True)
class Expect:
    """What a decision has to be; what is ``None`` does not matter.

    All but ``happens`` and ``mode`` are about what the rules say when they are enforced, so
    that one test holds for a policy in either mode.
    """

    decision: str | None = None
    rule: str | None = None
    rules: tuple[str, ...] | None = None
    message: str | None = None
    labels: tuple[str, ...] | None = None
    error: bool | str | None = None
    happens: str | None = None
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One row: an input, and what is expected of it."""

    name: str
    phase: Phase
    input: JsonObject
    expect: Expect
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Suite:
    """One test file. ``policies`` are the files it is about, ``None`` for those beside it."""

    file: str
    path: Path
    policies: tuple[Path, ...] | None
    shipped: tuple[str, ...]
    default: str
    cases: tuple[Case, ...]


class Json(Shape[JsonObject]):
    """Any JSON object, written in YAML."""

    def read(self, node: Node, at: At) -> JsonObject | Bad:
        if not isinstance(node, Mapping):
            return at.fault(node, f"expected a mapping, got {kind(node)}")
        return cast("JsonObject", plain(node))

    def schema(self) -> Schema:
        return {"type": "object"}


class Inputs(Json):
    """Variables of policies with their values."""

    def read(self, node: Node, at: At) -> JsonObject | Bad:
        known = frozenset().union(*VARIABLES.values())
        read = super().read(node, at)
        if isinstance(node, Mapping) and not isinstance(read, Bad):
            for name, key, below in node:
                if name not in known:
                    at.child(name).fault(
                        key, f"there is no such variable; there are {', '.join(sorted(known))}"
                    )
                    continue
                for way, why in wrong(name, read):
                    where, place = _place(at.child(name), below, way)
                    where.fault(place, why)
        return read


def _place(at: At, node: Node, way: Steps) -> tuple[At, Node]:
    """Where a part of a value stands in its file: its name, or the item of a list."""
    place = node
    for step in way:
        if isinstance(step, int) and isinstance(node, Sequence):
            at, node = at.item(step), node.items[step]
            place = node
        elif isinstance(step, str) and isinstance(node, Mapping):
            at = at.child(step)
            place, node = node.entries[step]
    return at, place


class FlagOrText(Shape[bool | str]):
    """``true``, ``false`` or a word."""

    def read(self, node: Node, at: At) -> bool | str | Bad:
        value = plain(node)
        if isinstance(value, bool | str):
            return value
        return at.fault(node, f"expected true, false or a kind of error, got {kind(node)}")

    def schema(self) -> Schema:
        return {"type": ["boolean", "string"]}


class Expects:
    """Fields of ``tests[].expect``."""

    DECISION = Field("decision", Choice("allow", "deny", "ask"), None, "What is decided.")
    RULE = Field("rule", plain_text("a rule"), None, "The rule that decides: id or policy/id.")
    RULES = Field("rules", ListOf(plain_text("a rule"), what="rules"), None, "All that match.")
    MESSAGE = Field("message", Text("text", str, {"type": "string"}), None, "The message.")
    LABELS = Field("labels", ListOf(plain_text("a label"), what="labels"), None, "The labels.")
    ERROR = Field("error", FlagOrText(), None, "Whether a rule fails, or the kind of its error.")
    HAPPENS = Field(
        "happens", Choice("allow", "deny", "ask"), None, "What happens, audit mode considered."
    )
    MODE = Field("mode", Choice("enforce", "audit"), None, "The decision's mode.")


def _expect(got: Got) -> Expect:
    if not got.node.entries:
        got.fault(None, "expects nothing; name a decision, a rule, a message, labels or an error")
    return Expect(
        got[Expects.DECISION],
        got[Expects.RULE],
        got[Expects.RULES],
        got[Expects.MESSAGE],
        got[Expects.LABELS],
        got[Expects.ERROR],
        got[Expects.HAPPENS],
        got[Expects.MODE],
    )


class Test:
    """Fields of ``tests[]``."""

    NAME = Field("name", plain_text("a name"), "", "What the case shows.", required=True)
    PHASE = Field("phase", Choice(*Phase), Phase.CALL.value, "The phase; default call.")
    USE = Field("use", ListOf(plain_text("a name"), what="names"), (), "Names of inputs to add.")
    INPUT = Field("input", Inputs(), {}, "Variables, over those of `input` and `use`.")
    EXPECT = Field(
        "expect",
        Record("a mapping", every(Expects), _expect),
        Expect(),
        "What the decision has to be.",
        required=True,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    got: Got


TEST = Record("a test", every(Test), _Row, hints={"expected": "write expect", "id": "write name"})


class Root:
    """The file's own fields."""

    API = Field(
        "apiVersion", Choice(API_VERSION), API_VERSION, f"Always {API_VERSION}.", required=True
    )
    KIND = Field("kind", Choice("PolicyTest"), "PolicyTest", "Always PolicyTest.", required=True)
    POLICIES = Field(
        "policies",
        ListOf(FilePath(), what="paths", least=1),
        None,
        "The policy files it is about; default: all in its folder.",
    )
    SHIPPED = Field(
        "shipped",
        ListOf(Choice(*SHIPPED), what="the sidecar's own policies"),
        (),
        "The sidecar's own policies that take part; default none.",
    )
    DEFAULT = Field(
        "default", Choice("allow", "deny"), "allow", "The decision where no rule matches."
    )
    INPUT = Field("input", Inputs(), {}, "What every test has, unless it says otherwise.")
    INPUTS = Field(
        "inputs", MapOf(Inputs(), what="inputs", key=str), {}, "Inputs that tests use by name."
    )
    TESTS = Field("tests", GoodOnes(TEST, what="tests", least=1), (), "The table.", required=True)


ROOT: Record[Got] = Record("a policy test", every(Root), lambda got: got)


def read(file: PolicyFile, text: str) -> tuple[Suite | None, list[PolicyFault]]:
    """A test file's table, and what is wrong with its form."""
    faults = Faults()
    root = read_tree(file.shown, text, faults)
    suite = None
    if root is not None:
        at = At(Context(file.shown, file.path.parent, {}, faults))
        got = ROOT.read(root, at)
        if not isinstance(got, Bad):
            suite = _suite(file, got)
    return suite, [as_policy_fault(fault, None) for fault in faults.found]


def _suite(file: PolicyFile, got: Got) -> Suite:
    named = got[Root.INPUTS]
    cases: list[Case] = []
    names: set[str] = set()
    for row in got[Root.TESTS]:
        cells = row.got
        given = got[Root.INPUT]
        for use in cells[Test.USE]:
            if use not in named:
                there = ", ".join(named) or "none"
                cells.fault(Test.USE, f'there is no "{use}" in inputs; there are: {there}')
            given = merged(given, named.get(use, {}))
        name = cells[Test.NAME]
        if name and name in names:
            cells.fault(Test.NAME, "is the name of another test of this file")
        names.add(name)
        cases.append(
            Case(
                name,
                Phase(cells[Test.PHASE]),
                merged(given, cells[Test.INPUT]),
                cells[Test.EXPECT],
                cells.node.line,
                cells.node.column,
            )
        )
    return Suite(
        file.shown,
        file.path,
        got[Root.POLICIES],
        got[Root.SHIPPED],
        got[Root.DEFAULT],
        tuple(cases),
    )


_DEEPEST: Final = 64


def merged(under: JsonObject, over: JsonObject, depth: int = 0) -> JsonObject:
    """``over`` on top of ``under``: mappings are merged, everything else is replaced."""
    made = dict(under)
    for name, value in over.items():
        below = made.get(name)
        if isinstance(below, dict) and isinstance(value, dict) and depth < _DEEPEST:
            made[name] = merged(below, value, depth + 1)
        else:
            made[name] = value
    return made
