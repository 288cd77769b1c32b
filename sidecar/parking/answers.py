"""What a caller is told of a parked call, and what a call leaves for those who waited with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias, cast

import msgspec

from sidecar.gate.answers import denied as refused
from sidecar.mcp.errors import Rejection
from sidecar.model import (
    SIDECAR_META,
    Call,
    Decision,
    Fields,
    JsonObject,
    Kind,
    Refused,
    RpcError,
    Unavailable,
)
from sidecar.parking.record import Parked, State
from sidecar.wire import json

WAITS: Final = -32004
"""A call whose result cannot say ``isError`` waits for a person; ``data.reason`` is ``parked``
or ``expired``."""

PARKED: Final = SIDECAR_META + "parked"

_Kind: TypeAlias = Literal["parked", "expired"]
_RESULTS: Final = frozenset((Kind.MCP, Kind.ACP))


def moment(seconds: float) -> str | None:
    """RFC 3339 in UTC; ``None`` for never."""
    if not seconds:
        return None
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def parked(record: Parked, call: Call, decision: Decision) -> Refused:
    """The poll answer: nothing has run, call again."""
    until = moment(record.expires_at)
    about: JsonObject = {"id": record.id, "expires_at": until}
    text = (
        f"Not run yet: this call waits for a person's approval (id {record.id}, until {until}). "
        "Call again with exactly the same name and arguments to wait on; once it is approved, "
        "that call runs and has the result. Other arguments would be another call, which waits "
        "anew."
    )
    return _instead(decision, call, "parked", text, about)


def expired(record: Parked, call: Call, decision: Decision) -> Refused:
    """Nobody answered in time, or nobody came for the answer."""
    about: JsonObject = {"id": record.id, "expired_at": moment(record.ended_at)}
    what = "the approval was not used" if record.answered_at else "nobody answered"
    text = (
        f"Not run: {what} in time (id {record.id}). Calling again asks a person anew; "
        "tell whoever you work for that it waits."
    )
    return _instead(decision, call, "expired", text, about)


def _instead(decision: Decision, call: Call, kind: _Kind, text: str, about: JsonObject) -> Refused:
    result: Fields = {
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "_meta": {SIDECAR_META + kind: about},
    }
    error = None
    if call.kind not in _RESULTS:
        error = Rejection(WAITS, text, {"reason": kind, **about})
    return Refused(decision, kind, result, error)


def denied(record: Parked, call: Call, decision: Decision) -> Refused:
    """A person said no. The rule is the one that asked."""
    why = f": {record.why}" if record.why else ""
    return refused(decision, call, f"denied by a person{why}")


def ended(record: Parked, call: Call, decision: Decision) -> Refused:
    """How a record that is denied or expired has ended."""
    if record.state is State.DENIED:
        return denied(record, call, decision)
    return expired(record, call, decision)


def cancelled(record: Parked, call: Call, decision: Decision) -> Refused:
    """It ended without an answer, and not by this caller's doing."""
    return refused(decision, call, f"denied: {record.ended or 'the call was cancelled'}")


def limited(decision: Decision, call: Call, limit: str, text: str) -> Refused:
    """It may not even wait: ``limit`` is the setting that says so."""
    rule = f"parking/{limit}"
    about = Decision("deny", rule, (rule,), "parking", decision.revision, text)
    return refused(about, call)


def store_lost(decision: Decision, call: Call) -> Refused:
    """What cannot be written down cannot wait."""
    rule = "store/unavailable"
    text = "store unavailable: a call that needs approval cannot wait; try again later"
    return refused(Decision("deny", rule, (rule,), "store", decision.revision, text), call)


# --------------------------------------------------------------------- how what ran has ended


def ending(outcome: Fields | BaseException) -> tuple[str, bool]:
    """How a call went, in a word or a few, and whether anybody knows."""
    if isinstance(outcome, RpcError):
        return "rpc_error", True
    if isinstance(outcome, Unavailable):
        if outcome.ran == "no":
            return "unavailable; it did not run", True
        return "the server was lost while it ran", False
    if isinstance(outcome, BaseException):
        return "the call was ended while it ran", False
    error = outcome.get("isError")
    failed = error is True or (isinstance(error, msgspec.Raw) and bytes(error) == b"true")
    return ("tool_error" if failed else "ok"), True


def shared(outcome: Fields | BaseException, server: str) -> Fields:
    """The outcome for those who waited for the same call: the result, or what it raised.

    Raises:
        RpcError, Unavailable: as the call did.
    """
    if isinstance(outcome, RpcError):
        raise RpcError(outcome.code, outcome.message, outcome.data)
    if isinstance(outcome, Unavailable):
        raise Unavailable(
            outcome.server,
            outcome.why,
            ran=outcome.ran,
            retry_in=outcome.retry_in,
            permanent=outcome.permanent,
        )
    if isinstance(outcome, BaseException):
        raise Unavailable(
            server, "the call that ran for all who asked was ended", ran="maybe", permanent=True
        )
    return outcome


def pack(outcome: Fields | BaseException) -> bytes | None:
    """An outcome for another node; ``None`` for what has no answer."""
    if isinstance(outcome, RpcError):
        error = {"code": outcome.code, "message": outcome.message, "data": outcome.data}
        return json.encode({"error": error})
    if isinstance(outcome, BaseException):
        return None
    return json.encode({"result": outcome})


def unpack(packed: bytes | None, server: str) -> Fields:
    """What another node packed. Raises as ``shared``."""
    if packed is None:
        raise Unavailable(
            server,
            "it ran at another sidecar, and its result cannot be had here",
            ran="maybe",
            permanent=True,
        )
    found = json.fields(packed)
    if "error" in found:
        error = cast("JsonObject", json.decode(cast("msgspec.Raw", found["error"])))
        raise RpcError(cast("int", error["code"]), cast("str", error["message"]), error["data"])
    return json.fields(cast("msgspec.Raw", found["result"]))
