"""Who talks to the admin API, and how far that reaches."""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass


class Role(enum.IntEnum):
    """Each may do what the ones before it may."""

    VIEWER = 1
    APPROVER = 2
    OPERATOR = 3

    @classmethod
    def named(cls, name: str) -> Role:
        """The role of a configuration's word. Raises KeyError."""
        return cls[name.upper()]

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Actor:
    """Whoever asks: ``uid:NAME`` on the socket, an approver's name or ``admin`` on TCP."""

    name: str
    role: Role


class Tokens:
    """Bearer tokens by digest: no token is kept, and each guess costs the same time."""

    def __init__(self, tokens: Iterable[tuple[str, Actor]] = ()) -> None:
        self._known: list[tuple[bytes, Actor]] = []
        self.update(tokens)

    def update(self, tokens: Iterable[tuple[str, Actor]]) -> bool:
        """These from now on, and no others; whether they are other than before."""
        before = self._known
        self._known = [(_digest(value), actor) for value, actor in tokens]
        return self._known != before

    def __len__(self) -> int:
        return len(self._known)

    def actor(self, value: str) -> Actor | None:
        """Whose token it is, ``None`` for nobody's."""
        given = _digest(value)
        found: Actor | None = None
        for digest, actor in self._known:
            # No early end: which token matched must not show in the time it took.
            if hmac.compare_digest(digest, given):
                found = actor
        return found


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()
