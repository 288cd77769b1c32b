"""Engines are found by entry point, keep one contract, and whatever they do wrong is a deny."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.model import Decision, JsonObject, Phase, PolicyError, Redaction
from sidecar.policy import EngineOptions, PolicyErrors, load
from sidecar.policy.guard import MOST_STUCK, Guarded, Lanes, acceptable, guard
from sidecar.policy.phases import VARIABLES
from tests.policy.contract import Contract
from tests.policy.kit import GIVEN, policy, rule

DENY_ALL = policy(*(rule(f"r-{on}", "deny", "true", on=on) for on in Phase))


class TestCel(Contract):
    engine = "cel"
    deny_all = DENY_ALL
    broken = policy(rule("r", "deny", "args.x =="))


class TestCelpy(Contract):
    engine = "celpy"
    deny_all = DENY_ALL
    broken = policy(rule("r", "deny", "args.x =="))


@pytest.mark.parametrize(
    ("when", "missing"),
    [
        ('args.x.glob("a*")', "glob"),
        ("args.x == '' || cidr('10.0.0.0/8') == args.x", "cidr"),
        ("[1].exists(x, has(args.a) && size(string(x)) > int('0')) && tool.gated", ""),
    ],
)
def test_what_cel_python_lacks_does_not_load(tmp_path: Path, when: str, missing: str) -> None:
    """Each evaluation would be an error, so that the rule denied everything there is."""
    file = tmp_path / "p.yaml"
    file.write_text(policy(rule("r", "deny", when)))
    if not missing:
        assert load([file], shipped=(), engine="celpy").revision
        return
    with pytest.raises(PolicyErrors) as caught:
        load([file], shipped=(), engine="celpy")
    (fault,) = [each for each in caught.value.faults if not each.warning]
    assert (fault.rule, fault.message) == ("p/r", f"cel-python has no function {missing}")
    assert fault.line == 9


# ------------------------------------------------------------ somebody else's, by entry point

OUTSIDE = '''
import hashlib, json
from sidecar.model import Decision, Phase
from sidecar.ports.policy import PolicyErrors, PolicyFault

class Words:
    """Denies calls whose tool has one of the listed words in its name."""
    def __init__(self, words, revision):
        self.words, self.revision = words, revision
    def decide(self, phase, given):
        tool = given.get("tool")
        name = tool.get("name", "") if isinstance(tool, dict) else ""
        for word in self.words:
            if phase is not Phase.CONNECT and word in name:
                return Decision("deny", f"words/{word}", (f"words/{word}",), "words",
                                self.revision, f"{word} is not allowed")
        return Decision("allow", "default", revision=self.revision)
    def refs(self, phase):
        return frozenset() if phase is Phase.CONNECT else frozenset({"tool.name"})
    def specialise(self, known):
        return self

class Engine:
    def __init__(self, options):
        self.options = options
    def load(self, files):
        data = b"".join(file.read_bytes() for file in files)
        lines = data.decode().split("\\n")
        for number, line in enumerate(lines, 1):
            if line.startswith("!"):
                raise PolicyErrors([PolicyFault(str(files[0]), number, 1, "", "not a word")])
        words = [line for line in lines if line and not line.startswith("#")]
        return Words(words, hashlib.sha256(data).hexdigest())
'''


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip leaves behind for a package with an entry point."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "word_engine.py").write_text(OUTSIDE)
    about = folder / "word_engine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: word-engine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[sidecar.policy_engines]\nwords = word_engine:Engine\nbroken = word_engine:Nothing\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "word_engine", raising=False)


@pytest.mark.usefixtures("installed")
class TestOutside(Contract):
    engine = "words"
    deny_all = "write\n"
    broken = "!\n"


def test_the_engine_of_the_contract_is_small() -> None:
    assert len([line for line in OUTSIDE.splitlines() if line.strip()]) <= 32


@pytest.mark.usefixtures("installed")
def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolicyErrors) as caught:
        load([], engine="word", shipped=())
    assert str(caught.value) == (
        'policy.engine word: there is no such policy engine; did you mean "words"?'
    )
    with pytest.raises(PolicyErrors) as caught:
        load([], engine="broken", shipped=())
    assert "cannot be imported (AttributeError" in str(caught.value)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("revision", ["None", "7", "''", "1 / 0"])
def test_an_engine_whose_policy_has_no_revision(tmp_path: Path, revision: str) -> None:
    """An approval holds for one revision: without any it would outlive an edit."""
    import word_engine  # type: ignore[import-not-found]

    class Bare(word_engine.Words):  # type: ignore[misc]
        revision = property(lambda self: eval(revision))

        def __init__(self, words: object, revision: object) -> None:
            self.words = words

    word_engine.Words = Bare
    file = tmp_path / "words.yaml"
    file.write_text("write\n")
    with pytest.raises(PolicyErrors) as caught:
        load([file], engine="words", shipped=())
    assert str(caught.value) == "policy.engine words: gave a policy without a revision"


# ------------------------------------------------------------------------------- the guard

GOOD = Decision("deny", "x/y", ("x/y",), "x", "r", "no")


class Odd:
    """An engine's policy that does what it is told to."""

    revision = "r"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, phase: Phase, given: JsonObject) -> Decision:
        answer = self.answer() if callable(self.answer) else self.answer
        return answer  # type: ignore[no-any-return]

    def refs(self, phase: Phase) -> frozenset[str]:
        return frozenset({"tool.name"})

    def specialise(self, known: Mapping[str, object]) -> Odd:
        return self


def raising(error: BaseException) -> Any:
    def raise_() -> None:
        raise error

    return raise_


@pytest.mark.parametrize("timeout", [None, 5.0], ids=["in place", "timed"])
@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (raising(ValueError("a secret")), "engine/exception"),
        (raising(RecursionError()), "engine/exception"),
        (raising(MemoryError()), "engine/exception"),
        (None, "engine/answer"),
        (True, "engine/answer"),
        ("allow", "engine/answer"),
        ({"decision": "allow"}, "engine/answer"),
    ],
)
def test_whatever_goes_wrong_is_a_deny(answer: object, rule: str, timeout: float | None) -> None:
    decision = guard(Odd(answer), timeout=timeout).decide(Phase.CALL, dict(GIVEN))
    assert (decision.decision, decision.rule, decision.revision) == ("deny", rule, "r")
    assert decision.error is not None
    assert "secret" not in json.dumps([decision.message, decision.error.message])


@pytest.mark.parametrize(
    "answer",
    [
        replace(GOOD, decision="maybe"),  # type: ignore[arg-type]
        replace(GOOD, decision=["allow"]),  # type: ignore[arg-type]
        replace(GOOD, decision="redact"),  # type: ignore[arg-type]
        replace(GOOD, would="perhaps"),  # type: ignore[arg-type]
        replace(GOOD, mode="dry"),  # type: ignore[arg-type]
        replace(GOOD, rule=None),  # type: ignore[arg-type]
        replace(GOOD, rules=["x"]),  # type: ignore[arg-type]
        replace(GOOD, rules=(1,)),  # type: ignore[arg-type]
        replace(GOOD, message=b"no"),  # type: ignore[arg-type]
        replace(GOOD, labels="outside"),  # type: ignore[arg-type]
        replace(GOOD, labels=("outside",)),
        replace(GOOD, redactions=(Redaction("x"),)),
        replace(GOOD, error="oops"),  # type: ignore[arg-type]
    ],
    ids=lambda answer: repr(answer)[:0],
)
def test_a_decision_that_is_none_is_a_deny(answer: Decision) -> None:
    decision = guard(Odd(answer)).decide(Phase.CALL, dict(GIVEN))
    assert (decision.decision, decision.rule) == ("deny", "engine/answer")


@pytest.mark.parametrize(
    ("phase", "answer", "good"),
    [
        (Phase.CALL, "ask", True),
        (Phase.LIST, "ask", False),
        (Phase.CONNECT, "ask", False),
        (Phase.RESULT, "ask", False),
        (Phase.RESULT, "allow", True),
    ],
)
def test_what_a_decision_may_be_depends_on_the_phase(phase: Phase, answer: Any, good: bool) -> None:
    assert acceptable(replace(GOOD, decision=answer), phase) is good
    decision = guard(Odd(replace(GOOD, decision=answer))).decide(phase, {})
    assert decision.rule == ("x/y" if good else "engine/answer")


def test_labels_and_redactions_of_results() -> None:
    answer = replace(
        GOOD,
        decision="allow",
        labels=("outside",),
        redactions=(Redaction("x/y", patterns=("a",)),),
        error=PolicyError("k", 1, 1, "m"),
    )
    assert guard(Odd(answer)).decide(Phase.RESULT, {}) == answer


def test_an_engine_that_hangs_is_a_deny_and_costs_no_more_than_its_time() -> None:
    hang = threading.Event()
    guarded = guard(Odd(hang.wait), timeout=0.05)
    began = time.monotonic()
    decision = guarded.decide(Phase.CALL, dict(GIVEN))
    assert (decision.decision, decision.rule) == ("deny", "engine/timeout")
    assert time.monotonic() - began < 25
    hang.set()


def test_engines_that_hang_are_not_asked_for_ever() -> None:
    lanes, hang = Lanes(), threading.Event()
    for _ in range(MOST_STUCK):
        with pytest.raises(TimeoutError):
            lanes.run(hang.wait, 0.01)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        lanes.run(hang.wait, 60)
    assert time.monotonic() - began < 25
    hang.set()
    until = time.monotonic() + 10
    while True:
        try:
            assert lanes.run(lambda: 7, 10) == 7
            break
        except TimeoutError:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_thread_that_is_ended_by_its_engine_lives_on() -> None:
    guarded = guard(Odd(raising(SystemExit())), timeout=5)
    for _ in range(3):
        assert guarded.decide(Phase.CALL, {}).rule == "engine/exception"


def test_what_cannot_be_told_is_everything() -> None:
    class Silent(Odd):
        def refs(self, phase: Phase) -> frozenset[str]:
            raise KeyError

        def specialise(self, known: Mapping[str, object]) -> Odd:
            raise KeyError

    guarded = Guarded(Silent(GOOD))
    assert guarded.refs(Phase.LIST) == VARIABLES[Phase.LIST]
    assert guarded.specialise({}) is guarded
    assert guarded.always(Phase.CALL) is None


@pytest.mark.parametrize("special", [None, 7, Odd(GOOD)])
def test_a_specialised_policy_of_another_revision_is_not_used(special: Any) -> None:
    class Lossy(Odd):
        def specialise(self, known: Mapping[str, object]) -> Odd:
            return special  # type: ignore[no-any-return]

    if isinstance(special, Odd):
        special.revision = "other"
    guarded = Guarded(Lossy(GOOD))
    assert guarded.specialise({}) is guarded


def test_options_reach_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(policy(rule("r", "deny", "args.no == 1")))
    for default in ("allow", "deny"):
        options = EngineOptions(default=default)  # type: ignore[arg-type]
        loaded = load([file], shipped=(), options=options)
        assert loaded.decide(Phase.CALL, {**GIVEN, "args": {"no": 2}}).decision == default
