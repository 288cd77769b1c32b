"""Bearer tokens for coding agents: one a run, so that an agent can call us while it works.

A token lives as long as its run. Only its sha256 is kept here; the agent alone has the token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sidecar.catalog.names import matches
from sidecar.harness.naming import WorkKey
from sidecar.model import Principal

__all__ = ["RunToken", "RunTokens", "agent_principal"]


def agent_principal(
    key: WorkKey, caller: Principal, mcp: tuple[str, ...], servers: Iterable[str]
) -> Principal:
    """Who the coding agent of a work is, called for by ``caller``.

    Of the ``servers`` there are it sees those that ``mcp`` names and its caller sees too, by
    their names: one that is added meanwhile is none of its own. It never sees a harness.
    """
    seen = tuple(name for name in servers if matches(mcp, name) and matches(caller.servers, name))
    return Principal(key.agent, seen, on_behalf_of=caller.name)


@dataclass(frozen=True, slots=True)
class RunToken:
    """``value`` is the bearer; ``digest`` its sha256, by which it is known here."""

    value: str
    digest: bytes

    def __repr__(self) -> str:
        return "RunToken(***)"


class RunTokens:
    """Those of all runs. ``find`` is for whoever authenticates requests."""

    def __init__(self) -> None:
        self._principals: dict[bytes, Principal] = {}
        self._listeners: list[Callable[[], None]] = []

    def mint(self, principal: Principal) -> RunToken:
        """A new token that stands for ``principal`` until it is revoked."""
        value = secrets.token_urlsafe(32)
        digest = hashlib.sha256(value.encode()).digest()
        self._principals[digest] = principal
        return RunToken(value, digest)

    def revoke(self, token: RunToken) -> None:
        """The token stands for nobody, and whatever was opened with it ends. Idempotent."""
        if self._principals.pop(token.digest, None) is not None:
            for listener in tuple(self._listeners):
                listener()

    def find(self, digest: bytes) -> Principal | None:
        """For whom a token stands, by its sha256."""
        found: Principal | None = None
        # Every entry is compared, so that time tells nothing about which one was near.
        for known, principal in self._principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after a token was revoked; returns the way to stop."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop
