"""The access log: a line for each call, with what policy said of it and how it ended.

Lines are gathered on the loop and written by a thread, many at once: a reader of stderr that is
slow holds up nobody, and loses lines instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol, TextIO

from sidecar import logs
from sidecar.config import LogConfig
from sidecar.events import Bus, CallFinished
from sidecar.telemetry.worker import Worker
from sidecar.wire.visible import visible

NAME: Final = "sidecar.access"
EVERY: Final = 0.1
"""Seconds that a line waits for others at most."""
MOST: Final = 1 << 20
"""Bytes that wait to be written; beyond, lines are lost and that is told."""
LONGEST_TARGET: Final = 512
"""Characters of a target: URIs are as long as a stranger likes."""

log = logging.getLogger(NAME)


class Sink(Protocol):
    """Whoever else wants the lines: the exporter of logs."""

    def access(self, event: CallFinished, text: str) -> None:
        """Never waits."""
        ...


class Written:
    """Lines on their way to a stream. ``put`` on the loop, from ``close`` on no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._size = 0
        self._lost = 0
        self._due: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._thread = Worker("access log")

    def put(self, line: str) -> None:
        """Never waits."""
        if self._size >= MOST:
            self._lost += 1
            return
        self._lines.append(line)
        self._size += len(line) + 1
        if self._due is None and self._writing is None:
            self._due = asyncio.get_running_loop().call_later(EVERY, self._flush)

    def _flush(self) -> None:
        self._due = None
        if not self._lines and not self._lost:
            return
        lines, self._lines, self._size = self._lines, [], 0
        lost, self._lost = self._lost, 0
        self._writing = self._thread.run(lambda: self._write(lines, lost))
        self._writing.add_done_callback(self._wrote)

    def _wrote(self, done: asyncio.Future[None]) -> None:
        self._writing = None
        if not done.cancelled():
            done.exception()  # a stream that is gone has nobody to be told
        if self._lines:
            self._flush()

    def _write(self, lines: list[str], lost: int) -> None:
        if lost:
            log.warning("%d lines of the access log were lost: stderr is too slow", lost)
        if not lines:
            return
        text = "\n".join(lines) + "\n"
        try:
            fd = self._stream.fileno()
        except (OSError, ValueError):
            self._stream.write(text)
            return
        # Past Python's buffer: whoever hangs in it would break the end of the process.
        view = memoryview(text.encode("utf-8", "replace"))
        while view:
            view = view[os.write(fd, view) :]

    async def close(self, limit: float = 1.0) -> None:
        """Write what waits, for so many seconds at most. Idempotent."""
        if self._due is not None:
            self._due.cancel()
            self._flush()
        end = time.monotonic() + limit
        while self._writing is not None and time.monotonic() < end:
            await asyncio.wait([self._writing], timeout=end - time.monotonic())
            # The callback of what is done may be what begins the next.
            await asyncio.sleep(0)
        self._thread.end()


class AccessLog:
    """Listens while it is on. ``clock`` is in seconds since the epoch."""

    def __init__(
        self,
        bus: Bus,
        config: LogConfig,
        *,
        stream: TextIO | None = None,
        sink: Sink | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._bus = bus
        self._stream = stream or sys.stderr
        self._sink = sink
        self._clock = clock
        self._written: Written | None = None
        self._stop: Callable[[], None] | None = None
        self._json = True
        self.reconfigure(config)

    def reconfigure(self, config: LogConfig) -> None:
        """Begin, or end, or write otherwise."""
        self._json = logs.as_json(logs.shape_of(config, told=False), self._stream)
        if config.access and self._stop is None:
            self._stop = self._bus.listen(CallFinished, self._call)
        elif not config.access and self._stop is not None:
            self._stop()
            self._stop = None

    async def close(self) -> None:
        """Write what is left; bounded. Idempotent."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        written, self._written = self._written, None
        if written is not None:
            await written.close()

    def _call(self, event: CallFinished) -> None:
        # Levels above INFO leave no room for what is no warning.
        if not log.isEnabledFor(logging.INFO):
            return
        if self._written is None:
            self._written = Written(self._stream)
        now = self._clock()
        text = told(event)
        if self._json:
            said: dict[str, object] = {
                "time": logs.moment(now),
                "level": "info",
                "logger": NAME,
                "message": text,
                **attributes(event),
                **logs.ids(event.trace),
            }
            self._written.put(logs.encoded(said))
        else:
            at = datetime.fromtimestamp(now).strftime("%H:%M:%S")
            self._written.put(f"{at} INFO {NAME}: {visible(text)}")
        if self._sink is not None:
            self._sink.access(event, text)


def told(event: CallFinished) -> str:
    """The line for people."""
    ended = event.outcome if not event.error else f"{event.outcome} ({event.error})"
    if event.error == event.outcome:
        ended = event.outcome
    decided = f"; {event.decision} by {event.rule}" if event.decision else ""
    return (
        f"{event.method} {clipped(event.target)} for {event.principal}: {ended} "
        f"in {event.seconds * 1000:.0f} ms{decided}"
    )


def attributes(event: CallFinished) -> dict[str, str | float | int]:
    """What a program wants to know of it. Absent is absent."""
    said: dict[str, str | float | int] = {
        "call": event.call,
        "method": event.method,
        "server": event.server,
        "target": clipped(event.target),
        "principal": event.principal,
        "session": event.session,
        "decision": event.decision,
        "rule": event.rule,
        "outcome": event.outcome,
        "error": event.error,
        "seconds": round(event.seconds, 6),
        "attempts": event.attempts,
    }
    return {key: value for key, value in said.items() if value != ""}


def clipped(target: str) -> str:
    """A target that is not longer than a line should be."""
    return target if len(target) <= LONGEST_TARGET else target[:LONGEST_TARGET] + "…"
