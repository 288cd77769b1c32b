"""The one place that admits a call."""

from __future__ import annotations

from typing import Protocol

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


class Gate(Protocol):
    """Decide, park and label. An error in deciding is a decision to deny."""

    def decide(self, call: Call, caller: Caller) -> Decision:
        """What policy says of this call now, without parking it."""
        ...

    async def admit(self, call: Call, caller: Caller) -> Admitted | Refused:
        """Decide, and wait for a person where the decision is ``ask``."""
        ...

    async def result(
        self, call: Call, caller: Caller, admitted: Admitted, fields: Fields
    ) -> Fields | Refused:
        """Apply the result rules of the revision that admitted the call: deny, redact, label."""
        ...

    async def failed(
        self, call: Call, caller: Caller, admitted: Admitted, error: RpcError
    ) -> RpcError | Refused:
        """As ``result``, for a server that answered with an error: its text is content too."""
        ...

    def notify(self, call: Call, caller: Caller, admitted: Admitted) -> Notify:
        """The caller's way back while the call runs, with what has to be done to texts on it."""
        ...

    def heard(self, server: str, method: str, caller: Caller) -> None:
        """A server's own words reach the caller outside of a call: instructions (``method``
        ``initialize``), a log message. Never waits."""
        ...

    def offers(self, tool: Tool, caller: Caller) -> bool:
        """Whether the tool is listed for this caller (phase ``list``)."""
        ...

    def shows(self, kind: Kind, server: str, name: str, own: str, caller: Caller) -> bool:
        """As ``offers`` for a prompt or a resource: its catalog name, and the server's own."""
        ...
