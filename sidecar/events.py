"""What happened, as typed events, and the bus that carries them.

The bus is synchronous and in-process: ``publish`` calls every listener before it returns, so a
listener must not block; one that has slow work puts it into its own bounded queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from sidecar.model import (
    NO_TRACE,
    Decision,
    JsonObject,
    State,
    TraceContext,
)

log = logging.getLogger("sidecar.events")


class Happening:
    """What the bus carries."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Happening):
    """Anything that happened. ``trace`` is the span under which it did, if there was one."""

    trace: TraceContext = NO_TRACE


@dataclass(slots=True, kw_only=True)
class Measured(Happening):
    """What is over, and how long it took. ``trace`` as of an event.

    One is made for every call and more, and to freeze it would cost a call for each field:
    nobody changes it all the same.
    """

    trace: TraceContext = NO_TRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class LegChanged(Event):
    """A server's leg changed its state. ``retry_in`` is in seconds."""

    server: str
    state: State
    error: str | None = None
    retry_in: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsChanged(Event):
    """A server's tools, compared with what was known; ``count`` is 0 the moment a leg is down.

    ``name`` is the sidecar's own name.
    """

    name: str
    server: str
    count: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsChanged(Event):
    """A server's prompts are other than before."""

    server: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesChanged(Event):
    """A server's resources or resource templates are other than before."""

    server: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUpdated(Event):
    """``notifications/resources/updated`` from a server.

    ``isolation`` names the caller whose own upstream session said it; empty for a shared one.
    """

    server: str
    uri: str
    params: JsonObject
    isolation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMessage(Event):
    """``notifications/message`` from a server, tied to no running call. ``isolation`` as above."""

    server: str
    params: JsonObject
    isolation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened(Event):
    """A downstream session began."""

    session: str
    principal: str
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed(Event):
    """A downstream session ended: the client's DELETE, its TTL, or the drain (``why``)."""

    session: str
    principal: str
    why: str


@dataclass(slots=True, kw_only=True)
class CallFinished(Measured):
    """A call ended. ``outcome`` is ``ok``, ``tool_error``, or a failure's name; seconds.

    ``decision`` and ``rule`` are the last ones, empty where nothing was decided; ``error`` is
    the ``error.type`` of its span, empty for none.
    """

    call: str
    method: str
    server: str
    target: str
    principal: str
    session: str
    outcome: str
    seconds: float
    attempts: int
    kind: str = ""
    decision: str = ""
    rule: str = ""
    error: str = ""


@dataclass(slots=True, kw_only=True)
class AttemptFinished(Measured):
    """A call was sent to its server, and this is over; seconds. ``error`` as of a call."""

    method: str
    server: str
    target: str
    kind: str
    transport: str
    seconds: float
    error: str = ""


@dataclass(slots=True, kw_only=True)
class RequestFinished(Measured):
    """A caller's request that is no call was answered; seconds. ``error`` as of a call."""

    method: str
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialDecided(Event):
    """A dial was decided, as ``Decided`` tells in full. ``reason`` is why it would be dialled,
    ``target`` the origin (empty for what cannot be read), ``class_`` that of its addresses,
    ``server`` whom it is for (empty for no server), ``seconds`` what looking it up and deciding
    took."""

    decision: str
    rule: str
    reason: str
    target: str = ""
    class_: str = ""
    server: str = ""
    principal: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(Event):
    """A decision was made about a call (an id), or about a dial (empty).

    ``decision`` holds a message only where that is constant: this may be recorded.
    ``definition`` is the digest of the tool's definition, empty where there is none;
    ``arguments`` gives that of the arguments (canonical JSON, sha256 in hex) and costs as much
    as they are long: ask once, in the listener, and only if it is kept. ``microseconds`` is
    what deciding took. ``again``: the call was held before, and is decided once more.
    """

    call: str
    phase: str
    target: str
    principal: str
    decision: Decision
    server: str = ""
    kind: str = ""
    session: str = ""
    definition: str = ""
    arguments: Callable[[], str] = str
    microseconds: float = 0.0
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedChanged(Event):
    """A parked call is in another state than ``before`` (empty: it is new), here or on another
    node. ``by``, ``way`` and ``why`` are the person's who answered; ``ended`` says why it ended
    where the state does not. ``ran_as`` is the call that ran on its approval, and ``here`` that
    this node runs it."""

    call: str
    state: str
    before: str
    target: str
    server: str
    principal: str
    session: str
    rules: tuple[str, ...]
    by: str = ""
    way: str = ""
    why: str = ""
    ended: str = ""
    ran_as: str = ""
    here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedAnswered(Event):
    """A person answered a parked call, on this node. ``arguments`` is the digest of all that is
    sent but ``_meta``, ``revision`` that of the policy in force at the answer."""

    call: str
    approve: bool
    by: str
    way: str
    why: str
    target: str
    server: str
    principal: str
    session: str
    rules: tuple[str, ...]
    definition: str = ""
    arguments: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminActed(Event):
    """Somebody changed something through the admin listener of this node, or tried to: ``error``
    is the refusal's reason. ``action`` is a word of the route's (``servers.put``), ``targets``
    name what it was about; ``way`` is as in ``ParkedAnswered``."""

    action: str
    by: str
    way: str
    targets: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoaded(Event):
    """The policy files were read. ``revision`` is in force now, the same as before where nothing
    changed or where, with ``faulty``, the files as they are are not in force (empty: none is)."""

    revision: str
    faulty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsChanged(Event):
    """A principal has other trust labels than before, of any of its sessions, brought by a
    result here or on another node, or forgotten. That one expires is no event."""

    principal: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUpdate(Event):
    """A coding agent's ACP session said something. ``update`` is its kind."""

    name: str
    agent_id: str
    harness: str
    work: str
    update: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkChanged(Event):
    """A run of a coding agent began, or is over."""

    harness: str
    work: str
    over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept(Event):
    """A sweep ended: the worktree paths removed, and those kept with their reason."""

    name: str
    removed: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]


E = TypeVar("E", bound=Happening)


class Bus:
    """Listeners by event type, called in the order in which they came.

    A listener that raises is logged and does not reach the publisher or the other listeners.
    """

    def __init__(self) -> None:
        # Replaced as a whole: who is being told is told to the end, whoever comes or goes.
        self._listeners: dict[type[Happening], tuple[Callable[[Happening], None], ...]] = {}

    def listen(self, kind: type[E], listener: Callable[[E], None]) -> Callable[[], None]:
        """Call ``listener`` for each event of exactly this type; returns the way to stop."""
        entry = cast("Callable[[Happening], None]", listener)
        self._listeners[kind] = (*self._listeners.get(kind, ()), entry)

        def stop() -> None:
            left = list(self._listeners.get(kind, ()))
            if entry in left:
                left.remove(entry)
            if left:
                self._listeners[kind] = tuple(left)
            else:
                self._listeners.pop(kind, None)

        return stop

    def wanted(self, kind: type[Happening]) -> bool:
        """Whether anybody listens: a publisher on the serving path builds no event otherwise."""
        return kind in self._listeners

    def publish(self, event: Happening) -> None:
        """Tell every listener, now."""
        for listener in self._listeners.get(type(event), ()):
            try:
                listener(event)
            except Exception:
                # A listener's fault must not fail the call that it watches.
                log.exception("a listener of %s failed", type(event).__name__)
