"""One request answered over HTTP: as JSON, or as SSE from its first notification on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from sidecar.downstream.asks import Asks
from sidecar.downstream.auth import Grant
from sidecar.downstream.frames import Frames, Weight, weight_of
from sidecar.downstream.replies import empty, json_reply
from sidecar.downstream.running import Answer, Crowd, InFlight, Running
from sidecar.mcp import shape
from sidecar.mcp.errors import http_status
from sidecar.model import Ask, Era, Fields, JsonObject, RequestId
from sidecar.wire import jsonrpc
from sidecar.wire.sse import KEEP_ALIVE, encode_event

PING_AFTER = 15.0
"""Seconds of silence after which a comment is sent, so that nothing in between gives up."""

SSE_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "Server": "sidecar",
}


class Exchange(Running):
    """A running request and its response.

    ``notify`` is the caller's way back. ``respond`` writes the response: it commits to SSE when
    the first notification comes, or after a while of silence, and until then the answer may
    still have a status of its own. Only ``respond`` writes, so frames keep their order.
    """

    __slots__ = ("_era", "_frames", "_ping", "_quiet_since", "_sse", "_wake")

    def __init__(
        self,
        crowd: Crowd,
        grant: Grant,
        id: RequestId | None,
        calls: InFlight | None = None,
        *,
        era: Era,
        sse: bool,
    ) -> None:
        """``sse``: whether the client takes a stream for an answer."""
        super().__init__(crowd, grant, id, calls)
        self._era = era
        self._sse = sse
        self._frames: Frames | None = None
        self._wake: asyncio.Future[None] | None = None
        self._ping = False
        self._quiet_since = 0.0

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification to the client while its request runs. Never blocks."""
        if not self._sse or self.cancelled:
            return
        shaped = shape.notification_for(self._era, method, params)
        if shaped is None:
            return
        self._push(jsonrpc.notification(method, shaped), weight_of(method))

    def asking(self, asks: Asks) -> Ask | None:
        """The way to ask the client something while its request runs, on that request's stream;
        ``None`` where the client takes no stream."""
        if not self._sse:
            return None

        async def ask(method: str, params: JsonObject) -> Fields:
            return await asks.ask(self._send, method, params)

        return ask

    def _send(self, message: bytes) -> None:
        if not self.cancelled:
            self._push(message, Weight.ANSWER)

    def _push(self, message: bytes, weight: Weight) -> None:
        if self._frames is None:
            self._frames = Frames()
        self._frames.push(encode_event(message), weight)
        self.finished()

    def finished(self) -> None:
        """Something is there to be written."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def tick(self, now: float) -> None:
        """Have a comment sent once nothing was said for long."""
        if not self._sse:
            return
        if self._quiet_since == 0.0:
            self._quiet_since = now
        elif now - self._quiet_since >= PING_AFTER:
            self._quiet_since = now
            self._ping = True
            self.finished()

    async def respond(
        self, request: web.BaseRequest, *, linger: float = 0.0, json: bool = True
    ) -> web.StreamResponse:
        """Answer the request.

        A client that goes away cancels what it asked for, ``linger`` seconds later. ``json`` is
        false for a client that takes nothing but a stream.
        """
        try:
            await self._something()
            if self._frames or self._ping or not json:
                return await self._stream(request)
        except (asyncio.CancelledError, ConnectionError):
            if linger > 0:
                self.task.get_loop().call_later(linger, self.task.cancel)
            else:
                self.task.cancel()
            raise
        answer = self.answer()
        if answer is None:
            return empty(202)
        return json_reply(answer.body, self._status(answer))

    def _status(self, answer: Answer) -> int:
        if self.status is not None:
            return self.status
        return http_status(answer.code) if self._era is Era.MODERN else 200

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=SSE_HEADERS)
        await response.prepare(request)
        while True:
            self._ping, ping = False, self._ping
            data = b"".join(self._frames.take()) if self._frames else b""
            if self.task.done():
                break
            if data or ping:
                self._quiet_since = 0.0
                await response.write(data or KEEP_ALIVE)
            else:
                await self._something()
        answer = self.answer()
        await response.write_eof(data if answer is None else data + encode_event(answer.body))
        return response

    async def _something(self) -> None:
        """Return when there is something to write, or nothing more to wait for."""
        loop = self.task.get_loop()
        while not (self.task.done() or self._frames or self._ping):
            self._wake = loop.create_future()
            try:
                await self._wake
            finally:
                self._wake = None
