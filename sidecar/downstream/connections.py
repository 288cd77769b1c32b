"""The HTTP server under the agent listener: aiohttp's low-level one, made stricter.

It answers what is not HTTP without repeating any of it, and ends connections whose peer neither
reads what it is sent nor says anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger("sidecar.downstream")

IDLE = 600.0
"""Seconds that a connection may stay open between requests, or take to send one's headers."""
STALLED = 60.0
"""Seconds after which a peer that reads nothing of what waits for it is cut off."""
LINGER = 2.0
"""Seconds for which the rest of a refused body is read, so that the refusal arrives."""
SWEEP = 5.0
"""Seconds between two looks at the connections."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(RequestHandler):
    """One connection. aiohttp's own error answers would show parts of what was sent."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A fixed answer for what cannot be read as HTTP, or for a fault of ours."""
        if status >= 500:
            log.error("a request failed: %s", type(exc).__name__ if exc is not None else "timeout")
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun")
        text = "internal error\n" if status >= 500 else "this is not a valid HTTP request\n"
        response = web.Response(status=status, text=text, headers={"Server": "sidecar"})
        response.force_close()
        return response


class ConnectionServer(web.Server):
    """Protocol factory for the listening socket; ``sweep`` has to run beside it."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler, handler_cancellation=True)

    def __call__(self) -> RequestHandler:
        """A protocol for a new connection: no access log, bodies left as they come."""
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            keepalive_timeout=IDLE,
            lingering_time=LINGER,
        )

    async def sweep(self) -> None:
        """Cut off, for as long as this runs, whoever has stopped reading."""
        waiting: dict[asyncio.Transport, tuple[int, float]] = {}
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP)
            now = loop.time()
            before, waiting = waiting, {}
            for connection in self.connections:
                transport = connection.transport
                if transport is None or transport.is_closing():
                    continue
                size = transport.get_write_buffer_size()
                if size == 0:
                    continue
                last, since = before.get(transport, (size + 1, now))
                if size < last:
                    since = now
                elif now - since >= STALLED:
                    log.warning("a client read nothing for %d s; it is cut off", round(STALLED))
                    transport.abort()
                    continue
                waiting[transport] = (size, since)
