"""A parked call as it is stored: one JSON object under ``calls/{id}``."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from sidecar.ports.store import Record

PREFIX: Final = "calls/"
NOTHING: Final = msgspec.Raw(b"{}")


class State(enum.StrEnum):
    """Where a parked call stands.

    ``waiting → approved → taken → done``; ``waiting → denied | expired | cancelled | lost``;
    ``approved → expired | void``; ``taken → unknown`` (nobody knows what became of it), or
    ``void`` where it was taken and surely never sent.
    """

    WAITING = "waiting"
    APPROVED = "approved"
    TAKEN = "taken"
    DONE = "done"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    LOST = "lost"
    VOID = "void"
    UNKNOWN = "unknown"


OPEN: Final = frozenset((State.WAITING, State.APPROVED, State.TAKEN))
"""States that something still follows upon."""


class Parked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One parked call. Times are seconds since the epoch, digests sha256 in hex.

    ``claim`` is the digest of who calls what with what (``claim.Claim``). ``rules`` asked;
    ``asked_revision`` was in force then, ``revision`` when the person answered. ``args`` is
    what people are shown, without what ``parking.redact`` hides.
    """

    id: str
    claim: str
    state: State
    kind: str
    method: str
    tool: str
    server: str
    upstream_name: str
    principal: str
    session: str = ""
    client: str = ""
    trusted: bool = False
    definition: str = ""
    arguments: str = ""
    """The digest of all that is sent but ``_meta``."""
    args: msgspec.Raw = NOTHING
    args_dropped: bool = False
    """The arguments were let go of when the call ended: they were long."""
    hidden: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    message: str = ""
    message_constant: bool = True
    """Whether the message is the same for every call: it quotes nothing."""
    reasons: tuple[tuple[str, str], ...] = ()
    """The rules that asked and what each said, where more than one rule matched."""
    labels: tuple[str, ...] = ()
    asked_revision: str = ""
    asked_at: float
    expires_at: float
    previous: str = ""
    """The record before this one, of the same call or of the tool before it changed."""

    nodes: tuple[str, ...] = ()
    """The nodes that hold a request which waits for this."""
    polled: bool = False
    """Somebody was told to call again, and so may come back for it."""
    delivered: bool = False
    """Somebody who came back has been told how it ended."""

    trace: str = ""
    """The ``traceparent`` of the wait that began it; empty where nobody keeps that."""
    answer_trace: str = ""
    """That of the answer."""
    dismissed: bool = False
    """Its client was asked, and somebody there put the question away: it is not asked again."""

    answered_at: float = 0.0
    answered_by: str = ""
    way: str = ""
    why: str = ""
    revision: str = ""

    taken_by: str = ""
    """The node that runs it."""
    ran_as: str = ""
    """The id of the call that ran."""
    lease: float = 0.0
    """Until when the node that runs it (or, of a permission, holds it) counts as alive."""
    ended_at: float = 0.0
    ended: str = ""
    """Why it ended as it did, where the state does not say it; how it went, where it ran."""
    parent: str = ""
    """The id of the call in which it came up: a coding agent's, for what it asks."""
    anew: bool = False
    """It ended because what was asked for is another thing now: whoever waits asks anew."""

    @property
    def open(self) -> bool:
        """Whether something still follows."""
        return self.state in OPEN


_decoder = msgspec.json.Decoder(Parked)
_encoder = msgspec.json.Encoder()


def encode(parked: Parked) -> bytes:
    """As it is stored."""
    return _encoder.encode(parked)


def decode(value: bytes) -> Parked:
    """Raises ValueError; keys of a newer version are left out."""
    try:
        return _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ValueError("it is not a parked call that this version can read") from None


def of(record: Record | None) -> Parked | None:
    """The parked call in a record of the store; ``None`` for what cannot be read."""
    if record is None:
        return None
    try:
        return decode(record.value)
    except ValueError:
        return None


def key(id: str) -> str:
    """Where it is stored."""
    return PREFIX + id


def lean(parked: Parked) -> Parked:
    """The same without what lists leave out, for keeping in memory."""
    return msgspec.structs.replace(parked, args=NOTHING, reasons=())
