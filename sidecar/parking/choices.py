"""What a call does when it finds a record, and whether an approval covers what would run. Pure."""

from __future__ import annotations

import enum

from sidecar.model import Decision
from sidecar.parking.asking import rules
from sidecar.parking.claim import Claim
from sidecar.parking.machine import out_of_time
from sidecar.parking.record import Parked, State


class Found(enum.Enum):
    """What a call does with the last record of its claim."""

    JOIN = "wait with whoever waits for it already"
    USE = "take the approval that is there"
    TELL = "be told how it ended, once"
    AGE = "have it expire first, and look again"
    PARK = "ask a person"


def found(last: Parked | None, now: float, memory: float) -> Found:
    """``memory`` is for how many seconds the end of a record is still news to its caller."""
    if last is None:
        return Found.PARK
    if out_of_time(last, now):
        return Found.AGE
    match last.state:
        case State.WAITING:
            return Found.JOIN
        case State.APPROVED:
            return Found.USE
        case State.DENIED | State.EXPIRED:
            news = last.polled and not last.delivered and now - last.ended_at < memory
            return Found.TELL if news else Found.PARK
    # What runs, or ran, was approved once and for one call: this is another one.
    return Found.PARK


def uncovered(parked: Parked, claim: Claim, decision: Decision, revision: str) -> str:
    """Why an approval does not cover what would run now; empty when it does.

    ``decision`` is what policy says now, under ``revision``; a deny is covered by nothing.
    """
    if decision.decision == "deny":
        return f"a policy denies it now (rule {decision.rule})"
    if parked.claim != claim.digest or parked.definition != claim.definition:
        return "the tool's definition has changed since"
    if parked.revision != revision or decision.revision != revision:
        return "the policies have changed since it was approved"
    if decision.decision == "ask":
        more = sorted(set(rules(decision)) - set(parked.rules))
        if more:
            return f"a rule asks that did not ask before ({', '.join(more[:3])})"
    return ""
