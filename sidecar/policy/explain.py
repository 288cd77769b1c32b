"""Why a decision is what it is: every rule that was asked, and the value of each of its parts.

Explanations quote the input. They are for whoever has it: the command line and the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sidecar.model import JsonObject, Phase
from sidecar.policy.cel.errors import CelError
from sidecar.policy.cel.explain import Explanation, render
from sidecar.policy.cel.explain import explain as parts
from sidecar.policy.cel.frame import BUDGET
from sidecar.policy.cel.program import Program
from sidecar.policy.cel.values import Value, plain
from sidecar.policy.decide import CelPolicy
from sidecar.policy.plan import prepared
from sidecar.policy.programs import VARIABLES
from sidecar.policy.rules import Rule


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """One rule: whether it matched, and how its condition came to that.

    ``outcome`` is ``other`` when the policy's ``match`` is not about the input. ``parts`` is
    ``None`` where the engine cannot tell them; ``variables`` are those that the rule reads.
    """

    rule: Rule
    outcome: Literal["matches", "fails", "no", "other"]
    error: CelError | None = None
    parts: Explanation | None = None
    variables: tuple[tuple[str, Explanation], ...] = ()


def explain(policy: CelPolicy, phase: Phase, given: JsonObject) -> list[RuleExplanation]:
    """Every rule of the phase in the order of the files."""
    asked = set(policy.plan(phase, given).rules)
    return [
        _one(rule, phase, given) if rule in asked else RuleExplanation(rule, "other")
        for rule in policy.rules(phase)
    ]


def _one(rule: Rule, phase: Phase, given: JsonObject) -> RuleExplanation:
    value = rule.when.test(prepared(phase, given))
    error = value if type(value) is CelError else None
    outcome: Literal["matches", "fails", "no"] = "fails"
    if error is None:
        outcome = "matches" if value is True else "no"
    if not isinstance(rule.when, Program):
        return RuleExplanation(rule, outcome, error)
    program = rule.when
    frame = prepared(phase, given)
    del frame[BUDGET]
    variables = tuple(
        (name, parts(text, tree, program.env, frame)) for name, text, tree in rule.variables
    )
    return RuleExplanation(rule, outcome, error, program.explain(frame), variables)


# ------------------------------------------------------------------------------------ shown


_WIDTH: Final = 100
_SAID: Final = {
    "matches": "matches",
    "fails": "FAILS",
    "no": "does not match",
    "other": "not about this",
}


def as_text(explanations: Sequence[RuleExplanation]) -> str:
    """For people: a rule a paragraph, its parts below it."""
    return "\n".join(line for each in explanations for line in _lines(each))


def _lines(each: RuleExplanation) -> list[str]:
    rule = each.rule
    audit = ", audit" if rule.audit else ""
    where = f"{rule.file}:{rule.line}"
    lines = [f"{rule.id} ({rule.effect}{audit}) {_SAID[each.outcome]}  {where}"]
    if each.error is not None:
        lines.append(f"    {each.error.line}:{each.error.column}: {each.error.message}")
    if each.parts is not None:
        lines += [f"    {line}" for line in render(each.parts, _WIDTH).splitlines()]
    for name, explanation in each.variables:
        lines.append(f"    where {VARIABLES}{name} is")
        lines += [f"      {line}" for line in render(explanation, _WIDTH).splitlines()]
    return lines


def as_json(explanations: Sequence[RuleExplanation]) -> list[JsonObject]:
    """``[{rule, effect, mode, file, line, outcome, error?, parts?, variables?}]``."""
    return [_shape(each) for each in explanations]


def _shape(each: RuleExplanation) -> JsonObject:
    shape: JsonObject = {
        "rule": each.rule.id,
        "effect": each.rule.effect,
        "mode": "audit" if each.rule.audit else "enforce",
        "file": each.rule.file,
        "line": each.rule.line,
        "outcome": each.outcome,
    }
    if each.error is not None:
        shape["error"] = msgspec.to_builtins(each.error)
    if each.parts is not None:
        shape["parts"] = _steps(each.parts)
    if each.variables:
        shape["variables"] = {name: _steps(of) for name, of in each.variables}
    return shape


def _steps(explanation: Explanation) -> list[JsonObject]:
    return [
        {
            "text": step.text,
            "line": step.line,
            "column": step.column,
            "values": [_value(value) for value in step.values],
            "times": step.times,
        }
        for step in explanation.steps
    ]


def _value(value: Value) -> object:
    if type(value) is CelError:
        return {"error": value.message}
    try:
        return msgspec.json.decode(msgspec.json.encode(plain(value)))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
