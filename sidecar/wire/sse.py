"""Server-sent events as the WHATWG HTML standard reads them, §9.2 "Server-sent events".

Time is linear in what is fed, however it is cut into chunks: nothing is looked at twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sidecar.wire.ndjson import ENDS, Oversize

KEEP_ALIVE = b": ping\n\n"
"""A comment: readers skip it, and whatever stands in between sees a live connection."""

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
# More digits than any delay needs, and few enough to be read at once.
_RETRY_DIGITS = 12


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. ``data`` is what its ``data:`` lines say, joined by LF.

    ``id`` is the stream's last event id when this event came, empty before the first one.
    ``retry`` is in milliseconds, ``None`` unless this very event has it.
    """

    data: bytes
    event: str = "message"
    id: str = ""
    retry: int | None = None


class SseParser:
    """Cuts a stream into events whose lines have at most ``limit`` bytes together.

    A longer one is not kept: it comes out as ``Oversize`` (the ends are those of its lines), and
    the next event is read as usual. Memory is bounded by ``limit`` and the chunk being fed.
    ``last_event_id`` and ``retry`` (milliseconds) follow the stream, also where no event has
    data: they are what a reader needs to come back.
    """

    def __init__(self, limit: int) -> None:
        self.last_event_id = ""
        self.retry: int | None = None
        self._limit = limit
        self._at_start = True
        self._after_cr = False
        # The line that has not ended yet.
        self._parts: list[bytes] = []
        self._partial = 0
        # The event that has not ended yet.
        self._data: list[bytes] = []
        self._event = b""
        self._event_retry: int | None = None
        self._size = 0
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> list[SseEvent | Oversize]:
        """Take the next bytes of the stream, return the events that are now complete."""
        found: list[SseEvent | Oversize] = []
        if not data:
            return found
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            self._after_cr = False
            if not data:
                return found
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pieces = data.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            line = piece
            if self._partial:
                self._add(piece)
                line = self._take()
            elif piece:
                self._count(piece)
            if self._at_start:
                self._at_start = False
                line = line.removeprefix(_BOM)
            if line:
                if self._size <= self._limit:
                    self._line(line)
            elif (event := self._dispatch()) is not None:
                found.append(event)
        if last:
            self._add(last)
        return found

    def _add(self, piece: bytes) -> None:
        """Keep part of a line, unless its event is over the limit already."""
        self._partial += len(piece)
        self._count(piece)
        if self._size <= self._limit:
            self._parts.append(piece)

    def _take(self) -> bytes:
        """The line that has just ended; when it was not kept, something that is not empty."""
        parts, self._parts, self._partial = self._parts, [], 0
        return b"".join(parts) or b":"

    def _count(self, piece: bytes) -> None:
        """Add to the event's size; from the limit on keep its two ends and nothing else."""
        self._size += len(piece)
        if self._size <= self._limit:
            return
        if not self._tail:
            start = b"".join((*self._data, *self._parts))
            self._data.clear()
            self._parts.clear()
            self._head, self._tail = start[:ENDS], start[-ENDS:]
        if len(self._head) < ENDS:
            self._head += piece[: ENDS - len(self._head)]
        self._tail = (self._tail + piece[-ENDS:])[-ENDS:]

    def _line(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        if colon and not name:
            # A comment costs nothing once it has been read.
            self._size -= len(line)
            return
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value
        elif name == b"id":
            if b"\0" not in value:
                self.last_event_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _RETRY_DIGITS:
            self.retry = self._event_retry = int(value)

    def _dispatch(self) -> SseEvent | Oversize | None:
        data, event, retry, size = self._data, self._event, self._event_retry, self._size
        self._data, self._event, self._event_retry, self._size = [], b"", None, 0
        if size > self._limit:
            head, tail = self._head, self._tail
            self._head = self._tail = b""
            return Oversize(size, head, tail)
        if not data:
            return None
        body = data[0] if len(data) == 1 else b"\n".join(data)
        name = event.decode("utf-8", "replace") if event else "message"
        return SseEvent(body, name, self.last_event_id, retry)


def encode_event(data: bytes, *, event: str = "message", id: str | None = None) -> bytes:
    """Write one event. Line ends inside of ``data`` come out as LF on the other side.

    Raises:
        ValueError: ``event`` or ``id`` holds a line end or NUL.
    """
    head = f"event: {event}\n"
    if id is not None:
        head += f"id: {id}\n"
    if head.count("\n") != (1 if id is None else 2) or "\r" in head or "\0" in head:
        raise ValueError("an event's name and id are one line each")
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"%sdata: %s\n\n" % (head.encode(), data)
