"""The awkward server over stdio, and what tests read of such a child afterwards.

The child appends to its record file, one JSON object a line: ``{"started": pid}``, each message
it got as ``{"got": …}``, and ``{"cancelled": id}`` for each request that was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tests.cases.awkward.behaviour import Behaviour
from tests.cases.awkward.server import (
    CHANGES,
    META_SUBSCRIPTION,
    META_VERSION,
    Awkward,
    Message,
    Request,
)

LINE_LIMIT = 1 << 28
ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Child:
    """How a test configures a stdio server, and looks back at it."""

    behaviour: Behaviour
    record: Path

    def config(self, **more: Any) -> dict[str, Any]:
        """Its entry under ``servers:``."""
        program = [sys.executable, "-m", "tests.cases.awkward"]
        options = ["--record", str(self.record), "--behave", self.behaviour.to_json()]
        return {"command": [*program, *options], "cwd": str(ROOT), **more}

    def events(self) -> list[dict[str, Any]]:
        if not self.record.exists():
            return []
        # The last line may still be in the making.
        return [json.loads(line) for line in self.record.read_text().split("\n")[:-1]]

    def got(self, method: str | None = None) -> list[Message]:
        messages = [event["got"] for event in self.events() if "got" in event]
        return [m for m in messages if method is None or m.get("method") == method]

    def started(self) -> list[int]:
        """The process ids of each time that it was started."""
        return [event["started"] for event in self.events() if "started" in event]

    def cancelled(self) -> list[int | str]:
        return [event["cancelled"] for event in self.events() if "cancelled" in event]


@dataclass
class StdioRequest(Request):
    """A request that came in on stdin."""

    out: BinaryIO = field(default_factory=lambda: sys.stdout.buffer)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        write(self.out, {"jsonrpc": "2.0", "method": method, "params": params})

    async def send_raw(self, raw: str) -> None:
        self.out.write(raw.encode() + b"\n")
        self.out.flush()

    async def drop(self) -> None:
        os._exit(1)


@dataclass
class StdioListener:
    """The one client there is; in the modern era, each of its listen requests."""

    out: BinaryIO
    session: str | None = None
    subscription: int | str | None = None
    wanted: dict[str, Any] = field(default_factory=dict)

    @property
    def uris(self) -> tuple[str, ...]:
        return tuple(self.wanted.get("resourceSubscriptions", ()))

    async def send(self, method: str, params: dict[str, Any]) -> None:
        if self.subscription is not None:
            if method in CHANGES and not self.wanted.get(CHANGES[method]):
                return
            params = {**params, "_meta": {META_SUBSCRIPTION: self.subscription}}
        write(self.out, {"jsonrpc": "2.0", "method": method, "params": params})


def write(out: BinaryIO, message: Message) -> None:
    out.write(json.dumps(message).encode() + b"\n")
    out.flush()


class StdioServer:
    """Reads requests until stdin ends, and answers each in a task of its own."""

    def __init__(self, behaviour: Behaviour, record: Path | None) -> None:
        self.server = Awkward(behaviour)
        self.out = sys.stdout.buffer
        self.server.listeners.append(StdioListener(self.out))
        self._record = record
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, event: dict[str, Any]) -> None:
        if self._record is not None:
            with self._record.open("a") as file:
                file.write(json.dumps(event) + "\n")

    async def run(self) -> None:
        self.note({"started": os.getpid()})
        behaviour = self.server.behaviour
        if behaviour.ignore_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        await asyncio.sleep(behaviour.start_delay)
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            self._take(json.loads(line))
        if behaviour.ignore_eof:
            await asyncio.to_thread(time.sleep, 60)

    def _take(self, message: Message) -> None:
        self.note({"got": message})
        method, params = message.get("method"), message.get("params") or {}
        if method == "server/discover":
            if self.server.behaviour.discover == "exit":
                os._exit(1)
            if self.server.behaviour.discover == "silent":
                return
        if method is None:
            self.server.answers.append(message)
        elif method == "subscriptions/listen" and "modern" in self.server.behaviour.eras:
            self._keep(self._listen(message["id"], params.get("notifications", {})))
        elif "id" in message:
            era = "modern" if META_VERSION in params.get("_meta", {}) else "legacy"
            request = StdioRequest(message["id"], method, params, era)
            self._keep(self._answer(request))
        elif method == "notifications/cancelled":
            self._leave(params["requestId"])
            self.server.cancel(None, params["requestId"])
        elif method == "notifications/initialized" and self.server.behaviour.ask_on_connect:
            for number, asked in enumerate(("roots/list", "awkward/unknown")):
                write(self.out, {"jsonrpc": "2.0", "id": f"ask-{number}", "method": asked})

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, request_id: int | str, wanted: dict[str, Any]) -> None:
        listener = StdioListener(self.out, None, request_id, wanted)
        await listener.send("notifications/subscriptions/acknowledged", {"notifications": wanted})
        # Whoever listens this way is not told the other way too.
        listeners = self.server.listeners
        listeners[:] = [x for x in listeners if getattr(x, "subscription", None) is not None]
        listeners.append(listener)

    def _leave(self, request_id: int | str) -> None:
        listeners = self.server.listeners
        listeners[:] = [x for x in listeners if getattr(x, "subscription", None) != request_id]

    async def _answer(self, request: StdioRequest) -> None:
        try:
            write(self.out, await self.server.run(request))
        except asyncio.CancelledError:
            self.note({"cancelled": request.id})
            raise


def serve(behaviour: Behaviour, record: Path | None) -> None:
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(StdioServer(behaviour, record).run())
