"""One conversation with a coding agent over ACP, version 1, as a sans-io machine.

What the agent writes goes in by ``receive`` and comes out as effects; what is to be written is
collected and taken by ``outgoing``. No clocks, no tasks, no waiting: whoever drives it has
those. It knows what may be said when: questions are asked only while a turn runs, a cancelled
turn's questions are answered before the agent repeats them, and an agent that switches itself
to a mode in which it does not ask is told to its driver at once.

Neither files nor terminals are offered to the agent: it works in its worktree as it is, and
what it may do there is asked by ``session/request_permission`` alone.

Source: https://agentclientprotocol.com/protocol/v1 (prompt turn, tool calls, session modes,
session config options, cancellation).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from sidecar.harness import session_asks as asks
from sidecar.harness import session_modes as modes
from sidecar.harness.profiles import Profile
from sidecar.harness.protocol import Answer, Failure, Garbage, Notification, Peer, Request
from sidecar.harness.session_asks import Decision, PermissionRequest
from sidecar.harness.updates import Tools, Update, shape
from sidecar.harness.updates_message import LastMessage
from sidecar.model import JsonObject, RequestId
from sidecar.wire.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, as_id

PROTOCOL = 1
Phase = Literal["opening", "idle", "turn", "cancelling"]


@dataclass(frozen=True, slots=True)
class Said:
    """A ``session/update`` of our session."""

    update: Update


@dataclass(frozen=True, slots=True)
class Asked:
    """Answer it by ``permit``, unless it is ``Withdrawn`` first."""

    request: PermissionRequest


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The agent, or the end of its turn, took a question back; it has been answered."""

    id: RequestId


@dataclass(frozen=True, slots=True)
class Replied:
    """To a request of ours."""

    reply: Answer | Failure


@dataclass(frozen=True, slots=True)
class ModeTold:
    """The agent says in which mode it is. ``asks`` is false when it acts unasked in it: once
    the session is open the agent must then be ended."""

    mode: str
    asks: bool


@dataclass(frozen=True, slots=True)
class Complaint:
    """The agent said something that it should not have; it went no further. Holds none of it."""

    why: str


@dataclass(frozen=True, slots=True)
class Broken:
    """No use in going on with this agent."""

    why: str


Effect: TypeAlias = Said | Asked | Withdrawn | Replied | ModeTold | Complaint | Broken


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an agent may send. Sizes in bytes, but ``message`` in characters."""

    line: int = 16 << 20
    depth: int = 64
    open_requests: int = 32
    garbage: int = 1000
    """Bad lines in a session."""
    turn: int = 1 << 30
    """Of all that it says in one turn."""
    message: int = 1 << 20
    """Of the last message; more is cut."""


class Session:
    """The client's side. One session in one process; its id is known once it is open."""

    def __init__(self, profile: Profile, bounds: Bounds) -> None:
        self.id = ""
        self.phase: Phase = "opening"
        self.mode = ""
        """In which it last said to be; empty when it never did."""
        self.told = 0
        """How often it has said in which mode it is."""
        self.last_message = LastMessage(bounds.message)
        self.tools = Tools()
        self.denied = False
        """Whether the last question of this turn was answered with no."""
        self._profile = profile
        self._bounds = bounds
        self._peer = Peer(line=bounds.line, depth=bounds.depth, open_requests=bounds.open_requests)
        self._out: list[bytes] = []
        self._asked: dict[RequestId, PermissionRequest] = {}
        self._turn: int | None = None
        self._loading: int | None = None
        self._first_mode = ""
        self._garbage = 0
        self._heard = 0

    # ------------------------------------------------------------------------------ driver's

    @property
    def frames(self) -> int:
        """Lines that came so far, whatever they were."""
        return self._peer.frames

    @property
    def waiting(self) -> Sequence[PermissionRequest]:
        """Questions that wait for ``permit``, the oldest first."""
        return tuple(self._asked.values())

    def outgoing(self) -> bytes:
        """What is to be written to the agent now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def call(self, method: str, params: JsonObject) -> int:
        """Send a request; its ``Replied`` has this id."""
        id_, data = self._peer.request(method, params)
        self._out.append(data)
        session = params.get("sessionId")
        if method in ("session/load", "session/resume") and isinstance(session, str):
            self.id = session
            self._loading = id_ if method == "session/load" else None
        return id_

    def opened(self) -> None:
        """The session is open and asks: from here on a prompt may be sent."""
        assert self.id, "no session was opened"
        self.phase = "idle"
        self._first_mode = self.mode

    def prompt(self, blocks: Sequence[JsonObject], meta: JsonObject) -> int:
        """Begin a turn; it ends with the ``Replied`` of this id."""
        assert self.phase == "idle", f"no prompt in phase {self.phase}"
        params: JsonObject = {"sessionId": self.id, "prompt": list(blocks)}
        if meta:
            params["_meta"] = meta
        self.phase = "turn"
        self.denied = False
        self._heard = 0
        self.last_message.clear()
        self.tools.settle()
        self._turn = self.call("session/prompt", params)
        return self._turn

    def permit(self, id_: RequestId, decision: Decision) -> Decision | None:
        """Answer a question; what was really said, or ``None`` when it no longer waits."""
        request = self._asked.pop(id_, None)
        if request is None:
            return None
        result, said = asks.outcome(request.options, decision)
        self._out.append(self._peer.answer(id_, result))
        self.denied = said == "reject"
        return said

    def cancel(self) -> Sequence[RequestId]:
        """Ask the agent to end its turn, and answer its questions: some never end it before.
        The ids of those, which must not be permitted any more."""
        if self.phase != "turn":
            return ()
        self.phase = "cancelling"
        self._out.append(self._peer.notify("session/cancel", {"sessionId": self.id}))
        ids = tuple(self._asked)
        for id_ in ids:
            self.permit(id_, "cancelled")
        return ids

    # ------------------------------------------------------------------------------- agent's

    def receive(self, data: bytes) -> Iterator[Effect]:
        """Take what the agent wrote. Take all effects before the next call."""
        self._heard += len(data)
        if self.phase in ("turn", "cancelling") and self._heard > self._bounds.turn:
            yield Broken(f"it said more than {self._bounds.turn >> 20} MiB in one turn")
            return
        for incoming in self._peer.feed(data):
            if isinstance(incoming, Notification):
                yield from self._notified(incoming)
            elif isinstance(incoming, Request):
                yield from self._requested(incoming)
            elif isinstance(incoming, Garbage):
                yield from self._unreadable(incoming)
            else:
                yield from self._replied(incoming)

    def _unreadable(self, garbage: Garbage) -> Iterator[Effect]:
        self._out.append(garbage.reply)
        self._garbage += 1
        if self._garbage > self._bounds.garbage:
            yield Broken(f"more than {self._bounds.garbage} of its lines are no messages of ACP")
        else:
            yield Complaint(garbage.why)

    def _replied(self, reply: Answer | Failure) -> Iterator[Effect]:
        if isinstance(reply, Answer):
            session = reply.result.get("sessionId")
            if reply.method == "session/new" and isinstance(session, str):
                self.id = session
            yield from self._modes(reply.result)
        if reply.id == self._loading:
            self._loading = None
        if reply.id == self._turn:
            self._turn = None
            self.phase = "idle"
            for id_ in tuple(self._asked):
                self.permit(id_, "cancelled")
                yield Withdrawn(id_)
        yield Replied(reply)

    def _notified(self, note: Notification) -> Iterator[Effect]:
        params = note.params
        if note.method == "$/cancel_request":
            id_ = as_id(params.get("requestId"))
            if id_ is not None and id_ in self._asked:
                self.permit(id_, "cancelled")
                yield Withdrawn(id_)
            return
        # Names that begin with `_` are extensions and others may be new: neither is a fault.
        if note.method != "session/update":
            return
        raw = params.get("update")
        if not isinstance(raw, dict) or not isinstance(params.get("sessionId"), str):
            yield Complaint("a session/update has no session or no update")
        elif params["sessionId"] == self.id:
            yield from self._updated(cast("JsonObject", raw))

    def _updated(self, raw: JsonObject) -> Iterator[Effect]:
        replayed = self._loading is not None
        update = shape(raw, self.tools, replayed=replayed, late=self.phase == "idle")
        self.last_message.take(update)
        # Before anything else that it may say: the driver ends it.
        yield from self._modes(raw) if update.kind == "config_option_update" else ()
        yield Said(update)

    def _modes(self, payload: JsonObject) -> Iterator[Effect]:
        for mode in modes.told(payload):
            self.told += 1
            self.mode = mode
            yield ModeTold(mode, modes.asks(self._profile.asking, mode, self._first_mode))

    def _requested(self, request: Request) -> Iterator[Effect]:
        if request.method != "session/request_permission":
            why = f"{request.method[:100]} is not offered by this client"
            self._out.append(self._peer.refuse(request.id, METHOD_NOT_FOUND, why))
            return
        params = request.params
        tool_call = params.get("toolCall")
        if params.get("sessionId") != self.id or not self.id or not isinstance(tool_call, dict):
            why = "the question is not about a tool call of this session"
            self._out.append(self._peer.refuse(request.id, INVALID_PARAMS, why))
            yield Complaint(why)
            return
        whole = self.tools.whole(cast("JsonObject", tool_call))
        asked = asks.read(request.id, params, whole, self._profile.extract)
        self._asked[request.id] = asked
        if self.phase == "turn":
            yield Asked(asked)
        elif self.phase == "cancelling":
            self.permit(request.id, "cancelled")
        else:
            # Nobody is there who could be asked.
            self.permit(request.id, "reject")
            yield Complaint("it asked for a permission while no prompt was running")
