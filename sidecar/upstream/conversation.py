"""Requests and answers over one stream in each direction: stdio, and the old HTTP+SSE.

No I/O of its own: ``send`` writes a message, and whoever reads calls ``feed``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal

from sidecar.model import Caller, Fields, JsonObject, Unavailable
from sidecar.upstream.faults import too_large
from sidecar.upstream.leg import Host
from sidecar.upstream.notices import progress, read_params
from sidecar.upstream.replies import reply
from sidecar.wire import json, jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import BadMessage, Message
from sidecar.wire.ndjson import Oversize

Send = Callable[[bytes], Awaitable[None]]
"""Writes one message. Raises Unavailable (``ran`` ``no``) when surely nothing was sent."""

Prepare = Callable[[JsonObject, int, Caller], JsonObject]
"""The params to send: with the request's progress token, trace and envelope."""

CANCEL_TIMEOUT = 2.0
"""Seconds that writing a cancellation or a reply may take."""

_ID_FIRST = re.compile(rb'^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

_END = 256
"""Bytes at the end of a line in which the id is looked for."""


@dataclass(slots=True, eq=False)
class _Pending:
    answer: asyncio.Future[Message]
    caller: Caller


class Conversation:
    """Who waits for which answer on one leg."""

    def __init__(
        self,
        host: Host,
        send: Send,
        prepare: Prepare,
        heard: Callable[[str, JsonObject], None],
        limit: Literal["line", "event"],
    ) -> None:
        """``heard`` takes the notifications that belong to no running request."""
        self._host = host
        self._send = send
        self._heard_by = heard
        self._limit = limit
        self._ids = count(1)
        self._newest = 0
        self._pending: dict[int, _Pending] = {}
        self._over: Unavailable | None = None
        self.prepare = prepare
        self.version = ""
        """Of MCP, once the server has said which one it speaks."""
        self.log_alone = False
        """Log messages belong to the one running call that asked for them, if it is one."""

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        """Send a request and wait for its answer. Cancelled, it tells the server."""
        if self._over is not None:
            raise self._unsent()
        id = self._newest = next(self._ids)
        body = jsonrpc.request(id, method, self.prepare(params, id, caller))
        if caller.sent is not None:
            caller.sent(id, self.version)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[id] = _Pending(answer, caller)
        try:
            await self._send(body)
            message = await answer
        except asyncio.CancelledError:
            if id in self._pending and self._over is None and method != "initialize":
                self._cancel(id)
            raise
        finally:
            self._pending.pop(id, None)
        return read_result(self._host, message)

    async def tell(self, method: str) -> None:
        """Send a notification without params, before anything that is sent later."""
        await self._send(jsonrpc.notification(method, None))

    def feed(self, data: bytes | Oversize) -> None:
        """Take what the server said. Never raises: garbage costs itself and one warning."""
        if isinstance(data, Oversize):
            self._oversize(data)
            return
        try:
            message = jsonrpc.parse(data)
        except (BadJson, BadMessage) as error:
            self._host.complaints.warn("garbage", f"speaks what is no JSON-RPC: {error}")
            self._garbled(data, error)
            return
        if message.is_response:
            self._answered(message)
        elif message.is_request:
            self._later(reply(message))
        else:
            self._heard(message)

    def over(self, why: str) -> None:
        """The stream has ended: whoever waits has failed, and whoever comes too late will."""
        if self._over is not None:
            return
        self._over = Unavailable(self._host.name, why, ran="maybe")
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(
                    Unavailable(self._host.name, f"{why} before it answered", ran="maybe")
                )

    @property
    def busy(self) -> int:
        """How many wait for an answer."""
        return len(self._pending)

    # ------------------------------------------------------------------------------- inside

    def _unsent(self) -> Unavailable:
        assert self._over is not None
        return Unavailable(self._host.name, self._over.why, ran="no")

    def _answered(self, message: Message) -> None:
        id = message.id
        pending = self._pending.pop(id, None) if isinstance(id, int) else None
        if pending is not None:
            if not pending.answer.done():
                pending.answer.set_result(message)
        elif not (isinstance(id, int) and 0 < id <= self._newest):
            # An id we did use is a late answer to what was cancelled or timed out.
            self._host.complaints.warn("stray answer", "answers what nobody asked")

    def _heard(self, message: Message) -> None:
        try:
            params = read_params(message, self._host.limits.depth)
        except BadJson as error:
            self._host.complaints.warn("garbage", f"sends a notification we cannot read: {error}")
            return
        if message.method == "notifications/progress":
            token = params.get("progressToken")
            pending = self._pending.get(token) if type(token) is int else None
            if pending is not None:
                progress(pending.caller, params)
        elif message.method == "notifications/message" and (caller := self._listener()) is not None:
            if self._host.wants(params.get("level"), caller):
                caller.notify(message.method, params)
        elif message.method != "notifications/cancelled":
            self._heard_by(message.method, params)

    def _listener(self) -> Caller | None:
        """The one caller whose log message it must be, where that can be told."""
        if not self.log_alone:
            return None
        callers = [p.caller for p in self._pending.values() if p.caller.log_level is not None]
        return callers[0] if len(callers) == 1 else None

    def _garbled(self, data: bytes, error: BadJson | BadMessage) -> None:
        """Only the request that it answers suffers, if that can be told, and at once."""
        if isinstance(error, BadMessage):
            id = error.id if error.id is not None and "method" not in json.fields(data) else None
        else:
            match = _ID_FIRST.match(data) or _ID_LAST.search(data, max(0, len(data) - _END))
            answers = match is not None and (b'"result"' in data or b'"error"' in data)
            id = int(match[1]) if match is not None and answers else None
        pending = self._pending.pop(id, None) if type(id) is int else None
        if pending is not None and not pending.answer.done():
            why = f"answered with what is no JSON-RPC message: {error}"
            pending.answer.set_exception(Unavailable(self._host.name, why, ran="maybe"))

    def _oversize(self, found: Oversize) -> None:
        """Only the request that it answers suffers, if that can be told."""
        # An event's head may begin with the name of its field.
        head = found.head.removeprefix(b"data:") if self._limit == "event" else found.head
        match = _ID_FIRST.match(head) or _ID_LAST.search(found.tail)
        pending = self._pending.pop(int(match[1]), None) if match else None
        if pending is None and len(self._pending) == 1:
            pending = self._pending.popitem()[1]
        error = too_large(self._host.name, self._host.limits, self._limit, found.size)
        if pending is None:
            self._host.complaints.warn(f"over limits.{self._limit}", error.why)
        elif not pending.answer.done():
            pending.answer.set_exception(error)

    def _cancel(self, id: int) -> None:
        self._later(
            jsonrpc.notification(
                "notifications/cancelled",
                {"requestId": id, "reason": "the caller gave up or ran out of time"},
            )
        )

    def _later(self, body: bytes) -> None:
        async def job() -> None:
            try:
                async with asyncio.timeout(CANCEL_TIMEOUT):
                    await self._send(body)
            except (Unavailable, TimeoutError):
                pass  # It will not hear it; its end of the leg is gone or stuck.

        self._host.tasks.spawn(job(), name=f"{self._host.name}: a message")


def read_result(host: Host, message: Message) -> Fields:
    """The fields of an answer's result, or its error raised."""
    if message.error is not None:
        raise jsonrpc.error_of(message.error)
    raw = message.result
    assert raw is not None
    cap = host.limits.result
    if len(memoryview(raw)) > cap:
        raise too_large(host.name, host.limits, "result", len(memoryview(raw)))
    try:
        return json.fields(raw)
    except BadJson as error:
        raise Unavailable(
            host.name, f"answered with a result that cannot be read: {error}", ran="maybe"
        ) from None
