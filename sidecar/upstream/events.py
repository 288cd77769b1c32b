"""The standing event stream (GET) of a legacy HTTP session: where notifications come in.

It may break at any time and never takes the leg with it, unless the server cannot be reached.
What was missed while it was down is made up for by listing again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from sidecar.model import Unavailable
from sidecar.upstream.backoff import Backoff
from sidecar.upstream.faults import StreamEnded, Unreachable
from sidecar.upstream.http import HttpClient
from sidecar.upstream.leg import Host, lose
from sidecar.upstream.tasks import cancelled
from sidecar.wire import jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import BadMessage
from sidecar.wire.ndjson import Oversize

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from sidecar.upstream.legacy_http import LegacyHttpLeg

LONGEST_WAIT = 30.0
"""Seconds between two attempts, whatever the server asks for."""


class EventStream:
    """The owner of the stream. ``end`` closes it."""

    def __init__(self, host: Host, http: HttpClient, leg: LegacyHttpLeg) -> None:
        self._host = host
        self._http = http
        self._leg = leg
        self._settled = asyncio.Event()
        self._last_event_id = ""
        self._retry: float | None = None
        self._task = asyncio.create_task(self._run(), name=f"{host.name}: events")

    async def settled(self, within: float) -> None:
        """Return once it is open or has failed for the first time, or after so many seconds."""
        if self._settled.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._settled.wait()

    async def end(self) -> None:
        await cancelled(self._task)

    # ------------------------------------------------------------------------------- inside

    async def _run(self) -> None:
        try:
            await self._keep()
        except Unavailable as error:
            lose(self._leg.gone, error.why)
        finally:
            self._settled.set()

    async def _keep(self) -> None:
        """Come back for ever; return when the server has no such stream."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(cap=LONGEST_WAIT)
        opened = False
        session = self._leg.session
        while True:
            if self._leg.session is not session:
                session, self._last_event_id = self._leg.session, ""
            started = loop.time()
            response = await self._opened(dict(session.headers))
            if response is not None:
                if opened and response.status in (400, 404, 410) and session.id is not None:
                    response.close()
                    await self._leg.renew(session)
                elif _is_stream(response):
                    if opened:
                        self._host.stale(self._leg, renewed=False)
                    opened = True
                    self._settled.set()
                    await self._read(response)
                else:
                    response.close()
                    if response.status < 500 and not opened:
                        self._absent(response.status)
                        return
                    if response.status < 500 and response.status != 409:
                        # It had one: whoever answers now is somebody else.
                        lose(self._leg.gone, f"its event stream is gone (HTTP {response.status})")
                        return
            self._settled.set()
            backoff.ran(loop.time() - started)
            await asyncio.sleep(min(max(self._retry or 0.0, backoff.failed()), LONGEST_WAIT))

    async def _opened(self, headers: dict[str, str]) -> ClientResponse | None:
        """The answer's head; ``None`` if the connection broke. Raises Unreachable."""
        if self._last_event_id:
            headers["Last-Event-ID"] = self._last_event_id
        try:
            return await self._http.get(headers)
        except Unreachable:
            raise
        except Unavailable:
            return None

    def _absent(self, status: int) -> None:
        if status in (400, 404, 405, 406, 501):
            return  # The specification lets a server have none.
        self._host.complaints.warn(
            "event stream",
            f"refuses its event stream (HTTP {status}); changes of its lists are seen only "
            "when it is connected again",
        )

    async def _read(self, response: ClientResponse) -> None:
        try:
            async for event in self._http.events(response):
                if isinstance(event, Oversize):
                    self._host.complaints.warn(
                        "over limits.event",
                        f"sent an event of {event.size} bytes, more than limits.event allows",
                    )
                elif event.data and event.event in ("message", ""):
                    self._take(event.data)
        except StreamEnded as ended:
            self._last_event_id = ended.last_event_id
            self._retry = ended.retry

    def _take(self, data: bytes) -> None:
        try:
            self._leg.take(jsonrpc.parse(data))
        except (BadJson, BadMessage) as error:
            self._host.complaints.warn("garbage", f"speaks what is no JSON-RPC: {error}")


def _is_stream(response: ClientResponse) -> bool:
    kind = response.headers.get("Content-Type", "")
    return response.status == 200 and kind.startswith("text/event-stream")
