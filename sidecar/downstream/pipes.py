"""Standard input and output as lines: the edge of every stdio face.

Whatever else the process prints goes to standard error meanwhile, so that only messages are on
standard output.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sidecar.wire import ndjson
from sidecar.wire.ndjson import Lines, Oversize

CHUNK = 64 << 10
"""Bytes that are read at once."""
FLUSH = 2.0
"""Seconds that what was written last may take to leave."""

Write = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def stdio_lines(limit: int) -> AsyncIterator[tuple[AsyncIterator[bytes | Oversize], Write]]:
    """The lines of standard input, each at most ``limit`` bytes, and the way to write one.

    ``write`` takes a message without its line end, returns when there is room for the next, and
    raises ``ConnectionError`` once nobody reads.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    try:
        async with (
            open_input(incoming) as chunks,
            open_output(outgoing) as send,
        ):

            async def write(message: bytes) -> None:
                await send(ndjson.line(message))

            yield lines_of(chunks, limit), write
    finally:
        # What was printed meanwhile is still in Python's buffer.
        sys.stdout.flush()
        os.dup2(outgoing, 1)
        os.close(outgoing)
        os.close(incoming)


async def lines_of(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes | Oversize]:
    """Cut chunks into lines; what stands after the last line end is a line too."""
    lines = Lines(limit)
    async for chunk in chunks:
        for line in lines.feed(chunk):
            yield line
    last = lines.finish()
    if last is not None:
        yield last


@asynccontextmanager
async def open_input(fd: int) -> AsyncIterator[AsyncIterator[bytes]]:
    """The chunks that come in at ``fd``, which stays the caller's."""
    loop = asyncio.get_running_loop()
    if not _can_be_polled(fd):
        yield _read_in_thread(fd)
        return
    reader = asyncio.StreamReader(CHUNK)
    pipe = os.fdopen(os.dup(fd), "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        yield _chunks(reader)
    finally:
        transport.close()


@asynccontextmanager
async def open_output(fd: int) -> AsyncIterator[Write]:
    """The way to send bytes out at ``fd``, which stays the caller's."""
    if not _can_be_polled(fd):

        async def write(data: bytes) -> None:
            # A file takes what it is given without waiting for anybody.
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

        yield write
        return
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(os.dup(fd), "wb", buffering=0)
    transport, flow = await loop.connect_write_pipe(_Flow, pipe)

    async def send(data: bytes) -> None:
        if flow.lost:
            raise ConnectionResetError("nobody reads the output any more")
        transport.write(data)
        await flow.room()

    try:
        yield send
        transport.close()
        async with asyncio.timeout(FLUSH):
            await flow.closed.wait()
    except TimeoutError:
        pass
    finally:
        if not flow.closed.is_set():
            transport.abort()


class _Flow(asyncio.Protocol):
    """Whether there is room to write, and whether there ever will be again."""

    def __init__(self) -> None:
        self.lost = False
        self.closed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._room.set()
        self.closed.set()

    async def room(self) -> None:
        await self._room.wait()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while chunk := await reader.read(CHUNK):
        yield chunk


async def _read_in_thread(fd: int) -> AsyncIterator[bytes]:
    """Read what the loop cannot wait for, a file say, one chunk ahead."""
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = threading.Semaphore(1)
    own = os.dup(fd)

    def read() -> None:
        try:
            while True:
                wanted.acquire()
                chunk = os.read(own, CHUNK)
                loop.call_soon_threadsafe(found.put_nowait, chunk)
                if not chunk:
                    return
        except (OSError, RuntimeError):
            # The loop has gone, or what was read has: there is nobody left to tell.
            return
        finally:
            os.close(own)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await found.get():
        wanted.release()
        yield chunk


def _can_be_polled(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
