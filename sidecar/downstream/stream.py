"""A stream of notifications over HTTP: a legacy session's GET, or ``subscriptions/listen``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import web

from sidecar.downstream.exchange import PING_AFTER, SSE_HEADERS
from sidecar.downstream.feed import Feed, Notification
from sidecar.model import JsonObject
from sidecar.wire.sse import KEEP_ALIVE, encode_event

MOST_WRITE = 256 << 10
"""Bytes that may wait in the socket of a listener before it counts as one that does not read."""


class Stream:
    """One open stream. ``offer`` fills it from anywhere, ``run`` writes it from its handler.

    ``render`` makes a notification the message that this client gets.
    """

    __slots__ = ("_ended", "_feed", "_loop", "_render", "_request", "_wake", "overflowed")

    def __init__(
        self, request: web.BaseRequest, render: Callable[[Notification], bytes | None]
    ) -> None:
        self._request = request
        self._render = render
        self._feed = Feed()
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self._ended = False
        self.overflowed = False

    def offer(self, method: str, params: JsonObject) -> None:
        """Tell the client something, soon. Never blocks; a client that does not read is cut off."""
        if self._ended:
            return
        self._feed.offer(method, params, self._loop.time())
        if self._feed.overflowed:
            self.overflowed = True
            self.end()
            # Its handler may be stuck in a write that only this can end.
            if self._request.transport is not None:
                self._request.transport.abort()
        self._woken()

    def end(self) -> None:
        """Finish gracefully: what is due is still written, then ``run`` returns."""
        self._ended = True
        self._woken()

    async def run(
        self, first: Sequence[bytes] = (), last: Callable[[], bytes] | None = None
    ) -> web.StreamResponse:
        """Write ``first``, then notifications until ``end``, then ``last``."""
        response = web.StreamResponse(headers=SSE_HEADERS)
        await response.prepare(self._request)
        # A comment at once: some clients wait for the first byte before they go on.
        await response.write(b"".join(map(encode_event, first)) or KEEP_ALIVE)
        ping_at = self._loop.time() + PING_AFTER
        while not self._ended:
            now = self._loop.time()
            data = self._due(now)
            if not data and now >= ping_at:
                data = KEEP_ALIVE
            if data:
                await response.write(data)
                ping_at = self._loop.time() + PING_AFTER
                continue
            due = self._feed.due()
            await self._wait((ping_at if due is None else min(ping_at, due)) - now)
        rest = self._due(float("inf"))
        await response.write_eof(rest + encode_event(last()) if last is not None else rest)
        return response

    def _due(self, now: float) -> bytes:
        messages = [self._render(notification) for notification in self._feed.take(now)]
        return b"".join([encode_event(message) for message in messages if message is not None])

    def _woken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _wait(self, timeout: float) -> None:
        self._wake = self._loop.create_future()
        handle = self._loop.call_later(max(timeout, 0.0), self._woken)
        try:
            await self._wake
        finally:
            handle.cancel()
            self._wake = None
