"""What each line of a stdio client means. Sans-io: lines in, things to do out."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.config.types import Limits
from sidecar.downstream import bodies
from sidecar.downstream.running import InFlight
from sidecar.downstream.session import Opening, Session
from sidecar.mcp import errors, inbound
from sidecar.mcp.errors import Rejection
from sidecar.mcp.inbound import Inbound, Reply
from sidecar.model import Era, RequestId
from sidecar.wire import jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import id_from_ends
from sidecar.wire.ndjson import Oversize


@dataclass(frozen=True, slots=True)
class Say:
    """Answer at once."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """Run a request and answer when it is done."""

    id: RequestId
    message: Inbound


@dataclass(frozen=True, slots=True)
class Open:
    """``initialize``: answer it, and tell this session of changes from now on."""

    id: RequestId
    message: Inbound
    opening: Opening


class Conversation:
    """What each line of one client means. ``era`` is ``None`` until a request has decided it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.era: Era | None = None
        self.session: Session | None = None
        self.calls = InFlight()

    def take(self, line: bytes | Oversize) -> Say | Asked | Open | None:
        """What to do about a line; ``None`` for nothing."""
        if isinstance(line, Oversize):
            return Say(self._too_long(line))
        try:
            message = inbound.stdio(bodies.read(line, self._limits), self.era)
            if isinstance(message, Reply):
                if self.session is not None:
                    self.session.answered(message)
                return None
            if message.id is None:
                self._notified(message)
                return None
            return self._asked(message, message.id)
        except BadJson as bad:
            return Say(refusal(errors.parse_error(str(bad))))
        except Rejection as rejection:
            return Say(refusal(rejection))

    def opened(self, session: Session) -> None:
        """``initialize`` has been answered."""
        self.session = session
        self.calls = session.calls

    def _notified(self, message: Inbound) -> None:
        if message.method == "notifications/cancelled":
            self.calls.cancel(message.params.get("requestId"))

    def _asked(self, message: Inbound, id_: RequestId) -> Asked | Open:
        if message.era is Era.MODERN:
            self.era = Era.MODERN
            return Asked(id_, message)
        if message.method == "initialize" and self.session is None:
            try:
                opening = Opening.of(message.params)
            except Rejection as rejection:
                rejection.id = id_
                raise
            self.era = Era.LEGACY
            return Open(id_, message, opening)
        if self.session is None and message.method != "ping":
            raise errors.invalid_request(
                "send initialize first, or a request of 2026-07-28 with its _meta", id=id_
            )
        return Asked(id_, message)

    def _too_long(self, line: Oversize) -> bytes:
        rejection = errors.invalid_request(
            f"a line of {line.size} bytes is longer than limits.line, {self._limits.line}",
            id=id_from_ends(line.head, line.tail),
        )
        return refusal(rejection)


def refusal(rejection: Rejection) -> bytes:
    """The answer to a message that is refused."""
    return jsonrpc.error(rejection.id, rejection)
