"""Putting questions to the policy in force, with an input of what its rules read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sidecar.config import ServerConfig
from sidecar.gate.content import Content
from sidecar.gate.ledger import Ledger
from sidecar.gate.pins import Pins
from sidecar.gate.records import Records, arguments
from sidecar.gate.subjects import Question, Revision, Subject, agent
from sidecar.model import (
    Admitted,
    Call,
    Caller,
    Decision,
    JsonObject,
    Kind,
    Phase,
    PolicyError,
)
from sidecar.policy.guard import Guarded
from sidecar.policy.phases import VARIABLES
from sidecar.wire import json

log = logging.getLogger("sidecar.gate")

MOST_SESSIONS: Final = 100_000
"""Sessions of which calls are counted; beyond, the oldest begin at zero again."""


class Holder(Protocol):
    """The policy in force: what the gate needs of ``sidecar.policy.holder.PolicyHolder``."""

    @property
    def current(self) -> Guarded: ...


@dataclass(slots=True, eq=False)
class Asking:
    """What a call is decided with: all of one call's questions go to the same revision.

    ``calls`` are those of the session before this one; ``changed``: the tool's definition is
    other than the pinned one.
    """

    subject: Subject
    calls: int
    changed: bool


@dataclass(slots=True)
class Held(Admitted):
    """An admitted call, with what its result is decided with too."""

    asking: Asking


class Decider:
    """Everything that policies are asked goes through here, and every answer is recorded."""

    def __init__(
        self,
        holder: Holder,
        *,
        servers: Callable[[str], ServerConfig | None],
        ledger: Ledger,
        pins: Pins,
        records: Records,
    ) -> None:
        """``servers`` gives the configuration of a server, the same object until it changes."""
        self._holder = holder
        self._servers = servers
        self._ledger = ledger
        self._pins = pins
        self._records = records
        self._revision: Revision | None = None
        self._calls: dict[str, int] = {}

    def now(self) -> Revision:
        """The policy in force, with what was made of it."""
        policy = self._holder.current
        revision = self._revision
        if revision is None or revision.policy is not policy:
            revision = self._revision = Revision(policy, self._servers)
        return revision

    # -------------------------------------------------------------------- what it is about

    def asking(self, call: Call, calls: int) -> Asking:
        """A call, in front of the policy of now."""
        tool, revision = call.tool, self.now()
        if tool is None:
            return Asking(revision.of_kind(call.server, call.kind), calls, False)
        return Asking(revision.of_tool(tool), calls, self._pins.changed(tool) is not False)

    def overhearing(self, server: str) -> Asking:
        """A server that says something by itself: a resource without a name."""
        return Asking(self.now().of_kind(server, Kind.RESOURCE), 0, False)

    def calls_before(self, caller: Caller, *, count: bool) -> int:
        """Calls of the caller's session before this one; ``count``: this is one."""
        key = caller.isolation
        before = self._calls.get(key, 0)
        if count:
            if not before and len(self._calls) >= MOST_SESSIONS:
                self._calls.pop(next(iter(self._calls)))
            self._calls[key] = before + 1
        return before

    def forget(self, session: str) -> None:
        """The session is gone."""
        self._calls.pop(session, None)

    # --------------------------------------------------------------------------- answers

    def ask(
        self,
        phase: Phase,
        asking: Asking,
        call: Call,
        caller: Caller,
        content: Content | None = None,
        *,
        again: bool = False,
    ) -> Decision:
        """One question, one answer, one record. ``again``: it was held before."""
        subject, records = asking.subject, self._records
        question = subject.call if phase is Phase.CALL else subject.result
        if question.fixed is not None and records.inputs is None:
            # The same for every call of this tool: there is nothing to make or to measure.
            decision = question.fixed
            if not records.quiet(phase, caller, decision):
                records.tell(phase, call, caller, decision, again=again)
            return decision
        began = time.perf_counter()
        seen: JsonObject | None = None
        try:
            seen = self._given(question, asking, call, caller, content)
            decision = question.policy.decide(phase, seen)
        except Exception as error:  # noqa: BLE001 - what cannot be decided is denied
            decision = self._undecided(question, call, error)
        if not records.quiet(phase, caller, decision):
            seconds = time.perf_counter() - began
            records.tell(phase, call, caller, decision, seconds=seconds, given=seen, again=again)
        return decision

    def overheard(self, asking: Asking, call: Call, caller: Caller, content: Content) -> Decision:
        """What result rules say of words on their way. They are part of a call, whose result
        has the record, or of none."""
        question = asking.subject.result
        if question.fixed is not None:
            return question.fixed
        try:
            given = self._given(question, asking, call, caller, content)
            return question.policy.decide(Phase.RESULT, given)
        except Exception as error:  # noqa: BLE001 - as above
            return self._undecided(question, call, error)

    def hidden(self, asking: Asking, call: Call, caller: Caller) -> Decision | None:
        """The denial of what is not listed for this caller: it is not called either."""
        revision = self.now()
        if revision.lists_all:
            return None
        decision = (
            revision.listing(call.tool, asking.changed, caller)
            if call.tool is not None
            else revision.listing_of(
                call.server, call.kind, call.target, call.upstream_name, caller
            )
        )
        if decision.decision != "deny":
            return None
        self._records.tell(Phase.LIST, call, caller, decision)
        return decision

    def _undecided(self, question: Question, call: Call, error: Exception) -> Decision:
        if not isinstance(error, json.BadJson):
            log.exception("deciding %s of %s failed", question.phase, call.target)
        told = f"it cannot be decided: {reason(error)}"
        rule = "gate/input"
        return Decision(
            "deny",
            rule,
            (rule,),
            "gate",
            question.policy.revision,
            f"denied: {told}",
            error=PolicyError("input", 0, 0, told, rule),
        )

    # ----------------------------------------------------------------------------- inputs

    def _given(
        self,
        question: Question,
        asking: Asking,
        call: Call,
        caller: Caller,
        content: Content | None,
    ) -> JsonObject:
        """The input: of every variable that some rule reads, what it has to be."""
        everything = self._records.inputs is not None
        found: JsonObject = {}
        for root in VARIABLES[question.phase] if everything else question.roots:
            match root:
                case "agent":
                    found[root] = agent(caller)
                case "session":
                    found[root] = {
                        "id": caller.session,
                        "labels": list(self._ledger.of(caller)),
                        "calls": asking.calls,
                    }
                case "now":
                    found[root] = time.time()
                case "server":
                    found[root] = asking.subject.server
                case "call":
                    found[root] = {"id": call.id, "method": call.method}
                case "args":
                    found[root] = arguments(call)
                case "tool":
                    tool = asking.subject.tool
                    found[root] = {**tool, **_named(call), "changed": asking.changed}
                case "permission" | "work" if root in call.about:
                    found[root] = call.about[root]
                case "result" if content is not None:
                    found[root] = content.given(None if everything else question.parts)
        return found


def _named(call: Call) -> Mapping[str, object]:
    """What is not known of a thing before it is called: tools have it in their definition."""
    if call.tool is not None:
        return {}
    return {"name": call.target, "upstream_name": call.upstream_name}


def reason(error: Exception) -> str:
    """Without anything that the input holds: our own errors say only what is ours."""
    if isinstance(error, json.BadJson):
        return f"it cannot be read: {error}"
    return f"the gate failed ({type(error).__name__})"
