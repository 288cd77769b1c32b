"""The gate: list, call and result each ask once, and what they say is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, cast

from sidecar.config import ServerConfig
from sidecar.events import Bus, SessionClosed, SessionOpened
from sidecar.gate.answers import REDACTED, carried, denied, labelled, with_meta
from sidecar.gate.content import ResultContent, TextContent, plain, untrusted
from sidecar.gate.deciding import Asking, Decider, Held, Holder, reason
from sidecar.gate.labels import OUTSIDE
from sidecar.gate.ledger import Ledger
from sidecar.gate.notices import in_error, in_notice, words
from sidecar.gate.parking import Asked, NoParking, Parking
from sidecar.gate.pins import Pins
from sidecar.gate.records import Records
from sidecar.gate.redact import TooLarge, redact
from sidecar.mcp.errors import Rejection
from sidecar.model import (
    Admitted,
    Call,
    Caller,
    Decision,
    Fields,
    JsonObject,
    Kind,
    Notify,
    Phase,
    PolicyError,
    Refused,
    RpcError,
    Tool,
)
from sidecar.wire import json

PROGRESS: Final = "notifications/progress"
UPDATE: Final = "session/update"
"""What a coding agent says, to an editor."""
_TEXT: Final = {PROGRESS: "message", UPDATE: "update"}
"""Which of its params is text, by the method of a notification; ``data`` otherwise."""


class PolicyGate:
    """See :class:`sidecar.ports.gate.Gate`. Ledger and pins are started by their owner."""

    def __init__(
        self,
        holder: Holder,
        *,
        servers: Callable[[str], ServerConfig | None],
        ledger: Ledger,
        pins: Pins,
        records: Records,
        bus: Bus,
        parking: Parking | None = None,
        limit: int = 16 << 20,
    ) -> None:
        """``servers`` gives the configuration of a server, the same object until it changes.

        ``limit`` is the size of a result in bytes, after redaction too.
        """
        self._ledger = ledger
        self._pins = pins
        self._records = records
        self._parking = parking or NoParking()
        self.limit = limit
        self._decider = Decider(holder, servers=servers, ledger=ledger, pins=pins, records=records)
        self._stops = [
            bus.listen(SessionOpened, lambda e: ledger.begin(e.principal, e.session)),
            bus.listen(SessionClosed, self._session_closed),
        ]

    def close(self) -> None:
        """Listen no more. Idempotent."""
        while self._stops:
            self._stops.pop()()

    def _session_closed(self, event: SessionClosed) -> None:
        self._decider.forget(event.session)
        self._ledger.end(event.principal, event.session)

    # --------------------------------------------------------------------------- the call

    def decide(self, call: Call, caller: Caller) -> Decision:
        """See the port. A tool that was never pinned counts as changed here."""
        return self._decide(call, caller, self._decider.calls_before(caller, count=False)).decision

    def _decide(self, call: Call, caller: Caller, calls: int, *, again: bool = False) -> Held:
        asking = self._decider.asking(call, calls)
        hidden = self._decider.hidden(asking, call, caller)
        if hidden is not None:
            return Held(hidden, asking)
        return Held(self._decider.ask(Phase.CALL, asking, call, caller, again=again), asking)

    async def admit(self, call: Call, caller: Caller) -> Admitted | Refused:
        """See the port."""
        tool = call.tool
        if tool is not None and not self._pins.knows(tool) and not await self._pins.see(tool):
            return self._store_lost(call, caller, Phase.CALL, "the tool was never pinned")
        calls = self._decider.calls_before(caller, count=True)
        held = self._decide(call, caller, calls)
        if held.decision.decision == "allow":
            return held
        if held.decision.decision == "deny":
            return denied(held.decision, call)
        answer = await self._parking.hold(
            Asked(
                call, caller, held.decision, lambda: self._decide(call, caller, calls, again=True)
            )
        )
        if isinstance(answer, Refused) and answer.kind == "joined":
            return await self._shared(call, caller, answer)
        return answer

    async def _shared(self, call: Call, caller: Caller, answer: Refused) -> Refused:
        """The answer of a call that ran for several: each of them hears what it carries."""
        labels = carried(answer.result)
        if labels and not await self._ledger.add(caller, labels, call.id, call.target):
            why = "the labels of the result cannot be kept"
            return self._store_lost(call, caller, Phase.RESULT, why)
        return answer

    def _store_lost(self, call: Call, caller: Caller, phase: Phase, why: str) -> Refused:
        rule = "store/unavailable"
        decision = Decision(
            "deny",
            rule,
            (rule,),
            "store",
            self._decider.now().policy.revision,
            f"store unavailable: {why}",
            error=PolicyError("store", 0, 0, "the store is unavailable", rule),
        )
        self._records.tell(phase, call, caller, decision)
        return denied(decision, call, ran=phase is Phase.RESULT)

    # ------------------------------------------------------------------------- the result

    async def result(
        self, call: Call, caller: Caller, admitted: Admitted, fields: Fields
    ) -> Fields | Refused:
        """See the port."""
        asking = self._asking(call, admitted)
        # A result is not read before a rule reads it.
        decision = self._decider.ask(Phase.RESULT, asking, call, caller, ResultContent(fields))
        if decision.decision == "deny":
            return denied(decision, call, ran=True)
        if decision.redactions:
            try:
                cleaned = redact(
                    fields, decision.redactions, schema=_shape(call.tool), limit=self.limit
                )
            except Exception as error:  # noqa: BLE001 - what cannot be redacted does not leave
                return self._unredacted(decision, call, caller, error)
            if cleaned is not fields:
                rules = list(dict.fromkeys(each.rule for each in decision.redactions))
                cleaned = with_meta(cleaned, REDACTED, rules)
        else:
            cleaned = fields
        labels = decision.labels
        if untrusted(fields) and OUTSIDE not in labels:
            labels = (*labels, OUTSIDE)
        if call.kind is Kind.ACP:
            # What a coding agent gathered in its run comes back with its answer.
            labels = (*labels, *(label for label in carried(fields) if label not in labels))
        if not labels:
            return cleaned
        if not await self._ledger.add(caller, labels, call.id, call.target):
            why = "the labels of the result cannot be kept"
            return self._store_lost(call, caller, Phase.RESULT, why)
        return labelled(cleaned, sorted(labels))

    def _asking(self, call: Call, admitted: Admitted) -> Asking:
        if isinstance(admitted, Held):
            return admitted.asking
        # Somebody else admitted it: the policy of now is the one there is.
        return self._decider.asking(call, 0)

    def _unredacted(
        self, decision: Decision, call: Call, caller: Caller, error: Exception
    ) -> Refused:
        rule = decision.redactions[0].rule
        large = "the result would be larger than limits.result"
        why = large if isinstance(error, TooLarge) else reason(error)
        refused = replace(
            decision,
            decision="deny",
            rule=rule,
            message=f"what has to be taken out of the result cannot be: {why}",
            message_constant=True,
            error=PolicyError("redaction", 0, 0, f"redaction failed: {why}", rule),
            labels=(),
            redactions=(),
        )
        self._records.tell(Phase.RESULT, call, caller, refused)
        return denied(refused, call, ran=True)

    async def failed(
        self, call: Call, caller: Caller, admitted: Admitted, error: RpcError
    ) -> RpcError | Refused:
        """See the port. Errors of our own making say nothing that came from outside."""
        if isinstance(error, Rejection):
            return error
        content = TextContent(words((error.message, error.data)), is_error=True)
        asking = self._asking(call, admitted)
        decision = self._decider.ask(Phase.RESULT, asking, call, caller, content)
        if decision.decision == "deny":
            return denied(decision, call, ran=True)
        if decision.redactions:
            error = in_error(error, decision.redactions)
        if decision.labels and not await self._ledger.add(
            caller, decision.labels, call.id, call.target
        ):
            why = "the labels of the answer cannot be kept"
            return self._store_lost(call, caller, Phase.RESULT, why)
        return error

    # ------------------------------------------------------------- words outside of results

    def notify(self, call: Call, caller: Caller, admitted: Admitted) -> Notify:
        """See the port."""
        asking = self._asking(call, admitted)
        if asking.subject.result.passes:
            return caller.notify

        def notify(method: str, params: JsonObject) -> None:
            text = words(params.get(_TEXT.get(method, "data")))
            if text:
                decision = self._decider.overheard(asking, call, caller, TextContent(text))
                if decision.decision == "deny":
                    return
                if decision.redactions:
                    if method == UPDATE:
                        # What is to be taken out may be cut in two; the result has it whole.
                        return
                    params = in_notice(params, decision.redactions)
                labels = decision.labels
                if labels and not self._ledger.note(caller, labels, call.id, call.target):
                    return
            caller.notify(method, params)

        return notify

    def heard(self, server: str, method: str, caller: Caller) -> None:
        """See the port."""
        call = Call("", Kind.RESOURCE, method, server, method, "", {})
        asking = self._decider.overhearing(server)
        decision = self._decider.overheard(asking, call, caller, TextContent(""))
        if decision.labels:
            self._ledger.note(caller, decision.labels, "", f"{server} ({method})")

    # ------------------------------------------------------------------------------- lists

    def offers(self, tool: Tool, caller: Caller) -> bool:
        """See the port."""
        revision = self._decider.now()
        if revision.shows_all:
            return True
        if revision.doomed(tool):
            return False
        changed = self._pins.changed(tool) is not False
        return revision.lists_all or revision.listing(tool, changed, caller).decision != "deny"

    def shows(self, kind: Kind, server: str, name: str, own: str, caller: Caller) -> bool:
        """See the port."""
        revision = self._decider.now()
        if revision.shows_all:
            return True
        if revision.doomed_of(server, kind, name, own):
            return False
        return (
            revision.lists_all
            or revision.listing_of(server, kind, name, own, caller).decision != "deny"
        )


def _shape(tool: Tool | None) -> JsonObject | None:
    """What the tool declares its structured content to look like; ``None``: it does not."""
    found = None if tool is None else json.fields(tool.own_json).get("outputSchema")
    if found is None:
        return None
    shape = plain(found)
    return cast("JsonObject", shape) if isinstance(shape, dict) else {}
