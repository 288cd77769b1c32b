"""Running policy tests, and what of the rules they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from sidecar.model import Decision
from sidecar.policy import files, suites
from sidecar.policy.decide import CelPolicy
from sidecar.policy.engines import load
from sidecar.policy.guard import Guarded
from sidecar.policy.suites import Case, Expect, Suite
from sidecar.ports.policy import EngineOptions, PolicyErrors, PolicyFault

FAILS: Final = "test"
"""The code of a fault that is a test which fails."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: what was decided, and every difference from what is expected."""

    file: str
    case: Case
    decision: Decision
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleCoverage:
    """How many cases a rule matched in. ``id`` is ``policy/id``."""

    id: str
    phase: str
    file: str
    line: int
    matched: int


@dataclass(slots=True)
class Report:
    """All outcomes of a run, what kept suites from running, and what was reached."""

    outcomes: list[Outcome] = field(default_factory=list)
    faults: list[PolicyFault] = field(default_factory=list)
    coverage: list[RuleCoverage] = field(default_factory=list)

    @property
    def failed(self) -> list[Outcome]:
        """The cases that are not as expected."""
        return [outcome for outcome in self.outcomes if outcome.problems]

    @property
    def errors(self) -> list[PolicyFault]:
        """What kept suites from running."""
        return [fault for fault in self.faults if not fault.warning]

    def as_faults(self) -> list[PolicyFault]:
        """Failed cases as faults, each at its place."""
        return [
            PolicyFault(
                outcome.file,
                outcome.case.line,
                outcome.case.column,
                outcome.decision.rule,
                f"test {outcome.case.name!r}: {'; '.join(outcome.problems)}",
                code=FAILS,
            )
            for outcome in self.failed
        ]


Wanted: TypeAlias = Callable[[Case], bool]
_MOST_LOADS: Final = 200


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A policy, and the same with every rule enforced."""

    real: Guarded
    enforced: Guarded


def _enforced(policy: Guarded) -> Guarded:
    if not isinstance(policy.policy, CelPolicy):
        return policy
    return Guarded(policy.policy.enforced(), timeout=None)


class Runner:
    """Runs suites; policies that several of them are about are loaded once."""

    def __init__(self, engine: str = "cel") -> None:
        self._engine = engine
        self._loaded: dict[tuple[tuple[Path, ...], tuple[str, ...], str], _Loaded] = {}
        self._matched: dict[tuple[str, str], int] = {}

    def run(self, paths: Sequence[Path], wanted: Wanted = lambda case: True) -> Report:
        """Run every test file of the paths; the policies are loaded as the files say."""
        report = Report()
        for path in paths:
            self._file(path, wanted, report)
        report.coverage = self._coverage()
        return report

    def _file(self, path: Path, wanted: Wanted, report: Report) -> None:
        own = path.parent == files.shipped_folder()
        try:
            (file,) = files.read([path], shipped=own)
            suite, faults = suites.read(file, file.text)
            report.faults += faults
            if suite is None or faults:
                return
            policy = self._policy(suite)
        except PolicyErrors as errors:
            report.faults += [fault for fault in errors.faults if fault not in report.faults]
            return
        for case in suite.cases:
            if wanted(case):
                report.outcomes.append(self._case(suite, case, policy))

    def _policy(self, suite: Suite) -> _Loaded:
        paths = suite.policies
        if paths is None:
            paths = tuple(
                each
                for each in files.find([suite.path.parent])
                if each.parent == suite.path.parent and not files.is_test(each)
            )
            if not paths and not suite.shipped:
                message = "no policy is in this folder; name the files in `policies`"
                raise PolicyErrors([PolicyFault(suite.file, 1, 1, "", message, code="file")])
        key = (tuple(paths), suite.shipped, suite.default)
        if key not in self._loaded:
            if len(self._loaded) >= _MOST_LOADS:
                self._loaded.clear()
            options = EngineOptions(default=cast("Literal['allow', 'deny']", suite.default))
            policy = load(paths, engine=self._engine, shipped=suite.shipped, options=options)
            self._loaded[key] = _Loaded(policy, _enforced(policy))
        return self._loaded[key]

    def _case(self, suite: Suite, case: Case, policy: _Loaded) -> Outcome:
        real = policy.real.decide(case.phase, case.input)
        said = real
        if policy.enforced is not policy.real:
            said = policy.enforced.decide(case.phase, case.input)
        for rule in {*said.rules, *said.audited}:
            self._matched[rule, case.phase] = self._matched.get((rule, case.phase), 0) + 1
        return Outcome(suite.file, case, real, tuple(problems(case.expect, said, real)))

    def _coverage(self) -> list[RuleCoverage]:
        found: dict[tuple[str, str], RuleCoverage] = {}
        for loaded in self._loaded.values():
            policy = loaded.real.policy
            for rule in policy.all_rules() if isinstance(policy, CelPolicy) else ():
                key = (rule.id, rule.phase.value)
                found.setdefault(
                    key,
                    RuleCoverage(*key, rule.file, rule.line, self._matched.get(key, 0)),
                )
        return sorted(found.values(), key=lambda each: (each.file, each.line, each.phase))


def problems(expect: Expect, said: Decision, real: Decision) -> Iterable[str]:
    """Every difference, in words.

    ``said`` is the decision were every rule enforced, ``real`` what happens.
    """
    decision = said.decision if said is not real else said.would or said.decision
    rule = said.rule if said is not real else said.would_rule or said.rule
    if expect.decision is not None and decision != expect.decision:
        yield f"decision is {decision} (by {rule}), expected {expect.decision}"
    if expect.rule is not None and not _same(rule, expect.rule):
        yield f"rule is {rule}, expected {expect.rule}"
    if expect.rules is not None:
        matched = (*said.rules, *said.audited)
        missing = [each for each in expect.rules if not any(_same(r, each) for r in matched)]
        more = [r for r in matched if not any(_same(r, each) for each in expect.rules)]
        if missing or more:
            yield f"rules are {_list(matched)}, expected {_list(expect.rules)}"
    if expect.message is not None and said.message != expect.message:
        yield f"message is {said.message!r}, expected {expect.message!r}"
    if expect.labels is not None and set(said.labels) != set(expect.labels):
        yield f"labels are {_list(said.labels)}, expected {_list(expect.labels)}"
    if expect.error is not None:
        yield from _error(expect.error, said)
    if expect.happens is not None and real.decision != expect.happens:
        yield f"what happens is {real.decision}, expected {expect.happens}"
    if expect.mode is not None and real.mode != expect.mode:
        yield f"mode is {real.mode}, expected {expect.mode}"


def _error(expected: bool | str, said: Decision) -> Iterable[str]:
    if said.error is None:
        if expected is not False:
            yield "no rule fails, expected an error"
        return
    found = said.error
    told = f"{found.rule} fails at {found.line}:{found.column}: {found.message}"
    if expected is False:
        yield f"{told}; expected no error"
    elif isinstance(expected, str) and found.kind != expected:
        yield f"error is {found.kind} ({told}), expected {expected}"


def _same(found: str, expected: str) -> bool:
    return found == expected or ("/" not in expected and found.rpartition("/")[2] == expected)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def find_tests(paths: Sequence[Path], shipped: Sequence[str] = ()) -> list[Path]:
    """The test files of these paths, and those of the sidecar's own policies named."""
    own = (files.shipped_folder() / f"{name}{files.TEST}.yaml" for name in shipped)
    found = [path for path in files.find(paths) if files.is_test(path)]
    return [*(path for path in own if path.is_file()), *found]


def check(paths: Sequence[Path], *, engine: str = "cel") -> list[PolicyFault]:
    """What keeps a load from being taken over: faults of tests, and tests that fail."""
    report = Runner(engine).run(find_tests(paths))
    return [*report.errors, *report.as_faults()]
