"""Who calls: bearer tokens to principals.

Only digests are kept. The table can be replaced while running; whatever was opened with a token
that is no longer in it has to end, which ``renewed`` tells.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sidecar.config.types import Config
from sidecar.model import Principal
from sidecar.ports.secrets import Secrets

ANYBODY = Principal("agent", ("*",), ("*",), ("*",))
"""Who calls when no token is configured, and whom the one token of ``auth:`` stands for."""

# RFC 6750 section 2.1: b64token, after a scheme that is compared without case.
_BEARER = re.compile(r"(?i:bearer) +(?P<token>[A-Za-z0-9._~+/-]+=*) *")
_LONGEST = 8192


@dataclass(frozen=True, slots=True)
class Grant:
    """An authentication that succeeded: whom it stands for, and by which token (its sha256).

    ``digest`` is empty when no token is configured.
    """

    principal: Principal
    digest: bytes = b""


class RunTokens(Protocol):
    """Tokens that come and go while coding agents run: ``sidecar.harness.tokens``."""

    def find(self, digest: bytes) -> Principal | None: ...

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]: ...


class Authenticator:
    """Tells a request's principal. Without tokens everybody is ``agent``."""

    def __init__(
        self,
        tokens: Iterable[tuple[str, Principal]] | None = None,
        *,
        runs: RunTokens | None = None,
    ) -> None:
        """``runs`` holds more tokens, which are known by their sha256 alone."""
        self._grants: dict[bytes, Grant] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._runs = runs
        self.update(tokens)
        if runs is not None:
            runs.listen(self._tell)

    def update(self, tokens: Iterable[tuple[str, Principal]] | None) -> None:
        """Replace the table; ``None`` means that no token is asked for.

        Listeners are told when it is in force.

        Raises:
            ValueError: an empty or unsendable token, or one of two principals; names them. The
                old table stays.
        """
        grants: dict[bytes, Grant] | None = None
        if tokens is not None:
            grants = {}
            for token, principal in tokens:
                if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token) or len(token) > _LONGEST:
                    raise ValueError(
                        f"the token of {principal.name} is empty or holds characters that an "
                        "Authorization header cannot carry (letters, digits and ._~+/-= only)"
                    )
                digest = hashlib.sha256(token.encode()).digest()
                if digest in grants:
                    raise ValueError(
                        f"{grants[digest].principal.name} and {principal.name} have the same token"
                    )
                grants[digest] = Grant(principal, digest)
        self._grants = grants
        self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each ``update``; returns the way to stop."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def authenticate(self, authorization: Sequence[str]) -> Grant | None:
        """The grant for a request's ``Authorization`` header lines, ``None`` to refuse (401)."""
        if self._grants is None:
            return _OPEN
        if len(authorization) != 1 or len(authorization[0]) > _LONGEST:
            return None
        matched = _BEARER.fullmatch(authorization[0])
        if matched is None:
            return None
        digest = hashlib.sha256(matched["token"].encode()).digest()
        found: Grant | None = None
        # Every entry is compared, so that time tells nothing about which one was near.
        for known, grant in self._grants.items():
            if hmac.compare_digest(known, digest):
                found = grant
        return found or self._of_run(digest)

    def _of_run(self, digest: bytes) -> Grant | None:
        principal = self._runs.find(digest) if self._runs is not None and digest else None
        return Grant(principal, digest) if principal is not None else None

    def renewed(self, grant: Grant) -> Grant | None:
        """What an earlier grant is worth now; ``None`` when its token was revoked.

        A token that now stands for another principal is revoked too.
        """
        now = _OPEN if self._grants is None else self._grants.get(grant.digest)
        now = now or self._of_run(grant.digest)
        if now is None or now.digest != grant.digest or now.principal.name != grant.principal.name:
            return None
        return now


_OPEN = Grant(ANYBODY)


def tokens_of(config: Config, secrets: Secrets) -> list[tuple[str, Principal]] | None:
    """The table for ``Authenticator`` as the configuration has it, ``None`` for no auth.

    Raises:
        SecretError: names the variable or file that cannot be read.
    """
    tokens: list[tuple[str, Principal]] = []
    if config.token is not None:
        tokens.append((secrets.read(config.token), ANYBODY))
    for agent in config.agents.values():
        principal = Principal(agent.name, agent.servers, agent.harnesses, agent.checkouts)
        tokens.append((secrets.read(agent.token), principal))
    return tokens or None


def principals(config: Config) -> frozenset[str]:
    """The names of all who may call."""
    return frozenset(config.agents) or frozenset((ANYBODY.name,))
