"""Deciding anew what was decided before, to see what an edit of the policies changes.

A record is one JSON object a line: ``{"at", "call", "phase", "target", "input", "variables",
"decision"}``. ``input`` is what was decided upon, ``variables`` the names of all variables that
were made for it, those too that had nothing in them. Without ``input`` there is nothing to
decide upon again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, cast

import msgspec

from sidecar.model import Decision, JsonObject, Phase
from sidecar.policy import shapes
from sidecar.policy.guard import Guarded
from sidecar.policy.variables import EMPTY_WHEN_ABSENT

LONGEST: Final = 32 << 20
"""Bytes of one record."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record: ``same``, ``changed``, or ``unknown`` and why."""

    line: int
    outcome: Literal["same", "changed", "unknown"]
    why: str
    phase: str
    call: str
    target: str
    before: JsonObject
    now: Decision | None


def record(
    phase: Phase,
    decision: Decision,
    *,
    given: JsonObject | None,
    at: str,
    call: str = "",
    target: str = "",
) -> bytes:
    """One line of a record file, without its line end.

    ``given`` is the input as the policy saw it, or ``None`` where inputs are not kept. ``at``
    is RFC 3339; it is what ``now`` is when the record is replayed.
    """
    line: JsonObject = {"at": at, "call": call, "phase": phase.value, "target": target}
    if given is not None:
        line["variables"] = sorted(given)
        line["input"] = {name: value for name, value in given.items() if name != "now"}
    line["decision"] = shapes.decision(decision, message=given is not None)
    return msgspec.json.encode(line)


def replay(lines: Iterable[bytes], policy: Guarded) -> Iterator[Replayed]:
    """Decide each record again; empty lines are passed over."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _one(number, line, policy)


def _one(number: int, line: bytes, policy: Guarded) -> Replayed:
    try:
        if len(line) > LONGEST:
            raise ValueError("it is too long")
        read: object = msgspec.json.decode(line)
        if not isinstance(read, dict):
            raise ValueError("it is no object")
        found = cast("JsonObject", read)
        if found.get("phase") not in list(Phase):
            raise ValueError("it has no phase")
        phase = Phase(str(found["phase"]))
        before = found.get("decision")
        if not isinstance(before, dict):
            raise ValueError("it has no decision")
    except (ValueError, RecursionError) as error:
        why = str(error) if not isinstance(error, msgspec.DecodeError) else "it is not JSON"
        return Replayed(number, "unknown", f"no record: {why}", "", "", "", {}, None)
    call, target = str(found.get("call", "")), str(found.get("target", ""))
    given = found.get("input")
    why = _missing(found, given, policy, phase)
    if why or not isinstance(given, dict):
        return Replayed(number, "unknown", why, phase, call, target, before, None)
    now = policy.decide(phase, {**given, "now": found.get("at")})
    same = effects(shapes.decision(now)) == effects(before)
    return Replayed(number, "same" if same else "changed", "", phase, call, target, before, now)


def effects(decision: JsonObject) -> tuple[object, ...]:
    """What a decision, in its JSON shape, does to a call: two that agree in it are the same."""
    return (
        decision.get("decision"),
        decision.get("rule"),
        decision.get("labels") or [],
        decision.get("redactions") or [],
    )


def _missing(found: JsonObject, given: object, policy: Guarded, phase: Phase) -> str:
    """What the policy reads and the record cannot tell."""
    if not isinstance(given, dict):
        return "its input was not recorded; set policy.record to inputs"
    made = found.get("variables")
    known = set(made) if isinstance(made, list) else set(given)
    known |= {"now", *EMPTY_WHEN_ABSENT} if "at" in found else set(EMPTY_WHEN_ABSENT)
    reads = {name.partition(".")[0] for name in policy.refs(phase)}
    if phase is Phase.CONNECT:
        reads.discard("verdict")
    missing = sorted(reads - known)
    return f"a rule reads what was not recorded: {', '.join(missing)}" if missing else ""
