"""The record of a call that begins to wait. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Protocol

import msgspec

from sidecar.config import ParkingConfig
from sidecar.model import Admitted, Call, Caller, Decision, Kind
from sidecar.parking.claim import Claim, hide, shown
from sidecar.parking.record import Parked, State
from sidecar.ports.tracer import sampled
from sidecar.wire import json


class Asked(Protocol):
    """A call whose decision is ``ask``: see ``sidecar.gate.parking.Asked``."""

    @property
    def call(self) -> Call: ...
    @property
    def caller(self) -> Caller: ...
    @property
    def decision(self) -> Decision: ...
    @property
    def anew(self) -> Callable[[], Admitted]: ...


def rules(decision: Decision) -> tuple[str, ...]:
    """The rules that ask."""
    return decision.rules or (decision.rule,)


def record(
    asked: Asked,
    decision: Decision,
    claimed: Claim,
    *,
    config: ParkingConfig,
    now: float,
    node: str,
    lease: float,
    labels: tuple[str, ...],
    previous: str,
    again: bool,
) -> Parked:
    """``previous`` is the id of the record before, for a person to compare with; ``again``:
    the call has been parked before, and so needs an id of its own here."""
    call, caller = asked.call, asked.caller
    args, hidden = hide(shown(call), config.redact)

    def told(message: str, constant: bool) -> str:
        # A text that is made of what was sent may hold what nobody is to be shown.
        return "" if config.redact and not constant else message

    return Parked(
        id=str(uuid.uuid4()) if again else call.id,
        claim=claimed.digest,
        state=State.WAITING,
        kind=str(call.kind),
        method=call.method,
        tool=call.target,
        server=call.server,
        upstream_name=call.upstream_name,
        principal=caller.principal.name,
        session=caller.session,
        client=" ".join(filter(None, (caller.client.name, caller.client.version))),
        trusted=call.tool is not None and call.tool.trusted,
        definition=claimed.definition,
        arguments=claimed.arguments,
        args=msgspec.Raw(json.encode(args)),
        hidden=hidden,
        rules=rules(decision),
        message=told(decision.message, decision.message_constant),
        message_constant=decision.message_constant,
        reasons=tuple((r.rule, told(r.message, r.constant)) for r in decision.reasons),
        labels=labels,
        asked_revision=decision.revision,
        asked_at=now,
        expires_at=now + config.expire,
        previous=previous,
        trace=_kept(caller),
        nodes=(node,),
        lease=lease if call.kind is Kind.PERMISSION else 0.0,
        parent=call.parent,
    )


def _kept(caller: Caller) -> str:
    """The ``traceparent`` that a record keeps of whoever asks: none of a span that nobody has."""
    return caller.trace.traceparent if sampled(caller.trace) else ""
