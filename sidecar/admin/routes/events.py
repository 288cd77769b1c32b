"""``GET /v1/events``: what happens, live, as server-sent events (WHATWG HTML, 9.2).

Events are named ``call.waiting``, ``call.approved`` …, ``tools.changed``, ``server.ready`` …,
``session.opened``, ``session.closed``, ``labels.changed``, ``policy.loaded``, ``policy.faulty``,
``work.changed`` (once a second at most) and ``work.swept``. They say that something is otherwise,
not how: a reader asks the route of the noun again. One that does not read loses events, and is
told by ``lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from aiohttp import web

from sidecar.admin.api import STREAMS, Answer, Problem, Route
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.admin.view import present
from sidecar.events import (
    Bus,
    LabelsChanged,
    LegChanged,
    ParkedChanged,
    PolicyLoaded,
    SessionClosed,
    SessionOpened,
    SessionUpdate,
    Swept,
    ToolsChanged,
    WorkChanged,
)
from sidecar.model import JsonObject
from sidecar.wire import json, sse

MOST_READERS = 64
MOST_QUEUED = 1000
KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent, so that nothing between takes it for dead."""
GAP = 1.0
"""Seconds between two events about the works of coding agents, which say something all the time."""


class Reader:
    """The events that one reader has not been sent yet."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._lost = False
        self._news = asyncio.Event()
        self.ended = False

    def end(self) -> None:
        """There will be no more, and nobody waits for it."""
        self.ended = True
        self._news.set()

    def tell(self, name: str, body: JsonObject) -> None:
        """Queue one event; never waits."""
        if len(self._waiting) >= MOST_QUEUED:
            self._waiting.clear()
            self._lost = True
        self._waiting.append(sse.encode_event(json.encode(body), event=name))
        self._news.set()

    async def take(self) -> bytes:
        """All that there is, or a keep-alive after a while."""
        try:
            async with asyncio.timeout(KEEP_ALIVE):
                await self._news.wait()
        except TimeoutError:
            return sse.KEEP_ALIVE
        self._news.clear()
        found = b"".join(self._waiting)
        self._waiting.clear()
        if self._lost:
            self._lost = False
            found = sse.encode_event(b"{}", event="lost") + found
        return found


class Events:
    """Every reader, fed by the bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._readers: set[Reader] = set()
        self._stops: list[Callable[[], None]] = []
        self._worked = float("-inf")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """One reader, until it leaves."""
        if len(self._readers) >= MOST_READERS:
            raise Problem(503, "too_many", f"{MOST_READERS} readers are there already")
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        reader = Reader()
        self._add(reader)
        streams = request.app[STREAMS]
        streams.add(reader.end)
        try:
            await response.prepare(request)
            await response.write(sse.KEEP_ALIVE)
            with contextlib.suppress(ConnectionError):
                while not reader.ended:
                    await response.write(await reader.take())
        finally:
            streams.discard(reader.end)
            self._remove(reader)
        return response

    def _add(self, reader: Reader) -> None:
        if not self._readers:
            listen = self._bus.listen
            self._stops = [
                listen(ParkedChanged, self._parked),
                listen(ToolsChanged, self._tools),
                listen(LegChanged, self._leg),
                listen(SessionOpened, self._opened),
                listen(SessionClosed, self._closed),
                listen(LabelsChanged, self._labels),
                listen(PolicyLoaded, self._policy),
                listen(SessionUpdate, self._work),
                listen(WorkChanged, self._run),
                listen(Swept, self._swept),
            ]
        self._readers.add(reader)

    def _remove(self, reader: Reader) -> None:
        self._readers.discard(reader)
        if not self._readers:
            while self._stops:
                self._stops.pop()()

    def _tell(self, name: str, body: JsonObject) -> None:
        for reader in self._readers:
            reader.tell(name, body)

    def _parked(self, event: ParkedChanged) -> None:
        self._tell(
            f"call.{event.state}",
            present(
                id=event.call,
                state=event.state,
                before=event.before or None,
                tool=event.target,
                server=event.server,
                principal=event.principal,
                rules=list(event.rules),
                answered_by=event.by or None,
                why=event.why or None,
                ended=event.ended or None,
            ),
        )

    def _tools(self, event: ToolsChanged) -> None:
        self._tell("tools.changed", {"server": event.server, "count": event.count})

    def _leg(self, event: LegChanged) -> None:
        self._tell(f"server.{event.state}", {"server": event.server})

    def _opened(self, event: SessionOpened) -> None:
        self._tell("session.opened", {"principal": event.principal})

    def _closed(self, event: SessionClosed) -> None:
        self._tell("session.closed", {"principal": event.principal})

    def _labels(self, event: LabelsChanged) -> None:
        self._tell("labels.changed", {"principal": event.principal, "labels": list(event.labels)})

    def _policy(self, event: PolicyLoaded) -> None:
        name = "policy.faulty" if event.faulty else "policy.loaded"
        self._tell(name, present(revision=event.revision or None))

    def _work(self, event: SessionUpdate) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._worked >= GAP:
            self._worked = now
            self._tell("work.changed", {"harness": event.harness, "work": event.work})

    def _run(self, event: WorkChanged) -> None:
        self._tell("work.changed", {"harness": event.harness, "work": event.work})

    def _swept(self, event: Swept) -> None:
        self._tell("work.swept", {"removed": len(event.removed), "kept": len(event.kept)})


def routes(bus: Bus) -> list[Route]:
    """The one route."""
    events = Events(bus)
    return [
        Route(
            "GET",
            "/v1/events",
            events.stream,
            Role.VIEWER,
            "events",
            "What happens, live, until the reader leaves.",
            {
                200: Answer("Events, each with a JSON object.", None, "text/event-stream"),
                **refusals(s503="too many read already"),
            },
        )
    ]
