"""A way to a server of TCP that can be cut and opened again: a partition of the network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Relay:
    """Passes bytes on between its port and another. ``cut`` breaks what is connected and takes
    nobody in until ``mend``."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._passing: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._taken, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        writers = [writer]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._behind)
            writers.append(back)
            await asyncio.gather(_pass(reader, back), _pass(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._passing.discard(task)
            for each in writers:
                each.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    """In front of ``port`` of this machine."""
    passing = Relay(port)
    await passing.mend()
    try:
        yield passing
    finally:
        await passing.cut()
