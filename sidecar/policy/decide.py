"""``CelPolicy``: one loaded revision, generic or specialised for a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from sidecar.model import Decision, JsonObject, Phase
from sidecar.policy.cel.env import Environment
from sidecar.policy.cel.specialise import specialised
from sidecar.policy.plan import Plan, empty_frame, kept, message_text
from sidecar.policy.programs import Runnable
from sidecar.policy.rules import EVERYTHING, Rule, Subject, subject_known, subject_of

MOST_PLANS: Final = 4096
"""Selections of rules kept by what they are about; beyond, all are made anew."""


class CelPolicy:
    """One revision. Immutable but for what it remembers; safe to ask from any thread."""

    def __init__(
        self, rules: Sequence[Rule], *, default: Literal["allow", "deny"], revision: str
    ) -> None:
        self.default: Final = default
        self._revision = revision
        self._rules: dict[Phase, list[Rule]] = {
            phase: [rule for rule in rules if rule.phase is phase] for phase in Phase
        }
        self._matchless: dict[Phase, bool] = {}
        self._plans: dict[tuple[Phase, Subject | None], Plan] = {}
        self._refs: dict[Phase, frozenset[str]] = {}
        self._static: dict[Phase, list[Rule]] = {}
        self._doom: dict[tuple[Phase, tuple[int, ...]], Plan] = {}

    @property
    def revision(self) -> str:
        """The sha256 (hex) of all files, and of what else decides."""
        return self._revision

    def rules(self, phase: Phase) -> list[Rule]:
        """The rules of a phase, in the order of the files."""
        return self._rules[phase]

    def decide(self, phase: Phase, given: JsonObject) -> Decision:
        """See :class:`sidecar.ports.policy.Policy`."""
        return self.plan(phase, given).decide(given)

    def plan(self, phase: Phase, given: JsonObject) -> Plan:
        """The rules that are asked for an input."""
        matchless = self._matchless.get(phase)
        if matchless is None:
            matchless = all(rule.matcher.everything for rule in self.rules(phase))
            self._matchless[phase] = matchless
        key = (phase, None if matchless else subject_of(phase, given))
        plan = self._plans.get(key)
        return self._make(*key) if plan is None else plan

    def _make(self, phase: Phase, subject: Subject | None) -> Plan:
        rules = self.rules(phase)
        if subject is not None:
            rules = [rule for rule in rules if rule.matcher.takes(subject)]
        plan = Plan(phase, rules, self.default, self._revision)
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[phase, subject] = plan
        return plan

    def foredoomed(self, phase: Phase, given: JsonObject) -> bool | None:
        """Whether a rule that reads nothing but what a tool and its server are denies this one.

        ``given`` has ``tool`` and ``server``. ``None``: there is no such rule, for no tool.
        """
        static = self._static.get(phase)
        if static is None:
            static = self._static[phase] = [
                rule
                for rule in self.rules(phase)
                if rule.effect == "deny" and not rule.audit and all(map(_static, _reads(rule)))
            ]
        if not static:
            return None
        subject = subject_of(phase, given)
        taken = tuple(n for n, rule in enumerate(static) if rule.matcher.takes(subject))
        plan = self._doom.get((phase, taken))
        if plan is None:
            rules = [replace(static[n], message=None, text="") for n in taken]
            plan = Plan(phase, rules, "allow", self._revision)
            if len(self._doom) >= MOST_PLANS:
                self._doom.clear()
            self._doom[phase, taken] = plan
        return plan.decide(given).decision == "deny"

    def always(self, phase: Phase) -> Decision | None:
        """The decision, where nothing that is not known yet can change it."""
        if not all(rule.matcher.everything for rule in self.rules(phase)):
            return None
        return self.plan(phase, {}).always()

    def refs(self, phase: Phase) -> frozenset[str]:
        """See :class:`sidecar.ports.policy.Policy`."""
        found = self._refs.get(phase)
        if found is None:
            found = frozenset().union(*(rule.references for rule in self.rules(phase)))
            if phase is Phase.CONNECT:
                found |= {"verdict", "server.runtime"}
            self._refs[phase] = found
        return found

    def all_rules(self) -> list[Rule]:
        """The rules of every phase."""
        return [rule for phase in Phase for rule in self.rules(phase)]

    def enforced(self) -> CelPolicy:
        """The policy as if no rule were in audit mode: what tests are about."""
        rules = [replace(rule, audit=False) for rule in self.all_rules()]
        return CelPolicy(rules, default=self.default, revision=self._revision)

    def specialise(self, known: Mapping[str, object]) -> CelPolicy:
        """The policy for inputs that hold all of ``known``: variables, or dotted paths."""
        return Specialised(self, known)


def _reads(rule: Rule) -> frozenset[str]:
    """What decides about a match; what a message reads does not."""
    return replace(rule, message=None).references


def _static(name: str) -> bool:
    return name.startswith(("tool.", "server.")) and name != "tool.changed"


class Specialised(CelPolicy):
    """A policy with part of its input known; each phase is made when it is first asked."""

    def __init__(self, whole: CelPolicy, known: Mapping[str, object]) -> None:
        super().__init__((), default=whole.default, revision=whole.revision)
        self._rules.clear()
        self._whole = whole
        self._known = known

    def rules(self, phase: Phase) -> list[Rule]:
        """Those rules of the phase that what is known leaves possible."""
        found = self._rules.get(phase)
        if found is None:
            found = self._rules[phase] = self._left(phase)
        return found

    def _left(self, phase: Phase) -> list[Rule]:
        rules = self._whole.rules(phase)
        subject = subject_known(phase, self._known)
        if subject is not None:
            rules = [rule for rule in rules if rule.matcher.takes(subject)]
        environments: dict[int, Environment] = {}
        roots = {name.partition(".")[0] for name in self._known}

        def special(program: Runnable) -> Runnable:
            env = environments.get(id(program.env))
            if env is None:
                env = environments[id(program.env)] = specialised(program.env, self._known)
            return program.specialise(self._known, env)

        def known(rule: Rule) -> Rule:
            matcher = rule.matcher if subject is None else EVERYTHING
            if roots.isdisjoint(rule.roots):
                # It reads nothing of what is known: what was compiled once will do for all.
                return replace(rule, matcher=matcher)
            text, message = rule.text, rule.message
            if message is not None:
                message = special(message)
                if message.constant:
                    text, message = message_text(message.evaluate(empty_frame()), rule), None
            return replace(
                rule, when=special(rule.when), text=text, message=message, matcher=matcher
            )

        return kept(known(rule) for rule in rules)
