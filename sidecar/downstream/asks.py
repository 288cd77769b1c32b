"""Requests of ours that a legacy client has not answered yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from sidecar.mcp import errors
from sidecar.mcp.inbound import Reply
from sidecar.model import Fields, JsonObject
from sidecar.wire import jsonrpc

MOST: Final = 64
"""Requests that one client may owe answers to at once."""


class Asks:
    """One session's. Each ends with the request of the client's on whose behalf it is asked."""

    __slots__ = ("_next", "_open")

    def __init__(self) -> None:
        self._next = 1
        self._open: dict[int, asyncio.Future[Fields]] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def ask(self, send: Callable[[bytes], None], method: str, params: JsonObject) -> Fields:
        """The client's answer. ``send`` is the way to it, and never blocks.

        There is no bound of its own to how long it takes: whoever asks has one. Cancelled, the
        request is withdrawn (2025-11-25, cancellation).

        Raises:
            RpcError: the client's error, or it owes too many answers.
        """
        if len(self._open) >= MOST:
            raise errors.internal(f"the client owes answers to {MOST} requests already")
        id_, self._next = self._next, self._next + 1
        answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        self._open[id_] = answer
        try:
            send(jsonrpc.request(id_, method, params))
            return await answer
        except asyncio.CancelledError:
            gone: JsonObject = {"requestId": id_, "reason": "an answer is no longer needed"}
            send(jsonrpc.notification("notifications/cancelled", gone))
            raise
        finally:
            del self._open[id_]

    def answered(self, reply: Reply) -> None:
        """The client answered something; what was not asked, or is over, is ignored."""
        answer = self._open.get(reply.id) if type(reply.id) is int else None
        if answer is None or answer.done():
            return
        if reply.error is not None:
            answer.set_exception(reply.error)
        else:
            answer.set_result(reply.result or {})
