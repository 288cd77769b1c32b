"""What may happen to a parked call: events in, the next record out. Pure; no clock, no store.

Each step is written with compare-and-set, so that of two nodes which take a step at once one
finds the other's outcome instead. A step that is not allowed raises ``WrongState``: that is the
whole answer to a second approval, a ticket that is used twice, an approval of something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec.structs import replace

from sidecar.model import Kind
from sidecar.parking.record import Parked, State

_UNRUN: Final = (State.CANCELLED, State.VOID)
"""States that a call did not come to by an answer: whoever answers late asks why."""


class WrongState(Exception):
    """The step is not allowed from where the call stands. ``parked`` is what it stands at."""

    def __init__(self, parked: Parked, why: str) -> None:
        super().__init__(why)
        self.parked = parked
        self.why = why


@dataclass(frozen=True, slots=True)
class Joined:
    """A request on this node waits for it, or is about to use it: either way it shares what
    comes of it, wherever that runs."""

    node: str


@dataclass(frozen=True, slots=True)
class Left:
    """The last request on this node that waited for it is gone.

    ``cancelled``: its client said so in words, rather than to hang up.
    """

    node: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Polled:
    """Somebody is about to be told to call again."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A person answered. ``revision`` is in force now, ``expires_at`` ends the ticket."""

    approved: bool
    by: str
    way: str
    why: str
    revision: str
    expires_at: float
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Dismissed:
    """Its client was asked, and nothing came of it: people elsewhere are still to answer."""


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A call is about to run on it: all of what the ticket is for, as it is now."""

    claim: str
    definition: str
    revision: str
    rules: tuple[str, ...]
    node: str
    call: str
    lease: float


@dataclass(frozen=True, slots=True)
class Renewed:
    """The node that has it is alive."""

    node: str
    lease: float


@dataclass(frozen=True, slots=True)
class Unsent:
    """It was taken, and what took it surely sent nothing."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Finished:
    """What ran has ended. ``known``: whether anybody knows how."""

    node: str
    how: str
    known: bool


@dataclass(frozen=True, slots=True)
class Voided:
    """What was approved is not what would run."""

    why: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """What is asked for, or approved, has become another thing: the tool was defined anew."""

    why: str


@dataclass(frozen=True, slots=True)
class Revoked:
    """Whoever asked may not call any more."""

    why: str


@dataclass(frozen=True, slots=True)
class Removed:
    """What it asks for is not there any more."""

    why: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """Somebody who came back is about to be told how it ended."""


Event: TypeAlias = (
    Joined
    | Left
    | Polled
    | Answered
    | Dismissed
    | Elapsed
    | Taken
    | Renewed
    | Unsent
    | Finished
    | Voided
    | Superseded
    | Revoked
    | Removed
    | Delivered
)


def step(parked: Parked, event: Event, now: float) -> Parked:
    """The record after ``event``; the same object when nothing changes.

    Raises:
        WrongState: nothing of the kind may happen to it.
    """
    if type(event) not in (Elapsed, Delivered) and out_of_time(parked, now):
        # What is out of time is expired, whether somebody has looked at it since or not.
        raise WrongState(_expired(parked, now), "it has expired")
    match event:
        case Joined():
            return _joined(parked, event, now)
        case Left():
            return _left(parked, event, now)
        case Polled():
            return _polled(parked, event, now)
        case Answered():
            return _answered(parked, event, now)
        case Dismissed():
            return _dismissed(parked, event, now)
        case Elapsed():
            return _elapsed(parked, event, now)
        case Taken():
            return _taken(parked, event, now)
        case Renewed():
            return _renewed(parked, event, now)
        case Unsent():
            return _unsent(parked, event, now)
        case Finished():
            return _finished(parked, event, now)
        case Voided():
            return _voided(parked, event, now)
        case Superseded():
            return _superseded(parked, event, now)
        case Revoked():
            return _revoked(parked, event, now)
        case Removed():
            return _removed(parked, event, now)
        case Delivered():
            return _delivered(parked, event, now)


def overdue(parked: Parked, now: float) -> bool:
    """Whether ``Elapsed`` would change something."""
    if parked.state is State.TAKEN or (parked.state is State.WAITING and _permission(parked)):
        return 0 < parked.lease <= now or out_of_time(parked, now)
    return out_of_time(parked, now)


def deadline(parked: Parked) -> float:
    """When ``Elapsed`` will change something; infinity for never."""
    if parked.state is State.TAKEN:
        return parked.lease
    if parked.state is State.WAITING and _permission(parked) and parked.lease:
        return min(parked.lease, parked.expires_at)
    if parked.state in (State.WAITING, State.APPROVED):
        return parked.expires_at
    return float("inf")


def out_of_time(parked: Parked, now: float) -> bool:
    """Whether nobody answered, or used the answer, while there was time."""
    return parked.state in (State.WAITING, State.APPROVED) and parked.expires_at <= now


def _expired(parked: Parked, now: float) -> Parked:
    return replace(parked, state=State.EXPIRED, ended_at=now, nodes=())


def _permission(parked: Parked) -> bool:
    return parked.kind == Kind.PERMISSION


def _only(parked: Parked, *states: State) -> None:
    if parked.state not in states:
        why = f": {parked.ended}" if parked.state in _UNRUN and parked.ended else ""
        raise WrongState(parked, f"it is {parked.state}{why}")


def _joined(parked: Parked, event: Joined, now: float) -> Parked:
    _only(parked, State.WAITING, State.APPROVED)
    if event.node in parked.nodes:
        return parked
    return replace(parked, nodes=(*parked.nodes, event.node))


def _left(parked: Parked, event: Left, now: float) -> Parked:
    nodes = tuple(node for node in parked.nodes if node != event.node)
    if parked.state is not State.WAITING:
        return parked if nodes == parked.nodes else replace(parked, nodes=nodes)
    if not nodes and _permission(parked):
        if event.cancelled:
            why = "the coding agent asks no longer"
            return replace(parked, state=State.CANCELLED, ended_at=now, nodes=(), ended=why)
        return replace(
            parked, state=State.LOST, ended_at=now, nodes=(), ended="the coding agent is gone"
        )
    if not nodes and (event.cancelled or not parked.polled):
        why = "the caller cancelled it" if event.cancelled else "the caller hung up"
        return replace(parked, state=State.CANCELLED, ended_at=now, nodes=(), ended=why)
    return parked if nodes == parked.nodes else replace(parked, nodes=nodes)


def _polled(parked: Parked, event: Polled, now: float) -> Parked:
    _only(parked, State.WAITING)
    return parked if parked.polled else replace(parked, polled=True)


def _answered(parked: Parked, event: Answered, now: float) -> Parked:
    _only(parked, State.WAITING)
    answer = replace(
        parked,
        state=State.APPROVED if event.approved else State.DENIED,
        answered_at=now,
        answered_by=event.by,
        way=event.way,
        why=event.why,
        revision=event.revision,
        answer_trace=event.trace,
    )
    if event.approved:
        return replace(answer, expires_at=event.expires_at)
    return replace(answer, ended_at=now)


def _dismissed(parked: Parked, event: Dismissed, now: float) -> Parked:
    _only(parked, State.WAITING)
    return parked if parked.dismissed else replace(parked, dismissed=True)


def _elapsed(parked: Parked, event: Elapsed, now: float) -> Parked:
    if out_of_time(parked, now):
        return _expired(parked, now)
    if 0 < parked.lease <= now:
        if parked.state is State.TAKEN:
            gone = "the sidecar that ran it ended before the answer came"
            return replace(parked, state=State.UNKNOWN, ended_at=now, ended=gone, nodes=())
        if parked.state is State.WAITING and _permission(parked):
            gone = "the sidecar that ran the coding agent ended"
            return replace(parked, state=State.LOST, ended_at=now, ended=gone, nodes=())
    return parked


def _taken(parked: Parked, event: Taken, now: float) -> Parked:
    _only(parked, State.APPROVED)
    if parked.claim != event.claim or parked.definition != event.definition:
        raise WrongState(parked, "it is the approval of another call")
    if parked.revision != event.revision:
        raise WrongState(parked, "the policies have changed since it was approved")
    if not set(event.rules) <= set(parked.rules):
        raise WrongState(parked, "a rule asks that did not ask when it was approved")
    return replace(
        parked, state=State.TAKEN, taken_by=event.node, ran_as=event.call, lease=event.lease
    )


def _renewed(parked: Parked, event: Renewed, now: float) -> Parked:
    if parked.state is State.WAITING and _permission(parked) and event.node in parked.nodes:
        return replace(parked, lease=event.lease)
    _only(parked, State.TAKEN)
    _of(parked, event.node)
    return replace(parked, lease=event.lease)


def _of(parked: Parked, node: str) -> None:
    if parked.taken_by != node:
        raise WrongState(parked, "another node runs it")


def _unsent(parked: Parked, event: Unsent, now: float) -> Parked:
    _only(parked, State.TAKEN)
    _of(parked, event.node)
    return replace(
        parked, state=State.VOID, ended_at=now, ended=event.why, anew=True, lease=0.0, nodes=()
    )


def _finished(parked: Parked, event: Finished, now: float) -> Parked:
    _only(parked, State.TAKEN)
    _of(parked, event.node)
    state = State.DONE if event.known else State.UNKNOWN
    return replace(parked, state=state, ended_at=now, ended=event.how, lease=0.0, nodes=())


def _voided(parked: Parked, event: Voided, now: float) -> Parked:
    _only(parked, State.APPROVED)
    return replace(parked, state=State.VOID, ended_at=now, ended=event.why, anew=True, nodes=())


def _superseded(parked: Parked, event: Superseded, now: float) -> Parked:
    _only(parked, State.WAITING, State.APPROVED)
    state = State.VOID if parked.state is State.APPROVED else State.CANCELLED
    return replace(parked, state=state, ended_at=now, ended=event.why, anew=True, nodes=())


def _revoked(parked: Parked, event: Revoked, now: float) -> Parked:
    _only(parked, State.WAITING, State.APPROVED)
    state = State.VOID if parked.state is State.APPROVED else State.CANCELLED
    return replace(parked, state=state, ended_at=now, ended=event.why, nodes=())


def _removed(parked: Parked, event: Removed, now: float) -> Parked:
    _only(parked, State.WAITING, State.APPROVED)
    state = State.VOID if parked.state is State.APPROVED else State.LOST
    return replace(parked, state=state, ended_at=now, ended=event.why, nodes=())


def _delivered(parked: Parked, event: Delivered, now: float) -> Parked:
    _only(parked, State.DENIED, State.EXPIRED)
    if not parked.polled or parked.delivered:
        raise WrongState(parked, "somebody has been told of it")
    return replace(parked, delivered=True)
