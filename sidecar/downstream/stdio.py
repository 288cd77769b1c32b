"""MCP over standard input and output, both eras."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from sidecar import __version__
from sidecar.config.types import Config
from sidecar.downstream.asks import Asks
from sidecar.downstream.auth import ANYBODY, Grant
from sidecar.downstream.conversation import Asked, Conversation, Open, Say, refusal
from sidecar.downstream.desk import Desk, failed, fault
from sidecar.downstream.feed import Feed
from sidecar.downstream.filters import LISTEN, Filter, acknowledgement, listened, render
from sidecar.downstream.frames import MOST_BYTES, Frames, Weight, weight_of
from sidecar.downstream.pipes import Write, stdio_lines
from sidecar.downstream.running import Answer, Crowd, InFlight, Running
from sidecar.downstream.session import Session, key_of, new_id
from sidecar.gateway import Gateway, Listening
from sidecar.mcp import errors, shape
from sidecar.mcp.errors import Rejection
from sidecar.mcp.inbound import Inbound
from sidecar.mcp.versions import MODERN_VERSION
from sidecar.model import (
    Ask,
    Caller,
    Era,
    Fields,
    JsonObject,
    Notify,
    Principal,
    RequestId,
    Unavailable,
    no_notify,
)
from sidecar.wire import jsonrpc
from sidecar.wire.ndjson import Oversize

log = logging.getLogger("sidecar.downstream")

MOST_IN_FLIGHT = 256
"""Requests of the one client that may run at once."""
FAREWELL = 5.0
"""Seconds that running requests get once standard input has ended."""

Push = Callable[[bytes, Weight], None]


class StdioServer:
    """Serves the one client at standard input, as the principal of an open listener."""

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        *,
        server: str | None = None,
        principal: Principal = ANYBODY,
        farewell: float = FAREWELL,
    ) -> None:
        """``server`` serves that one alone, its names unchanged."""
        self._gateway = gateway
        self._desk = Desk(gateway, config.name, __version__)
        self._limits = config.limits
        self._server = server
        self._grant = Grant(principal)
        self._farewell = farewell
        self._talk = Conversation(config.limits)
        self._crowd = Crowd(MOST_IN_FLIGHT)
        self._frames = Frames()
        self._wake = asyncio.Event()
        self._written = asyncio.Event()
        self._ending = asyncio.Event()
        self._listening: list[Listening] = []
        self._gone = False

    async def run(self) -> None:
        """Serve until the input ends, or nobody reads the output."""
        async with stdio_lines(self._limits.line) as (lines, write):
            await self.serve(lines, write)

    async def serve(self, lines: AsyncIterator[bytes | Oversize], write: Write) -> None:
        """Serve what ``lines`` say. Running requests get their time when they end."""
        writer = asyncio.create_task(self._write_all(write))
        reader = asyncio.create_task(self._read_all(lines))
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and not self._gone:
                await self._calls_done()
        finally:
            reader.cancel()
            self._ending.set()
            stopped = Unavailable("sidecar", "it is shutting down", ran="maybe")
            # Listens end by themselves, with their result.
            await asyncio.sleep(0)
            await self._crowd.end(errors.of(stopped), timeout=1.0)
            for listening in self._listening:
                listening.stop()
            self._wake.set()
            await asyncio.wait({writer}, timeout=1.0)
            writer.cancel()
            for outcome in await asyncio.gather(reader, writer, return_exceptions=True):
                if isinstance(outcome, Exception):
                    log.error("standard input or output failed: %s", fault(outcome))
            if self._talk.session is not None:
                await self._forget(self._talk.session.key)

    async def _calls_done(self) -> None:
        """The input has ended: what runs may finish; listens have nobody to listen any more."""
        self._ending.set()
        await self._crowd.wait(self._farewell)

    async def _forget(self, key: str) -> None:
        try:
            async with asyncio.timeout(self._farewell):
                await self._gateway.close_session(key)
        except Exception as failure:  # noqa: BLE001  the client has gone, there is nobody to tell
            log.error("ending the session failed: %s", fault(failure))

    # ----------------------------------------------------------------------------- reading

    async def _read_all(self, lines: AsyncIterator[bytes | Oversize]) -> None:
        async for line in lines:
            self._take(self._talk.take(line))
            # A client that reads nothing is not read from either.
            while self._frames.size > MOST_BYTES:
                self._written.clear()
                await self._written.wait()

    def _take(self, step: Say | Asked | Open | None) -> None:
        if isinstance(step, Say):
            self._push(step.message, Weight.ANSWER)
        elif isinstance(step, (Asked, Open)):
            try:
                self._initialize(step) if isinstance(step, Open) else self._ask(step)
            except Exception as failure:  # noqa: BLE001  one request fails, the client stays
                answer = failed(step.id, failure, step.message.era, step.message.method)
                self._push(answer.body, Weight.ANSWER)

    def _initialize(self, step: Open) -> None:
        session = Session(key_of(new_id()), self._grant.principal, self._server, step.opening)
        self._talk.opened(session)
        caller = session.caller(step.message.envelope, no_notify)
        result = jsonrpc.result(step.id, self._desk.initialize(step.opening.version, caller))
        self._push(result, Weight.ANSWER)
        feed = _FeedOut(self._push, Era.LEGACY, None)
        feed.open()
        self._listening.append(self._gateway.listen(caller, feed.offer))

    def _ask(self, step: Asked) -> None:
        message = step.message
        if self._crowd.full:
            busy = Unavailable(
                "sidecar", f"{self._crowd.most} requests are running", ran="no", retry_in=1.0
            )
            self._push(jsonrpc.error(step.id, errors.of(busy)), Weight.ANSWER)
            return
        try:
            running = _Answering(self._push, self._crowd, self._grant, step, self._talk.calls)
        except Rejection as rejection:
            self._push(refusal(rejection), Weight.ANSWER)
            return
        if message.method == LISTEN and message.era is Era.MODERN:
            running.start(self._listen(step.id, message, running))
            return
        session = self._talk.session if message.era is Era.LEGACY else None
        ask = running.asking(session.asks) if session is not None else None
        caller = self._caller(message, running.notify, ask)
        running.start(self._desk.answer(step.id, message.method, message.params, caller, session))

    def _caller(self, message: Inbound, notify: Notify, ask: Ask | None = None) -> Caller:
        session = self._talk.session
        if session is not None:
            return session.caller(message.envelope, notify, ask)
        envelope = message.envelope
        return Caller(
            principal=self._grant.principal,
            era=message.era,
            server=self._server,
            client=envelope.client,
            capabilities=envelope.capabilities or {},
            trace=envelope.trace,
            progress=envelope.progress,
            log_level=envelope.log_level,
            notify=notify,
            request=envelope.request,
            protocol=MODERN_VERSION if message.era is Era.MODERN else "",
        )

    async def _listen(self, id_: RequestId, message: Inbound, running: _Answering) -> Answer:
        try:
            wanted = Filter.of(message.params)
        except Rejection as rejection:
            return Answer(jsonrpc.error(id_, rejection), rejection.code)
        feed = _FeedOut(self._push, Era.MODERN, id_)
        watched: frozenset[str] = frozenset()

        def offer(method: str, params: JsonObject) -> None:
            if wanted.passes(method, params, watched):
                feed.offer(method, params)

        listening = self._gateway.listen(self._caller(message, no_notify), offer)
        try:
            uris = await listening.watch(wanted.uris) if wanted.uris else []
            watched = frozenset(uris)
            self._push(acknowledgement(id_, wanted.honoured(uris)), Weight.ANSWER)
            feed.open()
            await self._ending.wait()
            # The specification asks for this on one page and for the result on another.
            running.afterwards = jsonrpc.notification("notifications/cancelled", {"requestId": id_})
            return Answer(listened(id_, self._desk.server_info))
        finally:
            feed.close()
            listening.stop()

    # ----------------------------------------------------------------------------- writing

    def _push(self, message: bytes, weight: Weight) -> None:
        if not self._gone:
            self._frames.push(message, weight)
            self._wake.set()

    async def _write_all(self, write: Write) -> None:
        try:
            while True:
                while self._frames:
                    await write(self._frames.pop())
                    self._written.set()
                if self._ending.is_set() and not len(self._crowd):
                    return
                self._wake.clear()
                await self._wake.wait()
        except ConnectionError:
            self._gone = True
            self._written.set()


class _Answering(Running):
    """A running request whose answer is a line."""

    __slots__ = ("_era", "_push", "afterwards")

    def __init__(
        self, push: Push, crowd: Crowd, grant: Grant, step: Asked, calls: InFlight
    ) -> None:
        super().__init__(crowd, grant, step.id, calls)
        self._push = push
        self._era = step.message.era
        # What goes out after the answer.
        self.afterwards: bytes | None = None

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification to the client while its request runs. Never blocks."""
        shaped = shape.notification_for(self._era, method, params)
        if shaped is not None and not self.cancelled:
            self._push(jsonrpc.notification(method, shaped), weight_of(method))

    def asking(self, asks: Asks) -> Ask:
        """The way to ask the client something while its request runs."""

        async def ask(method: str, params: JsonObject) -> Fields:
            return await asks.ask(self._send, method, params)

        return ask

    def _send(self, message: bytes) -> None:
        if not self.cancelled:
            self._push(message, Weight.ANSWER)

    def finished(self) -> None:
        answer = self.answer()
        if answer is not None:
            self._push(answer.body, Weight.ANSWER)
            if self.afterwards is not None:
                self._push(self.afterwards, Weight.ANSWER)


class _FeedOut:
    """A feed that is written as soon as it falls due, from ``open`` until ``close``."""

    def __init__(self, push: Push, era: Era, subscription: RequestId | None) -> None:
        self._push = push
        self._era = era
        self._subscription = subscription
        self._feed = Feed()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._open = False

    def open(self) -> None:
        self._open = True
        self._schedule()

    def close(self) -> None:
        self._open = False
        if self._timer is not None:
            self._timer.cancel()

    def offer(self, method: str, params: JsonObject) -> None:
        self._feed.offer(method, params, self._loop.time())
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._feed.due()
        if self._open and due is not None:
            self._timer = self._loop.call_at(max(due, self._loop.time()), self._flush)

    def _flush(self) -> None:
        self._timer = None
        for notification in self._feed.take(self._loop.time()):
            message = render(notification, self._era, self._subscription)
            if message is not None:
                self._push(message, Weight.NOTICE)
        self._schedule()
