"""The gate with an audit trail behind it: nobody goes on before the record of it is written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from sidecar.config import AuditConfig
from sidecar.events import Bus, Decided
from sidecar.gate.answers import denied
from sidecar.model import (
    Admitted,
    Call,
    Caller,
    Decision,
    Fields,
    Kind,
    Notify,
    NotSent,
    Phase,
    PolicyError,
    Refused,
    RpcError,
    Tool,
)
from sidecar.ports.gate import Gate

if TYPE_CHECKING:
    from sidecar.telemetry.audit import Audit

log = logging.getLogger("sidecar.audit")

RULE: Final = "audit/unwritten"
_WHY: Final = "the audit record of this call cannot be written"


def audited(gate: Gate, audit: Audit | None, bus: Bus, config: AuditConfig) -> Gate:
    """The gate itself where there is no trail."""
    if audit is None:
        return gate
    return AuditedGate(gate, audit, bus, strict=config.unwritten == "deny")


class AuditedGate:
    """See :class:`sidecar.ports.gate.Gate`.

    What cannot be recorded is denied, by the rule ``audit/unwritten``: a call is not sent, and
    the answer of one that was is withheld. A refusal stays what it is. With ``strict`` off,
    calls go on and what is lost is counted.
    """

    def __init__(self, gate: Gate, audit: Audit, bus: Bus, *, strict: bool = True) -> None:
        self._gate = gate
        self._audit = audit
        self._bus = bus
        self._strict = strict

    async def admit(self, call: Call, caller: Caller) -> Admitted | Refused:
        """See the port."""
        admitted = await self._gate.admit(call, caller)
        try:
            written = await self._written()
        except BaseException:
            # The caller hung up: what was admitted is not sent.
            if isinstance(admitted, Admitted) and admitted.settle is not None:
                await admitted.settle(NotSent("the caller hung up before it was sent"))
            raise
        if written or isinstance(admitted, Refused):
            return admitted
        if admitted.settle is not None:
            await admitted.settle(NotSent(_WHY))
        return self._unwritten(call, caller, Phase.CALL, admitted.decision.revision)

    async def result(
        self, call: Call, caller: Caller, admitted: Admitted, fields: Fields
    ) -> Fields | Refused:
        """See the port."""
        result = await self._gate.result(call, caller, admitted, fields)
        if await self._written() or isinstance(result, Refused):
            return result
        return self._unwritten(call, caller, Phase.RESULT, admitted.decision.revision)

    async def failed(
        self, call: Call, caller: Caller, admitted: Admitted, error: RpcError
    ) -> RpcError | Refused:
        """See the port."""
        told = await self._gate.failed(call, caller, admitted, error)
        if await self._written() or isinstance(told, Refused):
            return told
        return self._unwritten(call, caller, Phase.RESULT, admitted.decision.revision)

    # What never waits is not recorded either: it goes straight through.

    def decide(self, call: Call, caller: Caller) -> Decision:
        """See the port."""
        return self._gate.decide(call, caller)

    def heard(self, server: str, method: str, caller: Caller) -> None:
        """See the port."""
        self._gate.heard(server, method, caller)

    def offers(self, tool: Tool, caller: Caller) -> bool:
        """See the port."""
        return self._gate.offers(tool, caller)

    def shows(self, kind: Kind, server: str, name: str, own: str, caller: Caller) -> bool:
        """See the port."""
        return self._gate.shows(kind, server, name, own, caller)

    def notify(self, call: Call, caller: Caller, admitted: Admitted) -> Notify:
        """See the port."""
        return self._gate.notify(call, caller, admitted)

    async def _written(self) -> bool:
        return await self._audit.written() or not self._strict

    def _unwritten(self, call: Call, caller: Caller, phase: Phase, revision: str) -> Refused:
        decision = Decision(
            "deny",
            RULE,
            (RULE,),
            "audit",
            revision,
            f"{_WHY}; the operator finds the reason in the sidecar's log",
            error=PolicyError("audit", 0, 0, _WHY, RULE),
        )
        log.info("%s of %s for %s: denied by %s", phase, call.target, caller.principal.name, RULE)
        self._bus.publish(
            Decided(
                trace=caller.trace,
                call=call.id,
                phase=phase.value,
                target=call.target,
                principal=caller.principal.name,
                decision=decision,
                server=call.server,
                kind=call.kind.value,
                session=caller.session,
                definition=call.tool.digest if call.tool is not None else "",
            )
        )
        return denied(decision, call, ran=phase is Phase.RESULT)
