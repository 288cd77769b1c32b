"""Bytes both ways between two connections, within bounds, each direction ending by itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from sidecar.config import ProxyLimits
from sidecar.egress.framing import Body

CHUNK: Final = 64 << 10
"""Bytes read at once; a connection buffers a few times as much."""


class OverLimit(Exception):
    """A connection reached a bound; the text names the setting."""


class Meter:
    """The bounds of one connection. ``async with`` it around all that moves bytes.

    Raises:
        OverLimit: at the end, where a bound of time was reached; at once, one of bytes.
    """

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._left = limits.bytes
        self._end = 0.0
        self._timeout: asyncio.Timeout | None = None
        self._now = asyncio.get_running_loop().time

    async def __aenter__(self) -> Meter:
        self._end = self._now() + self._limits.time
        self._timeout = asyncio.timeout_at(self._until())
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._timeout is not None
        try:
            await self._timeout.__aexit__(*exc)  # type: ignore[arg-type]
        except TimeoutError:
            setting = "time" if self._now() >= self._end else "idle"
            raise OverLimit(f"egress.proxy.limits.{setting}") from None

    def moved(self, count: int) -> None:
        """Count bytes; what was idle is not any more. Raises OverLimit."""
        self._left -= count
        if self._left < 0:
            raise OverLimit("egress.proxy.limits.bytes")
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._until())

    def _until(self) -> float:
        return min(self._end, self._now() + self._limits.idle)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter) -> None:
    """Carry bytes until the end, and hand the end on: the other way may go on.

    Raises:
        OverLimit, OSError
    """
    while data := await reader.read(CHUNK):
        meter.moved(len(data))
        writer.write(data)
        # The other end sets the pace: nothing is read that cannot be passed on.
        await writer.drain()
    if writer.can_write_eof():
        with suppress(OSError):
            writer.write_eof()


async def carry(
    body: Body, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter
) -> bool:
    """Carry one body; whether it came to its end.

    Raises:
        OverLimit, OSError, BadBody
    """
    while not body.done:
        data = await reader.read(CHUNK)
        if not data:
            return body.until_close
        meter.moved(len(data))
        writer.write(body.feed(data))
        await writer.drain()
    return True


async def both(
    a: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    b: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    meter: Meter,
) -> None:
    """A tunnel: ends when both directions have, or either fails.

    Raises:
        OverLimit, OSError
    """
    tasks = [
        asyncio.create_task(pump(a[0], b[1], meter)),
        asyncio.create_task(pump(b[0], a[1], meter)),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
