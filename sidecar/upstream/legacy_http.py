"""A server with sessions over Streamable HTTP (2025-03-26 to 2025-11-25)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from multidict import CIMultiDict

from sidecar.mcp.headers import SESSION_HEADER, VERSION_HEADER
from sidecar.model import Caller, Era, Fields, JsonObject, RpcError, Unavailable
from sidecar.upstream import era, lost, prepare
from sidecar.upstream.conversation import read_result
from sidecar.upstream.events import EventStream
from sidecar.upstream.faults import HttpStatus, SessionElsewhere, StreamEnded, Unreachable
from sidecar.upstream.http import Hear, HttpClient
from sidecar.upstream.leg import SELF, Hello, Host, doubt, lose
from sidecar.upstream.notices import progress, read_params
from sidecar.upstream.replies import reply
from sidecar.upstream.tasks import cancelled
from sidecar.wire import jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import Message

END_TIMEOUT = 2.0
"""Seconds that a server may take over the end of a session, or over a notification."""

EVENTS_WAIT = 0.25
"""Seconds that others wait for the standing stream, so that nothing falls in between."""

RESUMES = 5
"""How often in a row a broken answer is resumed without anything new having come."""


@dataclass(frozen=True, slots=True)
class Session:
    """``headers`` name it in every request; ``id`` is ``None`` where the server gave none."""

    id: str | None
    headers: Mapping[str, str]


class SessionLost(Exception):
    """The server does not know the session any more; the request was not run."""


class LegacyHttpLeg:
    """One session, made anew when the server forgets it. ``open`` comes first."""

    over_http = True

    def __init__(self, host: Host, http: HttpClient, isolation: str, timeout: float) -> None:
        """``timeout`` is for a handshake, in seconds."""
        self.isolation = isolation
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.hello: Hello
        self._host = host
        self._http = http
        self._timeout = timeout
        self._ids = count(1)
        self._session = Session(None, {})
        self._renewing: asyncio.Task[None] | None = None
        self._events: EventStream | None = None
        # Some servers report progress on the standing stream instead of the request's own.
        self._progress: dict[int, Caller] = {}

    async def open(self) -> None:
        """Shake hands.

        Raises:
            HttpStatus, RpcError, StreamEnded: as the server answered ``initialize``.
            era.NotSpoken: the answer is none that we can use.
            Unavailable: no answer.
        """
        id = next(self._ids)
        body = jsonrpc.request(id, "initialize", era.INITIALIZE)
        response = await self._http.post(body, {})
        message = await self._http.answer(response, id, partial(self._heard, id, SELF))
        hello = era.of_initialize(read_result(self._host, message))
        session_id = response.headers.get(SESSION_HEADER) or None
        headers = CIMultiDict({VERSION_HEADER: hello.version})
        if session_id is not None:
            headers[SESSION_HEADER] = session_id
        self.hello = replace(hello, stateful=session_id is not None)
        self._session = Session(session_id, headers)
        initialized = jsonrpc.notification("notifications/initialized", None)
        with suppress(HttpStatus):
            # Whoever cannot take it will say so when asked for something.
            await self._http.accepted(await self._http.post(initialized, headers))

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        session = self._session
        try:
            return await self._once(session, method, params, caller)
        except (SessionLost, SessionElsewhere):
            await self.renew(session)
        try:
            return await self._once(self._session, method, params, caller)
        except SessionLost:
            raise Unavailable(
                self._host.name, "forgets sessions as soon as it has made them", ran="no"
            ) from None

    async def subscribe(self, uri: str) -> None:
        self.listen()
        await self.request("resources/subscribe", {"uri": uri}, SELF)

    async def unsubscribe(self, uri: str) -> None:
        await self.request("resources/unsubscribe", {"uri": uri}, SELF)

    async def set_log_level(self, level: str) -> None:
        self.listen()
        await self.request("logging/setLevel", {"level": level}, SELF)

    def listen(self) -> None:
        if self._events is None and not self.gone.done():
            self._events = EventStream(self._host, self._http, self)

    async def listening(self) -> None:
        """Return once the event stream is open, or it is clear that there is none, or soon."""
        if self._events is not None:
            await self._events.settled(EVENTS_WAIT)

    async def end(self) -> None:
        reachable = not self.gone.done()
        lose(self.gone, "the leg was ended")
        if self._renewing is not None:
            await cancelled(self._renewing)
        if self._events is not None:
            await self._events.end()
        session, self._session = self._session, Session(None, {})
        if session.id is not None and reachable:
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(END_TIMEOUT):
                    # Any answer will do: some servers do not let clients end sessions (405).
                    await self._http.delete(session.headers)

    # ------------------------------------------------------------ for the event stream, too

    @property
    def session(self) -> Session:
        return self._session

    def take(self, message: Message) -> None:
        """A message of the event stream: it belongs to no request of ours."""
        self._heard(0, SELF, message)

    async def renew(self, session: Session) -> None:
        """Return when a session other than this one is there; one handshake for all who wait.

        Raises:
            Unavailable: there is none to be had; ``ran`` is ``no``.
        """
        if self._session is not session:
            return
        if self._renewing is None or self._renewing.done():
            if self.gone.done():
                raise Unavailable(self._host.name, self.gone.result(), ran="no")
            self._renewing = asyncio.create_task(
                self._reopen(), name=f"{self._host.name}: a new session"
            )
        # Waited for, not awaited: its cancellation is not ours, nor ours its.
        await asyncio.wait({self._renewing})
        if self._session is session:
            why = self.gone.result() if self.gone.done() else "no new session could be made"
            raise Unavailable(self._host.name, why, ran="no")

    # ------------------------------------------------------------------------------- inside

    async def _once(
        self, session: Session, method: str, params: JsonObject, caller: Caller
    ) -> Fields:
        http, host = self._http, self._host
        id = next(self._ids)
        body = jsonrpc.request(id, method, prepare.legacy(params, id, caller, trusted=host.trusted))
        trace = prepare.trace_headers(caller, trusted=host.trusted)
        headers = {**session.headers, **trace} if trace else session.headers
        hear = partial(self._heard, id, caller)
        if caller.sent is not None:
            caller.sent(id, self.hello.version)
        try:
            if caller.progress is not None:
                self._progress[id] = caller
                self.listen()
                await self.listening()
            try:
                message = await http.exchange(body, headers, id, hear)
            except StreamEnded as ended:
                message = await self._resumed(session, id, hear, ended)
        except asyncio.CancelledError:
            self._cancel(session, id)
            raise
        except HttpStatus as status:
            raise self._refused(status, session, caller) from None
        except Unreachable as error:
            # Whoever noticed it.
            lose(self.gone, error.why)
            raise
        finally:
            if caller.progress is not None:
                self._progress.pop(id, None)
        if message.error is not None and lost.by_error(jsonrpc.error_of(message.error)):
            raise SessionLost
        return read_result(host, message)

    def _refused(self, status: HttpStatus, session: Session, caller: Caller) -> Exception:
        if lost.by_status(status, had_id=session.id is not None):
            return SessionLost()
        if status.error is not None and era.of_error(status.error) is Era.MODERN:
            lose(self.gone, "has no sessions any more")
            return self._http.failed("has no sessions any more", "no")
        if status.error is not None and (status.answers or status.status < 500):
            return status.error
        doubt(self._host, self, status, caller)
        return self._http.refused(status)

    async def _resumed(self, session: Session, id: int, hear: Hear, ended: StreamEnded) -> Message:
        """Read on where an answer's stream broke off, if the server numbers its events.

        Servers may end a stream on purpose and have us come back (2025-11-25, transports).
        """
        tries = 0
        while ended.last_event_id and tries < RESUMES:
            before = ended.last_event_id
            await asyncio.sleep(min(0.2 if ended.retry is None else ended.retry, 30.0))
            try:
                response = await self._http.get({**session.headers, "Last-Event-ID": before})
                return await self._http.answer(response, id, hear)
            except StreamEnded as again:
                tries = tries + 1 if again.last_event_id in ("", before) else 0
                ended = StreamEnded(again.last_event_id or before, again.retry or ended.retry)
            except HttpStatus:
                break
            except Unavailable as error:
                raise Unavailable(self._host.name, error.why, ran="maybe") from None
        raise Unavailable(self._host.name, str(ended), ran="maybe")

    async def _reopen(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self.open()
        except TimeoutError:
            lose(self.gone, f"no answer to initialize within {self._timeout:g} s")
        except (HttpStatus, RpcError, StreamEnded, era.NotSpoken) as error:
            lose(self.gone, f"forgot the session and makes no new one ({error})")
        except Unavailable as error:
            lose(self.gone, error.why)
        else:
            self._host.stale(self, renewed=True)

    def _heard(self, id: int, caller: Caller, message: Message) -> None:
        """Whatever comes on a stream before, or without, an answer. ``id`` 0: the latter."""
        host = self._host
        if message.is_request:
            self._later(reply(message), self._session)
            return
        if message.is_response:
            if id:
                host.complaints.warn("stray answer", "answers what nobody asked")
            return
        try:
            params = read_params(message, host.limits.depth)
        except BadJson as error:
            host.complaints.warn("garbage", f"sends a notification we cannot read: {error}")
            return
        if message.method == "notifications/progress":
            token = params.get("progressToken")
            whose = self._progress.get(token) if type(token) is int else None
            # On a request's own stream a server has only that request to tell of.
            if whose is not None and id in (0, token):
                progress(whose, params)
        elif message.method == "notifications/message" and caller is not SELF:
            if host.wants(params.get("level"), caller):
                caller.notify(message.method, params)
        elif message.method != "notifications/cancelled":
            host.heard(self, message.method, params)

    def _cancel(self, session: Session, id: int) -> None:
        """Closing the connection says nothing in this era; a notification does."""
        params: JsonObject = {"requestId": id, "reason": "the caller gave up or ran out of time"}
        self._later(jsonrpc.notification("notifications/cancelled", params), session)

    def _later(self, body: bytes, session: Session) -> None:
        async def job() -> None:
            with suppress(Unavailable, HttpStatus, TimeoutError):
                async with asyncio.timeout(END_TIMEOUT):
                    await self._http.accepted(await self._http.post(body, session.headers))

        self._host.tasks.spawn(job(), name=f"{self._host.name}: a message")
