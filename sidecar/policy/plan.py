"""A decision: all rules of a phase that are about an input, asked once each.

Rules are asked in the order of their strength, so that what a weaker rule costs cannot keep a
stronger one from an answer: the evaluation budget is one for all enforced rules. Rules in audit
mode come after them, on a budget of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias, cast

from sidecar.model import Decision, JsonObject, Phase, PolicyError, Reason
from sidecar.policy.cel.errors import CelError, EvalError
from sidecar.policy.cel.frame import BUDGET, Frame
from sidecar.policy.cel.functions.time import SECOND, parse_timestamp, timestamp_of
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.values import Timestamp, Value
from sidecar.policy.phases import EFFECTS
from sidecar.policy.rules import Rule
from sidecar.policy.variables import EMPTY_WHEN_ABSENT

Answer: TypeAlias = Literal["allow", "deny", "ask"]
Matched: TypeAlias = tuple[Rule, CelError | None]
"""A rule that matched, and the error because of which it counts as such."""

DEFAULT: Final = "default"
MOST_MESSAGE: Final = 2000
NEVER_LIFTED: Final = "ambiguous"
"""The class of addresses that no rule allows (what parsers disagree on)."""
CONFIGURED: Final[JsonObject] = {"ok": True, "why": "configured", "class": "configured"}
"""The verdict on a server that the operator configured: nothing checks its address."""

_EMPTY: Final[Frame] = {name: {} for name in EMPTY_WHEN_ABSENT}
_BASE: Final[dict[Phase, Frame]] = {
    Phase.CONNECT: {},
    Phase.LIST: {},
    Phase.CALL: _EMPTY,
    Phase.RESULT: _EMPTY,
}


class Plan:
    """The rules of one phase that are left for some inputs. Immutable."""

    __slots__ = ("_audited", "_default", "_enforced", "_now", "_phase", "_revision", "fixed")

    def __init__(
        self, phase: Phase, rules: Iterable[Rule], default: Literal["allow", "deny"], revision: str
    ) -> None:
        strength = EFFECTS[phase]
        ordered = sorted(rules, key=lambda rule: strength.index(rule.effect))
        self._phase = phase
        self._enforced = tuple(rule for rule in ordered if not rule.audit)
        self._audited = tuple(rule for rule in ordered if rule.audit)
        self._revision = revision
        self._now = any("now" in rule.references for rule in ordered)
        self._default = (
            Decision("allow", DEFAULT, revision=revision)
            if default == "allow" or phase is Phase.RESULT
            else Decision(
                "deny", DEFAULT, revision=revision, message="denied: no policy allows this"
            )
        )
        self.fixed = self._fixed()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All of them, in the order in which they are asked."""
        return self._enforced + self._audited

    def _fixed(self) -> Decision | None:
        """The decision, where no input can change it."""
        if self._phase is Phase.CONNECT:
            return None
        rules = self.rules
        if not all(rule.when.constant and rule.message is None for rule in rules):
            return None
        return self._decide({})

    def decide(self, given: JsonObject) -> Decision:
        """The decision for an input."""
        return self._decide(given) if self.fixed is None else self.fixed

    def always(self) -> Decision | None:
        """The decision, where nothing that is unknown can change it."""
        if self.fixed is not None:
            return self.fixed
        for rule in self._enforced:
            if rule.effect == "deny" and rule.when.constant and rule.when.test(empty_frame()):
                message = rule.text if rule.message is None else rule.id
                return Decision("deny", rule.id, (rule.id,), rule.policy, self._revision, message)
        return None

    def _decide(self, given: JsonObject) -> Decision:
        frame = prepared(self._phase, given, now=self._now)
        enforced = _matching(self._enforced, frame)
        if self._audited:
            frame[BUDGET] = Budget()
            audited = _matching(self._audited, frame)
        else:
            audited = _NONE
        if not enforced and not audited:
            return self._default if self._phase is not Phase.CONNECT else self._unmatched(frame)
        frame[BUDGET] = Budget()
        return self._resolve(enforced, audited, frame)

    # --------------------------------------------------------------------- what it comes to

    def _resolve(
        self, enforced: Sequence[Matched], audited: Sequence[Matched], frame: Frame
    ) -> Decision:
        decision = self._strongest(enforced, frame)
        error = next((_error(rule, e) for rule, e in (*enforced, *audited) if e is not None), None)
        decision = replace(decision, rules=tuple(rule.id for rule, _ in enforced), error=error)
        if not audited:
            return decision
        strength = EFFECTS[self._phase]
        both = sorted((*enforced, *audited), key=lambda each: strength.index(each[0].effect))
        would = self._strongest(both, frame)
        changed = (would.decision, would.labels, would.redactions) != (
            decision.decision,
            decision.labels,
            decision.redactions,
        )
        return replace(
            decision,
            audited=tuple(rule.id for rule, _ in audited),
            mode="audit" if changed else "enforce",
            would=would.decision if changed else None,
            would_rule=would.rule if changed else "",
        )

    def _strongest(self, matched: Sequence[Matched], frame: Frame) -> Decision:
        """What these rules come to, were they all there are."""
        if self._phase is Phase.RESULT:
            return self._result(matched, frame)
        if self._phase is Phase.CONNECT:
            verdict = frame.get("verdict")
            if type(verdict) is dict and verdict.get("class") == NEVER_LIFTED:
                matched = [each for each in matched if each[0].effect != "allow"]
        if not matched:
            return self._default if self._phase is not Phase.CONNECT else self._unmatched(frame)
        effect = matched[0][0].effect
        strongest = [each for each in matched if each[0].effect == effect]
        decision = self._said(cast("Answer", effect), _speaker(strongest), frame)
        if effect == "ask" and len(matched) > 1:
            # A person decides, and one rule's reason is not the others'.
            reasons = tuple(self._reason(rule, frame) for rule, _ in strongest)
            return replace(decision, reasons=reasons)
        return decision

    def _result(self, matched: Sequence[Matched], frame: Frame) -> Decision:
        """Everything that matched applies; a rule that fails denies the result."""
        denies = [each for each in matched if each[0].effect == "deny" or each[1] is not None]
        if denies:
            return self._said("deny", _speaker(denies), frame)
        if not matched:
            return self._default
        labels = dict.fromkeys(label for rule, _ in matched for label in rule.labels)
        redactions = (rule.redaction for rule, _ in matched)
        return Decision(
            "allow",
            matched[0][0].id,
            policy=matched[0][0].policy,
            revision=self._revision,
            labels=tuple(labels),
            redactions=tuple(each for each in redactions if each is not None),
        )

    def _said(self, answer: Answer, rule: Rule, frame: Frame) -> Decision:
        reason = self._reason(rule, frame)
        return Decision(
            answer,
            rule.id,
            policy=rule.policy,
            revision=self._revision,
            message=reason.message,
            message_constant=reason.constant,
        )

    def _reason(self, rule: Rule, frame: Frame) -> Reason:
        if rule.message is None:
            return Reason(rule.id, rule.text)
        value = rule.message.evaluate(frame if not rule.scope else _scoped(frame, {}, rule))
        return Reason(rule.id, message_text(value, rule), constant=False)

    def _unmatched(self, frame: Frame) -> Decision:
        """A dial about which no rule says anything: the verdict decides."""
        verdict = frame.get("verdict")
        if type(verdict) is not dict:
            return Decision(
                "deny",
                "egress/no-verdict",
                policy="egress",
                revision=self._revision,
                message="denied: the address was not checked",
            )
        why = verdict.get("why")
        rule = f"egress/{why if type(why) is str and why else 'verdict'}"
        if verdict.get("ok") is True:
            return Decision("allow", rule, policy="egress", revision=self._revision)
        return Decision(
            "deny", rule, policy="egress", revision=self._revision, message=f"denied: {rule}"
        )


_NONE: Final[Sequence[Matched]] = ()


def _matching(rules: Sequence[Rule], frame: Frame) -> Sequence[Matched]:
    """The rules that match, in order. An allow rule that fails does not."""
    matched: list[Matched] | None = None
    frames: dict[int, Frame] = {}
    for rule in rules:
        value = rule.when.test(_scoped(frame, frames, rule) if rule.scope else frame)
        if value is False:
            continue
        if value is not True and rule.effect == "allow":
            continue
        if matched is None:
            matched = []
        matched.append((rule, None if value is True else value))
    return _NONE if matched is None else matched


def _scoped(frame: Frame, frames: dict[int, Frame], rule: Rule) -> Frame:
    """The frame of a policy with variables: they are kept under their bare names."""
    found = frames.get(rule.scope)
    if found is None:
        found = frames[rule.scope] = dict(frame)
    return found


def _speaker(matched: Sequence[Matched]) -> Rule:
    """The rule that is told: the first that really matched, else the first that failed."""
    return next((rule for rule, error in matched if error is None), matched[0][0])


def _error(rule: Rule, error: CelError) -> PolicyError:
    return PolicyError(error.kind, error.line, error.column, error.message, rule.id, rule.file)


def prepared(phase: Phase, given: Mapping[str, Value], *, now: bool = True) -> Frame:
    """The frame of an input: what is absent has its empty value, ``now`` is a timestamp."""
    frame: Frame = {**_BASE[phase], **given, BUDGET: Budget()}
    if now:
        _set_now(frame)
    if phase is Phase.CONNECT:
        _set_verdict(frame)
    return frame


def _set_now(frame: Frame) -> None:
    """``now`` as a timestamp: RFC 3339 text, seconds, or the clock's where it is absent.

    What is neither is left out, so that the rules that read it fail.
    """
    value: Value = frame.pop("now", None)
    if type(value) is Timestamp:
        frame["now"] = value
        return
    try:
        if value is None:
            frame["now"] = timestamp_of(time.time_ns())
        elif type(value) is str:
            frame["now"] = parse_timestamp(value)
        elif type(value) in (int, float):
            frame["now"] = timestamp_of(int(value * SECOND))
    except (EvalError, OverflowError, ValueError):
        return


def _set_verdict(frame: Frame) -> None:
    """Give configured servers a verdict: their addresses are the operator's own word."""
    if "verdict" in frame:
        return
    server = frame.get("server")
    if type(server) is dict and server.get("runtime") is False:
        frame["verdict"] = CONFIGURED


def message_text(value: Value, rule: Rule) -> str:
    """What a message says. One that fails or is no text keeps nobody from an answer."""
    return value[:MOST_MESSAGE] if type(value) is str and value else rule.id


def empty_frame() -> Frame:
    """For expressions that read nothing."""
    return {BUDGET: Budget()}


def kept(rules: Iterable[Rule]) -> list[Rule]:
    """The rules without those that can never match any more."""
    return [
        rule
        for rule in rules
        if not (rule.when.constant and rule.when.test(empty_frame()) is False)
    ]
