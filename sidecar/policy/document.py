"""A policy file's text to what it says, with the place of everything: nothing is compiled here.

The table of keys is made of the same parts as that of ``sidecar.yaml``: one load finds every
fault of every file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar, cast

from sidecar.config import yamltext
from sidecar.config.faults import Fault, Faults, shown
from sidecar.config.nodes import Mapping, Node, Scalar, Sequence, Stop, kind
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.shapes import BAD, At, Bad, Choice, Context, ListOf, Schema, Shape, Text
from sidecar.model import Kind, Phase
from sidecar.policy.paths import Path as JsonPath
from sidecar.policy.paths import parse_path
from sidecar.policy.phases import EFFECTS, Effect
from sidecar.policy.positions import Source
from sidecar.ports.policy import PolicyFault

API_VERSION: Final = "sidecar/v1"
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
IDENTIFIER: Final = r"^[a-z_A-Z][A-Za-z0-9_]{0,63}$"
LABEL: Final = r"^[a-z0-9][a-z0-9._:-]{0,63}$"
LONGEST_TEXT: Final = 20_000
T = TypeVar("T")
Mode: TypeAlias = Literal["enforce", "audit"]


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression as it is written, and where its value starts."""

    text: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Globs:
    """Patterns; no patterns match everything."""

    patterns: tuple[str, ...] = ()
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """What a policy is about at all: globs over the server's own names, and kinds of calls."""

    server: Globs = Globs()
    tool: Globs = Globs()
    kind: Globs = Globs()


@dataclass(frozen=True, slots=True)
class VariableText:
    """A variable of a policy."""

    name: str
    expr: Expr
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class RedactText:
    """What a ``redact`` rule takes out."""

    paths: tuple[JsonPath, ...] = ()
    patterns: tuple[Expr, ...] = ()
    replacement: str = "[redacted]"


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule, before it is compiled. ``mode`` ``None`` is the policy's."""

    id: str
    on: tuple[Phase, ...]
    effect: Effect
    when: Expr
    line: int
    column: int
    message: Expr | None = None
    mode: Mode | None = None
    redact: RedactText | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """One policy file."""

    file: str
    source: Source
    name: str
    mode: Mode
    match: Match
    variables: tuple[VariableText, ...]
    rules: tuple[RuleText, ...]


# ------------------------------------------------------------------------------------ shapes


class Expression(Shape[Expr]):
    """CEL, in whatever way YAML writes it: ``true`` and ``7`` are expressions as well."""

    def read(self, node: Node, at: At) -> Expr | Bad:
        if not isinstance(node, Scalar) or node.value is None:
            return at.fault(node, f"expected a CEL expression, got {kind(node)}")
        text = node.value if isinstance(node.value, str) else node.text
        if not text.strip():
            return at.fault(node, "is empty; expected a CEL expression")
        if len(text) > LONGEST_TEXT:
            return at.fault(node, f"is longer than {LONGEST_TEXT} characters")
        return Expr(text, node.line, node.column)

    def schema(self) -> Schema:
        return {"type": ["string", "boolean"]}


class OneOrMore(Shape[tuple[str, ...]]):
    """A word, or a list of them."""

    def __init__(self, item: Shape[str], what: str) -> None:
        self._item = item
        self._list = ListOf(item, what=what, least=1)

    def read(self, node: Node, at: At) -> tuple[str, ...] | Bad:
        if isinstance(node, Sequence):
            return self._list.read(node, at)
        one = self._item.read(node, at)
        return BAD if isinstance(one, Bad) else (one,)

    def schema(self) -> Schema:
        return {"anyOf": [self._item.schema(), self._list.schema()]}


class GoodOnes(ListOf[T]):
    """A list whose good entries are kept beside bad ones, so that theirs are checked as well."""

    def __init__(self, item: Shape[T], *, what: str, least: int = 0) -> None:
        super().__init__(item, what=what, least=least)
        self._each = item

    def read(self, node: Node, at: At) -> tuple[T, ...] | Bad:
        if not isinstance(node, Sequence) or not node.items:
            return super().read(node, at)
        read = [self._each.read(item, at.item(i)) for i, item in enumerate(node.items)]
        return tuple(item for item in read if not isinstance(item, Bad))


class Patterns(Shape[Globs]):
    """Globs with their place."""

    def __init__(self, item: Shape[str], what: str) -> None:
        self._inner = OneOrMore(item, what)

    def read(self, node: Node, at: At) -> Globs | Bad:
        read = self._inner.read(node, at)
        return BAD if isinstance(read, Bad) else Globs(read, node.line, node.column)

    def schema(self) -> Schema:
        return self._inner.schema()


def _word(what: str, pattern: str, allowed: str) -> Text[str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"is not {what}; {allowed}")
        return text

    return Text(f"{what}", parse, {"type": "string", "pattern": pattern})


def _glob(text: str) -> str:
    if not text or len(text) > 256 or not text.isprintable():
        raise ValueError("is not a pattern; write a name, or a part of it with *")
    return text


_NAME_RULE = "use up to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit"
GLOB = Text("a pattern", _glob, {"type": "string", "minLength": 1}, bare=True)
LABELS = OneOrMore(
    _word("a label", LABEL, "use up to 64 of a-z 0-9 . _ : - and begin with a letter or digit"),
    "labels",
)

# ------------------------------------------------------------------------------------- table


class Matching:
    """Fields of ``match``."""

    SERVER = Field("server", Patterns(GLOB, "patterns"), Globs(), "Globs over names of servers.")
    TOOL = Field("tool", Patterns(GLOB, "patterns"), Globs(), "Globs over the server's own names.")
    KIND = Field("kind", Patterns(Choice(*Kind), "kinds"), Globs(), "Kinds of calls; default all.")


MATCH = Record(
    "a mapping",
    every(Matching),
    lambda got: Match(got[Matching.SERVER], got[Matching.TOOL], got[Matching.KIND]),
    hints={"tools": "write tool", "servers": "write server", "kinds": "write kind"},
)


class Variable:
    """Fields of ``variables[]``."""

    NAME = Field(
        "name",
        _word("a name", IDENTIFIER, "use letters, digits and _, as in a programming language"),
        "",
        "Rules read it as variables.NAME.",
        required=True,
    )
    EXPR = Field("expr", Expression(), Expr("null", 0, 0), "Its value, in CEL.", required=True)


VARIABLE = Record(
    "a variable",
    every(Variable),
    lambda got: VariableText(
        got[Variable.NAME], got[Variable.EXPR], got.node.line, got.node.column
    ),
    hints={"expression": "write expr", "value": "write expr"},
)


class PathText(Shape[JsonPath]):
    """A path into the result."""

    def read(self, node: Node, at: At) -> JsonPath | Bad:
        what = "a path such as structuredContent.token"
        return Text(what, parse_path, self.schema()).read(node, at)

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1}


class Redacting:
    """Fields of ``redact``."""

    PATHS = Field("paths", ListOf(PathText(), what="paths", least=1), (), "What to take out.")
    PATTERNS = Field(
        "patterns",
        ListOf(Expression(), what="regular expressions", least=1),
        (),
        "RE2 expressions; what they find in any string is taken out.",
    )
    WITH = Field(
        "with",
        Text("text", lambda text: text[:200], {"type": "string"}),
        "[redacted]",
        "What is put in its place.",
    )


def _redacting(got: Got) -> RedactText:
    if not got.has(Redacting.PATHS) and not got.has(Redacting.PATTERNS):
        got.fault(None, "needs paths or patterns: what is to be taken out")
    return RedactText(got[Redacting.PATHS], got[Redacting.PATTERNS], got[Redacting.WITH])


REDACT = Record("a mapping", every(Redacting), _redacting, hints={"pattern": "write patterns"})


class Rule:
    """Fields of ``rules[]``."""

    ID = Field(
        "id",
        _word("an id", NAME, _NAME_RULE),
        "",
        "The rule's name in every answer, log and span.",
        required=True,
    )
    ON = Field(
        "on",
        OneOrMore(Choice(*Phase), "phases"),
        (),
        "The phase, or phases, in which it is asked: connect, list, call or result.",
        required=True,
    )
    EFFECT = Field(
        "effect",
        Choice("deny", "ask", "allow", "redact", "label"),
        "",
        "What it does: deny, ask, allow, redact or label.",
        required=True,
    )
    WHEN = Field("when", Expression(), Expr("true", 0, 0), "Its condition, in CEL.", required=True)
    MESSAGE = Field("message", Expression(), None, "Text for the caller, in CEL.")
    MODE = Field("mode", Choice("enforce", "audit"), None, "In place of the policy's.")
    REDACT = Field("redact", REDACT, None, "With effect redact: what is taken out.")
    LABEL = Field("label", LABELS, (), "With effect label: the label, or labels.")


def _rule(got: Got) -> RuleText:
    effect = cast("Effect", got[Rule.EFFECT])
    phases = tuple(Phase(each) for each in got[Rule.ON])
    if got.good(Rule.EFFECT):
        for phase in phases:
            if effect not in EFFECTS[phase]:
                possible = ", ".join(EFFECTS[phase])
                got.fault(Rule.EFFECT, f"{effect} is nothing for {phase}; there it is {possible}")
        for field, owner in ((Rule.REDACT, "redact"), (Rule.LABEL, "label")):
            if effect == owner and not got.has(field):
                got.fault(None, f"effect {owner} needs {field.key}: {field.help}")
            if effect != owner and got.has(field):
                got.fault(field, f"stands beside effect {effect}; it belongs to effect {owner}")
    if len(set(phases)) != len(phases):
        got.fault(Rule.ON, "names a phase twice")
    if Phase.CONNECT in phases and effect == "allow" and not got.has(Rule.MESSAGE):
        got.fault(None, "an allow rule at connect needs a message: the reason, as plain text")
    return RuleText(
        got[Rule.ID],
        phases,
        effect,
        got[Rule.WHEN],
        got.node.line,
        got.node.column,
        got[Rule.MESSAGE],
        cast("Mode | None", got[Rule.MODE]),
        got[Rule.REDACT],
        got[Rule.LABEL],
    )


RULE = Record(
    "a rule",
    every(Rule),
    _rule,
    hints={
        "if": "write when",
        "condition": "write when",
        "expr": "write when",
        "name": "write id",
        "phase": "write on",
        "action": "write effect",
        "labels": "write label",
    },
)


class Root:
    """The file's own fields."""

    API = Field(
        "apiVersion", Choice(API_VERSION), API_VERSION, f"Always {API_VERSION}.", required=True
    )
    KIND = Field("kind", Choice("Policy"), "Policy", "Policy; tests are PolicyTest.", required=True)
    NAME = Field(
        "name", _word("a name", NAME, _NAME_RULE), "", "The policy's own name.", required=True
    )
    ABOUT = Field("description", Text("text", str, {"type": "string"}), "", "For people.")
    MODE = Field(
        "mode", Choice("enforce", "audit"), "enforce", "audit: record what it would decide."
    )
    MATCH = Field("match", MATCH, Match(), "What it is about at all; default: everything.")
    VARIABLES = Field(
        "variables",
        GoodOnes(VARIABLE, what="variables"),
        (),
        "Expressions under a name, evaluated when first read and once a decision.",
    )
    RULES = Field("rules", GoodOnes(RULE, what="rules", least=1), (), "The rules.", required=True)


ROOT: Record[Got] = Record("a policy", every(Root), lambda got: got)


def read_tree(file: str, text: str, faults: Faults) -> Node | None:
    """A YAML file's tree; ``None`` when nothing of it can be read."""

    def tell(line: int, column: int, message: str) -> None:
        faults.add(Fault(file, line, column, "", message))

    try:
        root = yamltext.read(text, tell)
    except Stop as stop:
        tell(stop.line, stop.column, stop.message)
        return None
    if root is None:
        faults.add(Fault(file, 1, 1, "", "is empty; a policy has apiVersion, kind, name and rules"))
    return root


def read(file: str, text: str) -> tuple[Document | None, list[PolicyFault]]:
    """What a policy file says as far as it can be read, and what is wrong with its form."""
    faults = Faults()
    root = read_tree(file, text, faults)
    document = None if root is None else _document(file, text, root, faults)
    name = "" if document is None else document.name
    return document, [as_policy_fault(fault, root, name) for fault in faults.found]


def as_policy_fault(fault: Fault, root: Node | None, policy: str = "") -> PolicyFault:
    """A fault of the file's form, with the rule that it is in."""
    where = f"{fault.path}: " if fault.path else ""
    rule = rule_at(root, fault.path)
    if policy and rule:
        rule = f"{policy}/{rule}"
    return PolicyFault(
        fault.file, fault.line, fault.column, rule, where + fault.message, code="file"
    )


def _document(file: str, text: str, root: Node, faults: Faults) -> Document | None:
    from pathlib import Path

    if isinstance(root, Mapping) and _kind(root) == "PolicyTest":
        message = "is a test of policies; call the file *_test.yaml"
        faults.add(Fault(file, root.line, root.column, "kind", message))
        return None
    at = At(Context(file, Path("/"), {}, faults))
    got = ROOT.read(root, at)
    if isinstance(got, Bad):
        return None
    _once(got, Root.VARIABLES, Variable.NAME.key, "variable")
    _once(got, Root.RULES, Rule.ID.key, "rule")
    name = got[Root.NAME] or file.rpartition("/")[2].partition(".")[0]
    return Document(
        file,
        Source(text),
        name,
        cast("Mode", got[Root.MODE]),
        got[Root.MATCH],
        got[Root.VARIABLES],
        got[Root.RULES],
    )


def _kind(root: Mapping) -> str:
    entry = root.entries.get("kind")
    return entry[1].text if entry is not None and isinstance(entry[1], Scalar) else ""


def _once(got: Got, field: Field[tuple[T, ...]], key: str, what: str) -> None:
    """Each name stands for one thing, beside other faults as well."""
    place = got.place(field)
    seen: set[str] = set()
    for i, item in enumerate(place.items if isinstance(place, Sequence) else ()):
        entry = item.entries.get(key) if isinstance(item, Mapping) else None
        name = entry[1].text if entry is not None and isinstance(entry[1], Scalar) else ""
        if name and name in seen:
            message = f'there is a {what} "{shown(name)}" already; give each its own name'
            got.at.child(field.key).item(i).fault(item, message)
        seen.add(name)


def rule_at(root: Node | None, path: str) -> str:
    """The id of the rule that a setting's path (``rules[2].when``) leads into, or nothing."""
    found = re.match(r"rules\[(\d+)\]", path)
    if found is None or not isinstance(root, Mapping) or "rules" not in root.entries:
        return ""
    rules = root.entries["rules"][1]
    if not isinstance(rules, Sequence) or int(found[1]) >= len(rules.items):
        return ""
    rule = rules.items[int(found[1])]
    entry = rule.entries.get("id") if isinstance(rule, Mapping) else None
    return shown(entry[1].text) if entry is not None and isinstance(entry[1], Scalar) else ""
