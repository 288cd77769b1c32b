"""An editor on standard input, joined to the sidecar that already runs.

Nothing is decided here: each line becomes one frame of a WebSocket, each frame one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import quote

import aiohttp

from sidecar.downstream.pipes import Write, stdio_lines
from sidecar.model import RpcError
from sidecar.wire import jsonrpc
from sidecar.wire.ndjson import Oversize

__all__ = ["JoinError", "carry", "run_joined"]

log = logging.getLogger("sidecar.acp")

MOST: Final = 64 << 20
"""Bytes of one message to the editor; the sidecar's own limits are what bind."""
HEARTBEAT: Final = 30.0
CONNECT_TIMEOUT: Final = 5.0
CLOSE: Final = 2.0

_WHY: Final = {
    401: "it wants a token: name a file that holds one with --token-file, or put it into "
    "$SIDECAR_TOKEN",
    404: "there is no harness {harness!r} there that you may use; the operator names them in "
    "`harnesses`, and who may use which in `agents`",
    421: "it is not served under this host; add the name to `hosts`",
    503: "it is busy or ending; try again",
}


class JoinError(Exception):
    """The sidecar cannot be joined, or is gone. The text says what to do next."""


async def run_joined(
    base: str,
    harness: str,
    credentials: Mapping[str, str],
    *,
    limit: int,
    socket: str | None = None,
) -> None:
    """Carry standard input and output until the input ends. ``base`` is the sidecar's
    ``http://host:port``; ``limit`` is the most bytes of one line. Raises JoinError."""
    async with stdio_lines(limit) as (lines, write):
        await carry(base, harness, credentials, lines, write, socket=socket)


async def carry(
    base: str,
    harness: str,
    credentials: Mapping[str, str],
    lines: AsyncIterator[bytes | Oversize],
    write: Write,
    *,
    socket: str | None = None,
) -> None:
    """As ``run_joined``, for these lines. ``socket`` is the unix socket behind ``base``."""
    where = base if socket is None else f"unix:{socket}"
    way = aiohttp.UnixConnector(socket) if socket is not None else None
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False, connector=way) as http:
        try:
            tube = await http.ws_connect(
                f"{base}/acp/{quote(harness, safe='')}",
                headers=dict(credentials),
                heartbeat=HEARTBEAT,
                max_msg_size=MOST,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE),
            )
        except aiohttp.WSServerHandshakeError as error:
            why = _WHY.get(error.status, f"it answered {error.status}; is it a sidecar?")
            raise JoinError(f"{where}: {why.format(harness=harness)}") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise JoinError(f"{where} does not answer ({type(error).__name__})") from None
        async with tube:
            await _both_ways(tube, lines, write, where)


async def _both_ways(
    tube: aiohttp.ClientWebSocketResponse,
    lines: AsyncIterator[bytes | Oversize],
    write: Write,
    where: str,
) -> None:
    up = asyncio.create_task(_up(tube, lines, write))
    down = asyncio.create_task(_down(tube, write, where))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        up.cancel()
        if up.done() and not down.done():
            # The editor has gone: so has whoever would read what is on its way.
            down.cancel()
        outcomes = await asyncio.gather(up, down, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, JoinError):
            raise outcome
        if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
            raise outcome


async def _up(
    tube: aiohttp.ClientWebSocketResponse, lines: AsyncIterator[bytes | Oversize], write: Write
) -> None:
    async for line in lines:
        if isinstance(line, Oversize):
            why = f"a message of {line.size} bytes is too long; limits.line says how long one is"
            id_ = jsonrpc.id_from_ends(line.head, line.tail)
            await write(jsonrpc.error(id_, RpcError(jsonrpc.INVALID_REQUEST, why)))
        elif line.strip():
            with contextlib.suppress(ConnectionError):
                await tube.send_str(line.decode("utf-8", "replace"))


async def _down(tube: aiohttp.ClientWebSocketResponse, write: Write, where: str) -> None:
    async for message in tube:
        if message.type is aiohttp.WSMsgType.TEXT:
            await write(message.data.encode())
    raise JoinError(f"the sidecar at {where} has gone; start the agent again once it is back")
