"""What every policy engine has to do, whoever wrote it: run it on yours.

from tests.policy.contract import Contract

class TestMine(Contract):
    engine = "mine"            # the entry point's name
    deny_all = "…"             # the text of a file by which every call is denied
    broken = "…"               # the text of a file that must not load
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

import pytest

from sidecar.model import Decision, Phase
from sidecar.policy import EngineOptions, PolicyErrors, load
from sidecar.policy.guard import Guarded, acceptable
from sidecar.policy.inputs import known
from sidecar.policy.phases import VARIABLES
from tests.policy.kit import DIAL, GIVEN, RESULT, SERVER, TOOL

INPUTS = {
    Phase.CONNECT: DIAL,
    Phase.LIST: {name: GIVEN[name] for name in ("agent", "tool", "server")},
    Phase.CALL: GIVEN,
    Phase.RESULT: {**GIVEN, "result": RESULT},
}


class Contract:
    """Subclass it, and pytest runs each of these on your engine."""

    engine: ClassVar[str]
    deny_all: ClassVar[str]
    broken: ClassVar[str]

    def load(self, folder: Path, *texts: str, default: str = "allow") -> Guarded:
        """Load files with these texts."""
        paths = []
        for i, text in enumerate(texts):
            paths.append(folder / f"policy{i}.yaml")
            paths[-1].write_text(text)
        options = EngineOptions(default="deny" if default == "deny" else "allow")
        return load(paths, engine=self.engine, shipped=(), options=options)

    @pytest.mark.parametrize("phase", list(Phase))
    def test_it_decides_every_phase(self, tmp_path: Path, phase: Phase) -> None:
        decision = self.load(tmp_path, self.deny_all).decide(phase, dict(INPUTS[phase]))
        assert acceptable(decision, phase)
        assert not decision.rule.startswith("engine/")

    def test_it_denies(self, tmp_path: Path) -> None:
        decision = self.load(tmp_path, self.deny_all).decide(Phase.CALL, dict(GIVEN))
        assert decision.decision == "deny"
        assert decision.rule != ""
        assert decision.message != ""

    @pytest.mark.parametrize("phase", list(Phase))
    def test_any_input_is_decided(self, tmp_path: Path, phase: Phase) -> None:
        """Inputs that nothing of ours makes: they may be denied, and never end in an exception."""
        policy = self.load(tmp_path, self.deny_all).policy
        for given in ({}, {"tool": 1, "args": []}, {"now": "x", "session": None, "server": [1]}):
            assert isinstance(policy.decide(phase, given), Decision)

    def test_the_input_stays_as_it_is(self, tmp_path: Path) -> None:
        given = dict(GIVEN)
        self.load(tmp_path, self.deny_all).decide(Phase.CALL, given)
        assert given == GIVEN

    def test_the_revision_is_that_of_the_files(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.mkdir()
        two.mkdir()
        first = self.load(one, self.deny_all).revision
        assert len(first) == 64
        assert int(first, 16) >= 0
        assert self.load(two, self.deny_all).revision == first
        assert self.load(two, self.deny_all + "\n# other\n").revision != first
        assert self.load(one, self.deny_all).decide(Phase.CALL, dict(GIVEN)).revision == first

    def test_a_broken_file_does_not_load(self, tmp_path: Path) -> None:
        with pytest.raises(PolicyErrors) as caught:
            self.load(tmp_path, self.broken)
        (fault, *_) = caught.value.faults
        assert fault.file.endswith("policy0.yaml")
        assert fault.message != ""

    def test_it_tells_what_it_reads(self, tmp_path: Path) -> None:
        policy = self.load(tmp_path, self.deny_all).policy
        for phase in Phase:
            reads = policy.refs(phase)
            assert isinstance(reads, frozenset)
            assert {name.partition(".")[0] for name in reads} <= VARIABLES[phase]

    def test_specialised_it_decides_the_same(self, tmp_path: Path) -> None:
        policy = self.load(tmp_path, self.deny_all)
        special = policy.policy.specialise(known(TOOL, SERVER))
        assert special.revision == policy.revision
        for phase in (Phase.LIST, Phase.CALL, Phase.RESULT):
            given = dict(INPUTS[phase])
            one, other = special.decide(phase, given), policy.decide(phase, given)
            assert (one.decision, one.rule, one.rules) == (other.decision, other.rule, other.rules)

    def test_many_threads_may_ask(self, tmp_path: Path) -> None:
        policy = self.load(tmp_path, self.deny_all).policy
        found: list[str] = []

        def ask() -> None:
            found.extend(policy.decide(Phase.CALL, dict(GIVEN)).decision for _ in range(50))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert found == ["deny"] * 200
