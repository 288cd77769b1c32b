"""A gate that admits everything: what runs when no policy is loaded."""

from __future__ import annotations

from sidecar.model import (
    Admitted,
    Call,
    Caller,
    Decision,
    Fields,
    Kind,
    Notify,
    Refused,
    RpcError,
    Tool,
)

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

    async def failed(
        self, call: Call, caller: Caller, admitted: Admitted, error: RpcError
    ) -> RpcError | Refused:
        """Hand the error on."""
        return error

    def notify(self, call: Call, caller: Caller, admitted: Admitted) -> Notify:
        """The caller's own."""
        return caller.notify

    def heard(self, server: str, method: str, caller: Caller) -> None:
        """Nothing follows from it."""

    def offers(self, tool: Tool, caller: Caller) -> bool:
        """Always."""
        return True

    def shows(self, kind: Kind, server: str, name: str, own: str, caller: Caller) -> bool:
        """Always."""
        return True
