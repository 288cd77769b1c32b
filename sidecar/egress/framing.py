"""Where a body ends, while its bytes pass through unchanged. Pure."""

from __future__ import annotations

import re
from typing import Final

from sidecar.egress.heads import Framing

MOST_LINE: Final = 4096
"""Bytes of a chunk's first line, and of one line of a trailer."""
MOST_TRAILER: Final = 16 << 10

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")


class BadBody(ValueError):
    """A chunked body that is none."""


class Body:
    """``feed`` gives back what belongs to the body, until ``done``."""

    def __init__(self, framing: Framing) -> None:
        self._chunked = framing == "chunked"
        # Bytes until the next line of a chunked body, or until the end; None until the close.
        self._left: int | None = None if framing == "close" else 0
        if isinstance(framing, int):
            self._left = framing
        self._line = bytearray()
        self._state = "size"
        self._trailer = 0
        self.done = framing == 0

    @property
    def until_close(self) -> bool:
        """Whether it ends with the connection."""
        return self._left is None

    def feed(self, data: bytes) -> bytes:
        """The part of ``data`` that belongs to the body; what follows its end is left out.

        Raises:
            BadBody: chunks that are none.
        """
        if self._chunked:
            return data[: self._chunks(data)]
        if self._left is None:
            return data
        part = data[: self._left]
        self._left -= len(part)
        self.done = self._left == 0
        return part

    def _chunks(self, data: bytes) -> int:
        """How many bytes of ``data`` belong to the body."""
        at = 0
        while at < len(data) and not self.done:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end + 1
            self._line += data[at:stop]
            if len(self._line) > MOST_LINE:
                raise BadBody("a line of a chunked body is too long")
            at = stop
            if end >= 0:
                if not self._line.endswith(b"\r\n"):
                    raise BadBody("a line of a chunked body does not end as it must")
                self._take(bytes(self._line[:-2]))
                self._line.clear()
        return at

    def _take(self, line: bytes) -> None:
        if self._state == "after":
            # The line end after a chunk's data.
            if line:
                raise BadBody("a chunk is longer than its size")
            self._state = "size"
        elif self._state == "size":
            size = _SIZE.fullmatch(line)
            if size is None:
                raise BadBody("a chunk has no size")
            self._left = int(size[1], 16)
            self._state = "after" if self._left else "trailer"
        elif line:
            self._trailer += len(line)
            if self._trailer > MOST_TRAILER:
                raise BadBody("a trailer is too long")
        else:
            self.done = True
