"""A gate that admits everything: what runs when no policy is loaded."""

from __future__ import annotations

from sidecar.model import Admitted, Call, Caller, Decision, Fields, Refused, Tool

_ALLOW = Decision("allow", "default")
_ADMITTED = Admitted(_ALLOW)


class OpenGate:
    """Every call is allowed by the rule ``default``, every tool listed, every result as it is."""

    def decide(self, call: Call, caller: Caller) -> Decision:
        """Allow."""
        return _ALLOW

    async def admit(self, call: Call, caller: Caller) -> Admitted | Refused:
        """Admit at once."""
        return _ADMITTED

    async def result(
        self, call: Call, caller: Caller, admitted: Admitted, fields: Fields
    ) -> Fields | Refused:
        """Hand the result on."""
        return fields

    def offers(self, tool: Tool, caller: Caller) -> bool:
        """Always."""
        return True
