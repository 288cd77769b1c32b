"""Newline-delimited JSON: one message a line, as MCP's stdio transport has it.

Time is linear in what is fed, however it is cut into chunks: nothing is looked at twice.
"""

from __future__ import annotations

from dataclasses import dataclass

ENDS = 256
"""How many bytes of each end an ``Oversize`` keeps."""


@dataclass(frozen=True, slots=True)
class Oversize:
    """Something longer than the limit, not kept: its size in bytes, and 256 bytes of each end.

    For a message shorter than 512 bytes the ends overlap.
    """

    size: int
    head: bytes
    tail: bytes


class Lines:
    """Cuts a stream into lines of at most ``limit`` bytes, the line's end not counted.

    Lines end in LF; a CR before it is dropped, and so are empty lines. Memory is bounded by
    ``limit`` and the chunk that is being fed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes | Oversize]:
        """Take the next bytes of the stream, return the lines that are now complete."""
        pieces = data.split(b"\n")
        last = pieces.pop()
        found: list[bytes | Oversize] = []
        for piece in pieces:
            if self._size:
                self._add(piece)
                line = self._take()
            else:
                line = self._cut(piece)
            if line:
                found.append(line)
        if last:
            self._add(last)
        return found

    def finish(self) -> bytes | Oversize | None:
        """The stream has ended: return what stands after the last LF, if anything does."""
        return self._take() or None if self._size else None

    def _cut(self, line: bytes) -> bytes | Oversize:
        if line.endswith(b"\r"):
            line = line[:-1]
        if len(line) > self._limit:
            return Oversize(len(line), line[:ENDS], line[-ENDS:])
        return b"" if line.isspace() else line

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        # One byte more than the limit may still be the CR of a line's end.
        if self._size <= self._limit + 1:
            self._parts.append(piece)
            return
        if self._parts:
            start = b"".join(self._parts)
            self._parts.clear()
            self._head, self._tail = start[:ENDS], start[-ENDS - 1 :]
        if len(self._head) < ENDS:
            self._head += piece[: ENDS - len(self._head)]
        # A byte more than is kept, which may be the CR.
        self._tail = (self._tail + piece[-ENDS - 1 :])[-ENDS - 1 :]

    def _take(self) -> bytes | Oversize:
        size, self._size = self._size, 0
        if size <= self._limit + 1:
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            return self._cut(line)
        head, tail = self._head, self._tail
        self._head = self._tail = b""
        if tail.endswith(b"\r"):
            size -= 1
            tail = tail[:-1]
            head = head[:size]
        return Oversize(size, head, tail[-ENDS:])


def line(message: bytes) -> bytes:
    """Write a JSON message as one line. Line ends inside of it can only be space between tokens."""
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return message + b"\n"
