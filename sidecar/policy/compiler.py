"""Policy files to rules: every expression parsed, checked in its phase, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace

from sidecar.model import JsonObject, Phase, Redaction
from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.errors import CelSyntaxError, Finding
from sidecar.policy.cel.functions.regex import BadPattern, pattern
from sidecar.policy.cel.nodes import Node
from sidecar.policy.cel.parse import comments, parse
from sidecar.policy.document import Document, Expr, RuleText
from sidecar.policy.findings import Expected, arguments, check, own_variables, pinned
from sidecar.policy.plan import MOST_MESSAGE, empty_frame
from sidecar.policy.positions import Places, relocated
from sidecar.policy.programs import VARIABLES, Parsed, Reference, Runnable, native
from sidecar.policy.rules import Matcher, Rule
from sidecar.policy.variables import of_phase
from sidecar.ports.policy import ExpressionEngine, PolicyFault

_SAYS: Final = {
    "deny": "denied by rule",
    "ask": "approval is asked by rule",
    "allow": "allowed by rule",
}


_HIDES: Final = (
    "YAML makes one line of these, so this comment hides all that follows; begin the value with "
    "| on a line of its own, or put the comment last"
)
_QUOTE: Final = """; a message is an expression: its text stands in quotes, as in '"no"'"""

Schemas: TypeAlias = Callable[[str, str], JsonObject | None]
"""The input schema of a tool, by server and its own name for it."""


@dataclass(slots=True)
class Compiled:
    """A file and its rules in the order of the text, one for each phase they are asked in.

    ``trees`` are the conditions that could be parsed, ``variables`` the policy's own.
    """

    document: Document
    rules: list[Rule]
    trees: dict[tuple[str, Phase], Node]
    variables: dict[str, Node]


class Compiler:
    """Compiles one file. ``reference`` evaluates in place of our own engine, when given."""

    def __init__(
        self,
        document: Document,
        scope: int,
        faults: list[PolicyFault],
        reference: ExpressionEngine | None = None,
        schemas: Schemas | None = None,
    ) -> None:
        """``scope`` is this file's own number, above 0."""
        self._document = document
        self._scope = scope
        self._faults = faults
        self._reference = reference
        self._schemas = schemas
        self._kinds = frozenset(document.match.kind.patterns) or None
        self._variables: dict[str, tuple[Node, Expr]] = {}
        self._broken: set[str] = set()
        self._environments: dict[Phase, Environment] = {}
        self._references: dict[tuple[str, Phase], Reference] = {}

    def compile(self) -> Compiled:
        """The rules; what is wrong is added to the faults."""
        match = self._document.match
        matcher = Matcher(match.server.patterns, match.tool.patterns, match.kind.patterns)
        self._check_match()
        for variable in self._document.variables:
            self._variable(variable.name, variable.expr)
        compiled = Compiled(
            self._document, [], {}, {name: tree for name, (tree, _) in self._variables.items()}
        )
        for rule in self._document.rules:
            redaction = self._redaction(rule)
            when = self._parse(rule.when, rule.id)
            message = None if rule.message is None else self._parse(rule.message, rule.id, _QUOTE)
            readable = when is not None and (rule.message is None or message is not None)
            for phase in dict.fromkeys(rule.on):
                good = self._check_rule(rule, phase, when, message)
                if when is not None and readable and good:
                    made = self._rule(rule, phase, when, message)
                    if made is None:
                        continue
                    made.matcher, made.redaction = matcher, redaction
                    compiled.rules.append(made)
                    compiled.trees[rule.id, phase] = when[1]
        return compiled

    # --------------------------------------------------------------------------- findings

    def _tell(self, rule: str, finding: Finding) -> None:
        name = self._document.name
        fault = PolicyFault(
            self._document.file,
            finding.line,
            finding.column,
            f"{name}/{rule}" if rule else name,
            finding.message,
            finding.warning,
            finding.code,
        )
        if fault not in self._faults:
            self._faults.append(fault)

    def _parse(self, expr: Expr, rule: str, hint: str = "") -> Parsed | None:
        places = self._places(expr)
        for start, end in comments(expr.text):
            line, column = places.of(start)
            if places.of(end - 1)[0] > line:
                self._tell(rule, Finding("comment", line, column, _HIDES))
                return None
        try:
            return expr.text, relocated(parse(expr.text), places)
        except CelSyntaxError as error:
            line, column = places(error.line, error.column)
            self._tell(rule, Finding("syntax", line, column, error.message + hint))
            return None

    def _places(self, expr: Expr) -> Places:
        return Places(self._document.source, expr.text, expr.line, expr.column)

    def _checks(self, tree: Node, phase: Phase, expected: Expected, rule: str) -> bool:
        """Tell what is wrong with an expression; whether it can be used."""
        found = check(tree, self._environment(phase), expected, phase, self._variables)
        broken = self._broken & own_variables(tree)
        for finding in found:
            # What is wrong with a variable has been told where it stands.
            if broken and _of_variable(finding):
                continue
            unquoted = expected == "string" and finding.code == "unknown-variable"
            hint = _QUOTE if unquoted else ""
            self._tell(rule, replace(finding, message=finding.message + hint))
        return all(finding.warning for finding in found)

    def _check_arguments(self, tree: Node, phase: Phase, rule: str) -> None:
        """Where the rule is about one tool whose schema is known, its arguments' names."""
        tool = pinned(tree, self._document.match)
        if tool is None or self._schemas is None:
            return
        schema = self._schemas(*tool)
        if schema is not None:
            for finding in arguments(tree, self._environment(phase), schema):
                self._tell(rule, finding)

    def _check_match(self) -> None:
        """What a connection never has cannot be matched by a rule about connections."""
        for rule in self._document.rules:
            if Phase.CONNECT not in rule.on:
                continue
            for key in ("tool", "kind"):
                if getattr(self._document.match, key).patterns:
                    message = (
                        f"a connection has no {key}, so that this rule would never be asked; "
                        f"move it to a file whose match has no {key}"
                    )
                    self._tell(rule.id, Finding("unreachable", rule.line, rule.column, message))

    # -------------------------------------------------------------------------- variables

    def _environment(self, phase: Phase) -> Environment:
        found = self._environments.get(phase)
        if found is None:
            found = self._environments[phase] = Environment(
                variables=of_phase(phase, self._kinds), definitions=self._definitions()
            )
        return found

    def _definitions(self) -> dict[str, Node]:
        return {VARIABLES + name: tree for name, (tree, _) in self._variables.items()}

    def _variable(self, name: str, expr: Expr) -> None:
        """A variable may read those above it, and whatever is there in some phase.

        Whether it is there in the phase of a rule is found out where the rule reads it.
        """
        parsed = self._parse(expr, "")
        if parsed is None or not name:
            self._broken.add(name)
            return
        anywhere = {n: of for phase in Phase for n, of in of_phase(phase, self._kinds).items()}
        env = Environment(variables=anywhere, definitions=self._definitions())
        found = check(parsed[1], env, "any", None, self._variables)
        if not self._broken & own_variables(parsed[1]):
            for finding in found:
                self._tell("", finding)
        if any(not finding.warning for finding in found):
            self._broken.add(name)
        # A broken one stays known: whoever reads it need not be told that it is missing.
        self._variables[name] = parsed[1], expr

    # ------------------------------------------------------------------------------ rules

    def _check_rule(
        self, rule: RuleText, phase: Phase, when: Parsed | None, message: Parsed | None
    ) -> bool:
        """Tell what is wrong with what could be read; whether the rule can be used."""
        good = True
        if when is not None:
            good = self._checks(when[1], phase, "bool", rule.id)
            self._check_arguments(when[1], phase, rule.id)
        if message is not None:
            good = self._checks(message[1], phase, "string", rule.id) and good
        return good

    def _rule(
        self, rule: RuleText, phase: Phase, when: Parsed, message: Parsed | None
    ) -> Rule | None:
        condition = self._program(when, phase, rule.when, rule.id)
        text, said = f"{_SAYS.get(rule.effect, rule.effect)} {self._document.name}/{rule.id}", None
        if message is not None and rule.message is not None:
            constant = self._constant(message, phase)
            if constant is None:
                said = self._program(message, phase, rule.message, rule.id)
                if phase is Phase.CONNECT and rule.effect == "allow":
                    place = rule.message.line, rule.message.column
                    reason = "an allow rule at connect needs a constant message: the reason"
                    self._tell(rule.id, Finding("message", *place, reason))
            else:
                text = constant
        if condition is None or (message is not None and said is None and constant is None):
            return None
        names = condition.references | (said.references if said is not None else frozenset())
        reads = own_variables(when[1]) | (own_variables(message[1]) if message else set())
        return Rule(
            id=f"{self._document.name}/{rule.id}",
            policy=self._document.name,
            phase=phase,
            effect=rule.effect,
            audit=(rule.mode or self._document.mode) == "audit",
            when=condition,
            text=text,
            message=said,
            scope=self._scope if reads else 0,
            file=self._document.file,
            line=rule.line,
            column=rule.column,
            labels=rule.labels,
            roots=frozenset(name.partition(".")[0] for name in names),
            variables=tuple(
                (name, self._variables[name][1].text, self._variables[name][0])
                for name in sorted(own_variables(when[1]))
            ),
        )

    def _constant(self, message: Parsed, phase: Phase) -> str | None:
        """A message that reads nothing."""
        program = native(message, self._environment(phase))
        if not program.constant:
            return None
        value = program.evaluate(empty_frame())
        return value[:MOST_MESSAGE] if isinstance(value, str) and value else None

    def _program(self, parsed: Parsed, phase: Phase, expr: Expr, rule: str) -> Runnable | None:
        env = self._environment(phase)
        if self._reference is None:
            return native(parsed, env)
        return self._referenced(self._reference, parsed, phase, expr, rule)

    def _referenced(
        self, engine: ExpressionEngine, parsed: Parsed, phase: Phase, expr: Expr, rule: str
    ) -> Reference | None:
        places = self._places(expr)
        try:
            expression = engine.compile(parsed[0])
        except CelSyntaxError as error:
            line, column = places(error.line, error.column)
            self._tell(rule, Finding("syntax", line, column, error.message))
            return None
        variables: dict[str, Reference] = {}
        for name in own_variables(parsed[1]):
            if name not in self._variables:
                continue
            known = self._references.get((name, phase))
            if known is None:
                tree, text = self._variables[name]
                known = self._referenced(engine, (text.text, tree), phase, text, "")
                if known is None:
                    return None
                self._references[name, phase] = known
            variables[name] = known
        return Reference(parsed, self._environment(phase), expression, variables, places)

    def _redaction(self, rule: RuleText) -> Redaction | None:
        if rule.redact is None:
            return None
        for expr in rule.redact.patterns:
            try:
                pattern(expr.text)
            except BadPattern as bad:
                message = f"bad regular expression: {bad}"
                self._tell(rule.id, Finding("bad-regex", expr.line, expr.column, message))
        return Redaction(
            f"{self._document.name}/{rule.id}",
            rule.redact.paths,
            tuple(expr.text for expr in rule.redact.patterns),
            rule.redact.replacement,
        )


def _of_variable(finding: Finding) -> bool:
    """Whether a finding is about one of the policy's own variables."""
    return f"variable {VARIABLES.rstrip('.')}" in finding.message or VARIABLES in finding.message
