"""Where a call goes that a person has to approve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sidecar.gate.answers import needs_approval
from sidecar.model import Admitted, Call, Caller, Decision, Refused


@dataclass(frozen=True, slots=True)
class Asked:
    """A call whose decision is ``ask``.

    ``anew`` decides it once more, under the policy in force at that moment and for the tool
    that ``call`` holds then; what it returns may be sent whatever it says, so look at its
    decision first: a deny wins over any approval.
    """

    call: Call
    caller: Caller
    decision: Decision
    anew: Callable[[], Admitted]


class Parking(Protocol):
    """Waits for a person."""

    async def hold(self, asked: Asked) -> Admitted | Refused:
        """Admit with what ``asked.anew`` gives, or answer instead."""
        ...


class NoParking:
    """Nobody can approve anything: every ``ask`` is a refusal that says so."""

    async def hold(self, asked: Asked) -> Admitted | Refused:
        """Refuse at once."""
        return needs_approval(asked.decision, asked.call)
