"""Between an engine and whoever asks it: whatever an engine does wrong is a decision to deny."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final, Protocol, TypeVar, runtime_checkable

from sidecar.model import Decision, JsonObject, Phase, PolicyError, Reason, Redaction
from sidecar.policy.phases import ANSWERS, VARIABLES
from sidecar.ports.policy import Policy, PolicyFault

log = logging.getLogger("sidecar.policy")

T = TypeVar("T")

TIMEOUT: Final = 0.5
"""Seconds that an engine which is not ours gets for one decision."""
MOST_STUCK: Final = 4
"""Threads that an engine may hang before it is not asked any more until one of them ends."""


@runtime_checkable
class _Foresees(Protocol):
    """A policy that can tell decisions which do not depend on what is not known yet."""

    def always(self, phase: Phase) -> Decision | None: ...


@runtime_checkable
class _Dooms(Protocol):
    """A policy that can tell tools of which every call is denied."""

    def foredoomed(self, phase: Phase, given: JsonObject) -> bool | None: ...


class Guarded:
    """A policy that is total. Immutable, safe to ask from any thread.

    An exception, a time-out, and anything but a decision that the phase allows is a deny whose
    rule is ``engine/exception``, ``engine/timeout`` or ``engine/answer``.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        timeout: float | None = TIMEOUT,
        warnings: tuple[PolicyFault, ...] = (),
    ) -> None:
        """``timeout`` is in seconds; ``None`` trusts the engine to end, and asks it in place."""
        self.policy: Final = policy
        self.warnings: Final = warnings
        self._timeout = timeout
        self._revision = _revision(policy)

    @property
    def revision(self) -> str:
        """The sha256 (hex) of the policy's files."""
        return self._revision

    def decide(self, phase: Phase, given: JsonObject) -> Decision:
        """The decision for one input; see ``docs/policy.md`` for its variables. Never raises."""
        if self._timeout is None:
            try:
                decision = self.policy.decide(phase, given)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a deny
                return self._failed("exception", f"it failed ({type(error).__name__})")
            if type(decision) is Decision:
                return decision
            return self._failed("answer", "its answer is not a decision")
        return self._timed(phase, given, self._timeout)

    def _timed(self, phase: Phase, given: JsonObject, timeout: float) -> Decision:
        try:
            answer = _LANES.run(lambda: self.policy.decide(phase, given), timeout)
        except TimeoutError:
            return self._failed("timeout", f"it took longer than {timeout:g} s")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a deny
            return self._failed("exception", f"it failed ({type(error).__name__})")
        if not acceptable(answer, phase):
            return self._failed("answer", "its answer is not a decision of this phase")
        return answer

    def always(self, phase: Phase) -> Decision | None:
        """The decision, where nothing that is still unknown can change it; else ``None``.

        Of a policy specialised for a tool: a tool that is always denied need not be listed.
        """
        if not isinstance(self.policy, _Foresees):
            return None
        try:
            found = self.policy.always(phase)
        except Exception as error:  # noqa: BLE001 - not to know is always right
            log.warning("the policy engine failed (%s)", type(error).__name__)
            return None
        return found if found is not None and acceptable(found, phase) else None

    def foredoomed(self, phase: Phase, given: JsonObject) -> bool | None:
        """Whether all of a tool's calls are denied, by what it and its server are alone.

        ``given`` has ``tool`` and ``server``. ``None``: that is so of no tool whatever.
        """
        if not isinstance(self.policy, _Dooms):
            return None
        try:
            return self.policy.foredoomed(phase, given)
        except Exception as error:  # noqa: BLE001 - a tool that is listed is denied when called
            log.warning("the policy engine failed (%s)", type(error).__name__)
            return None

    def refs(self, phase: Phase) -> frozenset[str]:
        """The dotted names of the input that some rule of the phase reads; all when unsure."""
        try:
            found = self.policy.refs(phase)
            if isinstance(found, frozenset) and all(isinstance(name, str) for name in found):
                return found
        except Exception as error:  # noqa: BLE001 - an input with everything is always right
            log.warning("the policy engine failed (%s)", type(error).__name__)
        return VARIABLES[phase]

    def specialise(self, known: Mapping[str, object]) -> Guarded:
        """The same policy with part of its input known; the policy itself where that fails."""
        try:
            special = self.policy.specialise(known)
            decides = callable(special.decide) and _revision(special) == self._revision
        except Exception as error:  # noqa: BLE001 - unspecialised is slower, and right
            log.warning("the policy engine failed (%s)", type(error).__name__)
            return self
        if not decides:
            return self
        return Guarded(special, timeout=self._timeout, warnings=self.warnings)

    def _failed(self, kind: str, why: str) -> Decision:
        log.warning("the policy engine was asked and %s", why)
        error = PolicyError("engine", 0, 0, f"the policy engine was asked and {why}")
        rule = f"engine/{kind}"
        return Decision(
            "deny", rule, (rule,), "engine", self._revision, f"denied: {error.message}", error=error
        )


def guard(policy: Policy, *, timeout: float | None = TIMEOUT) -> Guarded:
    """The policy of an engine, made total."""
    return Guarded(policy, timeout=timeout)


def _revision(policy: Policy) -> str:
    try:
        revision: object = policy.revision
    except Exception:  # noqa: BLE001 - a policy without a revision decides nothing well
        revision = None
    return revision if isinstance(revision, str) else ""


_STRINGS = ("rule", "policy", "revision", "message", "would_rule")
_LISTS = ("rules", "labels", "audited")


def acceptable(answer: object, phase: Phase) -> bool:
    """Whether it is a decision that the phase can have, every field of its type."""
    if type(answer) is not Decision:
        return False
    # A frozen dataclass checks nothing: a field may hold whatever the engine put into it.
    held: dict[str, object] = {each.name: getattr(answer, each.name) for each in fields(answer)}
    redactions = held["redactions"]
    return (
        type(held["decision"]) is str
        and held["decision"] in ANSWERS[phase]
        and (held["would"] is None or held["would"] in tuple(ANSWERS[phase]))
        and held["mode"] in ("enforce", "audit")
        and all(type(held[name]) is str for name in _STRINGS)
        and all(_texts(held[name]) for name in _LISTS)
        and (held["error"] is None or type(held["error"]) is PolicyError)
        and isinstance(redactions, tuple)
        and all(type(each) is Redaction for each in redactions)
        and (phase is Phase.RESULT or not (held["labels"] or redactions))
        and _reasons(held["reasons"])
    )


def _reasons(value: object) -> bool:
    return isinstance(value, tuple) and all(
        type(each) is Reason
        and type(each.rule) is str
        and type(each.message) is str
        and type(each.constant) is bool
        for each in value
    )


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(type(each) is str for each in value)


class Lanes:
    """Runs calls that may hang, each within a time; a thread that hangs is left behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[_Lane] = []
        self._stuck = 0

    def run(self, call: Callable[[], T], timeout: float) -> T:
        """The call's result.

        Raises:
            TimeoutError: it took longer, or too many calls before it still hang.
            Exception: what the call raised.
        """
        with self._lock:
            if self._stuck >= MOST_STUCK:
                raise TimeoutError
            lane = self._free.pop() if self._free else _Lane()
        answer: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def task() -> None:
            try:
                answer.put((call(), None))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                answer.put((None, error))
            except BaseException:  # noqa: BLE001 - as above
                # SystemExit and the like: the lane has to live on, and nobody is to be told less.
                answer.put((None, RuntimeError("the call ended its thread")))

        lane.tasks.put(task)
        try:
            value, error = answer.get(timeout=timeout)
        except queue.Empty:
            self._leave(lane)
            raise TimeoutError from None
        with self._lock:
            self._free.append(lane)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # the call's own result, None included

    def _leave(self, lane: _Lane) -> None:
        """Count a lane as stuck until what hangs in it ends; it is used again then."""

        def back() -> None:
            with self._lock:
                self._stuck -= 1
                self._free.append(lane)

        with self._lock:
            self._stuck += 1
        lane.tasks.put(back)


class _Lane:
    """One daemon thread with its tasks: it cannot keep the process from ending."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="policy engine", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.tasks.get()()


_LANES: Final = Lanes()
