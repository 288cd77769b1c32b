"""The legacy sessions of the HTTP listener: how many, whose, and for how long.

When there are as many as ``limits.sessions`` allows, a new one takes the place of the one that
was idle longest: of the same principal's if it has an idle one, so that nobody crowds out the
others, else of anybody's. A session is idle when nothing of it runs and it has no open stream;
when none is, the new one is refused. What is idle longer than ``limits.session_ttl`` ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from sidecar.downstream.auth import Grant
from sidecar.downstream.feed import LIST_CHANGES
from sidecar.downstream.session import Opening, Session, key_of, new_id
from sidecar.downstream.stream import Stream
from sidecar.gateway import Listening
from sidecar.model import JsonObject

MOST_STREAMS = 4
"""GET streams that one session may have open; over it the oldest is ended."""


class TooMany(Exception):
    """Every session that may exist is in use."""


class HttpSession(Session):
    """A session that is found by its id.

    ``used`` is when it was last asked something, on the loop's clock. A message goes to one
    stream only, the newest (2025-11-25, transports: a message is never broadcast); list changes
    that come while there is none are told when one opens.
    """

    __slots__ = ("_missed", "_streams", "grant", "id", "listening", "opened_at", "used")

    def __init__(
        self,
        grant: Grant,
        server: str | None,
        opening: Opening,
        *,
        id: str,
        now: float,
        wall: float,
    ) -> None:
        """``now`` is the loop's time, ``wall`` the clock's, in seconds since the epoch."""
        super().__init__(key_of(id), grant.principal, server, opening)
        self.id = id
        self.grant = grant
        self.opened_at = wall
        self.used = now
        self.listening: Listening | None = None
        self._streams: tuple[Stream, ...] = ()
        self._missed: tuple[str, ...] = ()

    @property
    def idle(self) -> bool:
        return not self._streams and not len(self.calls)

    def told(self, method: str, params: JsonObject) -> None:
        """A notification for this client, from the gateway."""
        if self._streams:
            self._streams[-1].offer(method, params)
        elif method in LIST_CHANGES and method not in self._missed:
            self._missed = (*self._missed, method)

    def attach(self, stream: Stream) -> None:
        """A GET stream opened."""
        self._streams = (*self._streams, stream)
        if len(self._streams) > MOST_STREAMS:
            self._streams[0].end()
        missed, self._missed = self._missed, ()
        for method in missed:
            stream.offer(method, {})

    def detach(self, stream: Stream) -> None:
        """A GET stream closed."""
        self._streams = tuple(other for other in self._streams if other is not stream)

    def end_streams(self) -> None:
        for stream in self._streams:
            stream.end()


class Sessions:
    """All of them, least recently used first. ``ended`` is called for each that ends."""

    def __init__(self, most: int, ttl: float, ended: Callable[[HttpSession, str], None]) -> None:
        self._most = most
        self._ttl = ttl
        self._ended = ended
        self._by_id: OrderedDict[str, HttpSession] = OrderedDict()

    def reconfigure(self, most: int, ttl: float) -> None:
        """Other bounds from now on; what is over them ends as it becomes idle."""
        self._most = most
        self._ttl = ttl

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(tuple(self._by_id.values()))

    def open(
        self, grant: Grant, server: str | None, opening: Opening, now: float, wall: float
    ) -> HttpSession:
        """A new session; may end an idle one to make room.

        Raises:
            TooMany: there is no room and none is idle.
        """
        if len(self._by_id) >= self._most:
            idle = [session for session in self._by_id.values() if session.idle]
            if not idle:
                raise TooMany
            name = grant.principal.name
            own = [session for session in idle if session.principal.name == name]
            self.end((own or idle)[0], "to make room for another")
        session = HttpSession(grant, server, opening, id=new_id(), now=now, wall=wall)
        self._by_id[session.id] = session
        return session

    def find(self, id: str, grant: Grant, server: str | None, now: float) -> HttpSession | None:
        """The session of that id, if it is this principal's and was opened on this path."""
        session = self._by_id.get(id)
        if (
            session is None
            or session.server != server
            or session.principal.name != grant.principal.name
        ):
            return None
        session.used = now
        self._by_id.move_to_end(id)
        return session

    def end(self, session: HttpSession, why: str) -> None:
        """End it: its streams close, what still runs is cancelled. Idempotent."""
        if self._by_id.pop(session.id, None) is None:
            return
        session.end_streams()
        self._ended(session, why)

    def reap(self, now: float) -> None:
        """End every session that has been idle for longer than its time."""
        for session in self:
            if now - session.used < self._ttl:
                break
            if session.idle:
                self.end(session, "idle")
            else:
                # It is in use all the while: look again when it has been idle for its time.
                session.used = now
                self._by_id.move_to_end(session.id)
