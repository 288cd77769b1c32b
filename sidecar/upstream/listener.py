"""Keeps one ``subscriptions/listen`` open towards a modern server (2026-07-28, subscriptions).

A new filter means a new stream: it is opened before the old one is closed, so that no change
falls in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from sidecar.mcp.errors import MODERN_CODES
from sidecar.model import JsonObject, RpcError, Unavailable
from sidecar.upstream.backoff import Backoff
from sidecar.upstream.leg import Host, Leg
from sidecar.upstream.tasks import cancelled

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
ACK_WAIT = 5.0
"""Seconds a new stream gets to be acknowledged before the old one is closed all the same."""

Listen = Callable[[JsonObject], Awaitable[None]]
"""Sends the request and returns when its stream has ended. Raises RpcError, Unavailable."""

_CHANGES: Final = (
    ("tools", "toolsListChanged"),
    ("prompts", "promptsListChanged"),
    ("resources", "resourcesListChanged"),
)


class Listener:
    """The owner of the stream. ``end`` closes it."""

    def __init__(self, host: Host, leg: Leg, listen: Listen) -> None:
        self._host = host
        self._leg = leg
        self._listen = listen
        self._uris: set[str] = set()
        self._changed = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"{host.name}: listen")

    def watch(self, uri: str) -> None:
        """Also be told of updates of this resource."""
        self._uris.add(uri)
        self._changed.set()

    def unwatch(self, uri: str) -> None:
        self._uris.discard(uri)
        self._changed.set()

    def heard(self, method: str) -> bool:
        """Whether the notification was the stream's own affair."""
        if method == ACKNOWLEDGED:
            self._acknowledged.set()
            return True
        return False

    async def end(self) -> None:
        await cancelled(self._task)

    # ------------------------------------------------------------------------------- inside

    def _filter(self) -> JsonObject:
        wanted: JsonObject = {}
        capabilities = self._leg.hello.capabilities
        for key, name in _CHANGES:
            offer = capabilities.get(key)
            if isinstance(offer, dict) and offer.get("listChanged") is True:
                wanted[name] = True
        if self._uris:
            wanted["resourceSubscriptions"] = sorted(self._uris)
        return wanted

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(cap=30.0)
        stream: asyncio.Task[bool] | None = None
        missed = False
        try:
            while True:
                self._changed.clear()
                wanted = self._filter()
                before, stream = stream, self._open(wanted) if wanted else None
                if stream is not None and await self._ready(stream) and missed:
                    # What changed while there was no stream was told to nobody.
                    missed = False
                    self._host.stale(self._leg, renewed=False)
                await _closed(before)
                started = loop.time()
                if stream is None or not await self._ended(stream):
                    if stream is None:
                        await self._changed.wait()
                    continue
                if not stream.result():
                    return
                stream, missed = None, True
                backoff.ran(loop.time() - started)
                await asyncio.sleep(backoff.failed())
        finally:
            await _closed(stream)

    def _open(self, wanted: JsonObject) -> asyncio.Task[bool]:
        self._acknowledged.clear()
        return asyncio.create_task(
            self._stream({"notifications": wanted}), name=f"{self._host.name}: listen stream"
        )

    async def _stream(self, params: JsonObject) -> bool:
        """Run one stream to its end; whether another try makes sense."""
        try:
            await self._listen(params)
        except RpcError as error:
            if error.code not in MODERN_CODES:
                self._host.complaints.warn(
                    "listen",
                    f"refuses subscriptions/listen (error {error.code}); changes of its "
                    "lists are seen only when it is connected again",
                )
                return False
        except Unavailable:
            pass
        return True

    async def _ready(self, stream: asyncio.Task[bool]) -> bool:
        """Whether the server has acknowledged the new stream, within a bound."""
        await _first(stream, self._acknowledged, ACK_WAIT)
        return self._acknowledged.is_set()

    async def _ended(self, stream: asyncio.Task[bool]) -> bool:
        """Wait; True when the stream has ended, False when another filter is wanted."""
        await _first(stream, self._changed, None)
        return not self._changed.is_set()


async def _first(stream: asyncio.Task[bool], event: asyncio.Event, timeout: float | None) -> None:
    """Return when the stream has ended or the event is set, or after so many seconds."""
    waiter = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({stream, waiter}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        await asyncio.wait({waiter})


async def _closed(stream: asyncio.Task[bool] | None) -> None:
    if stream is not None:
        stream.cancel()
        await asyncio.wait({stream})
