"""A legacy session's state, whatever carries it: what was agreed on, and what is unanswered.

Sans-io: the edges (``http``, ``stdio``) hand in messages and run what comes of them.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import cast

from sidecar.downstream.asks import Asks
from sidecar.downstream.running import InFlight
from sidecar.mcp import errors
from sidecar.mcp.inbound import Reply
from sidecar.mcp.meta import Envelope, client_of
from sidecar.mcp.versions import negotiate
from sidecar.model import Ask, Caller, Client, Era, JsonObject, Notify, Principal
from sidecar.wire.json import encode

MOST_CAPABILITIES = 2048
"""Bytes of JSON that a client may declare as its capabilities: they are kept all session long."""

EVERYTHING = "debug"
"""The log level of a session that never set one: a server sends what it thinks fit."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What ``initialize`` asks for, checked. ``version`` is what we answer."""

    version: str
    client: Client
    capabilities: JsonObject

    @classmethod
    def of(cls, params: JsonObject) -> Opening:
        """Read the params of ``initialize`` (2025-11-25, lifecycle).

        Raises:
            Rejection: -32602, what is missing or too large.
        """
        requested = params.get("protocolVersion")
        if not isinstance(requested, str):
            raise errors.invalid_params("initialize needs params.protocolVersion, a string")
        declared = params.get("capabilities", {})
        if not isinstance(declared, dict):
            raise errors.invalid_params("params.capabilities is an object")
        if len(encode(declared)) > MOST_CAPABILITIES:
            raise errors.invalid_params(
                f"params.capabilities is larger than {MOST_CAPABILITIES} bytes"
            )
        capabilities = cast("JsonObject", declared)
        return cls(negotiate(requested), client_of(params.get("clientInfo")), capabilities)


class Session:
    """One legacy session.

    ``key`` names it everywhere but on the wire: the id that a client shows is a secret of that
    client's, and only a digest of it goes into events, logs, spans and listings.
    """

    __slots__ = (
        "asks",
        "calls",
        "capabilities",
        "client",
        "key",
        "log_level",
        "principal",
        "server",
        "version",
    )

    def __init__(
        self, key: str, principal: Principal, server: str | None, opening: Opening
    ) -> None:
        self.key = key
        self.principal = principal
        self.server = server
        self.version = opening.version
        self.client = opening.client
        self.capabilities = opening.capabilities
        self.log_level = EVERYTHING
        self.calls = InFlight()
        self.asks = Asks()

    def caller(self, envelope: Envelope, notify: Notify, ask: Ask | None = None) -> Caller:
        """The sender of one request of this session. ``ask`` reaches the client meanwhile."""
        return Caller(
            principal=self.principal,
            era=Era.LEGACY,
            session=self.key,
            server=self.server,
            client=self.client,
            capabilities=self.capabilities,
            trace=envelope.trace,
            progress=envelope.progress,
            log_level=self.log_level,
            notify=notify,
            ask=ask,
            link=envelope.link,
            request=envelope.request,
            protocol=self.version,
        )

    def answered(self, reply: Reply) -> None:
        """Take in an answer of the client's. What was not asked is ignored."""
        self.asks.answered(reply)

    def notified(self, method: str, params: JsonObject) -> None:
        """Take in a notification of the client's. What means nothing to us is ignored."""
        if method == "notifications/cancelled":
            self.calls.cancel(params.get("requestId"))


def new_id() -> str:
    """A session id: 128 bits that nobody can guess, in hex."""
    return secrets.token_hex(16)


def key_of(session_id: str) -> str:
    """The name under which a session is known everywhere but on the wire."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
