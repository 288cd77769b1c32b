"""HTTP answers: JSON ones, and refusals before there is a request to answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from sidecar.model import RequestId, RpcError
from sidecar.wire import jsonrpc
from sidecar.wire.json import encode
from sidecar.wire.jsonrpc import INVALID_REQUEST

JSON = "application/json"
_JSON_LINE = b"Content-Type: application/json\r\n"
# Up to this many bytes it is cheaper to copy a body behind its head than to write twice.
_TOGETHER = 64 << 10


class Refusal(Exception):
    """A request that is refused by an HTTP status. ``message`` says what to do instead.

    ``id`` is the JSON-RPC request's, where it was read already.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        *,
        error: RpcError | None = None,
        id: RequestId | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.error = error or RpcError(INVALID_REQUEST, message)
        self.id = id

    def reply(self, *, rest: bool = False) -> web.StreamResponse:
        """The response: a JSON-RPC error, on the REST face ``{"error": {code, message}}``."""
        if rest:
            body: dict[str, object] = {"code": self.error.code, "message": self.error.message}
            if self.error.data is not None:
                body["data"] = self.error.data
            return json_reply(encode({"error": body}), self.status, self.headers)
        return json_reply(jsonrpc.error(self.id, self.error), self.status, self.headers)


class WholeReply(web.StreamResponse):
    """A response whose body is there already, written in one piece.

    Every call gets one of these, and aiohttp's own would cost more than all of ours. Header names
    and values are ours, never a client's.
    """

    def __init__(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status=status)
        self._whole = body
        self._more = headers

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Write all of it."""
        writer = request.writer
        keep_alive = request.keep_alive if self._keep_alive is None else self._keep_alive
        self._keep_alive = keep_alive
        body = self._whole
        head = b"HTTP/1.1 %d %b\r\nContent-Length: %d\r\nDate: %b\r\n%b" % (
            self.status,
            self.reason.encode(),
            len(body),
            _date(),
            _JSON_LINE if body else b"",
        )
        if self._more:
            lines = [f"{name}: {value}\r\n" for name, value in self._more.items()]
            head += "".join(lines).encode("ascii")
        if not keep_alive:
            head += b"Connection: close\r\n"
        elif request.version < HttpVersion11:
            head += b"Connection: keep-alive\r\n"
        if request.method == "HEAD":
            body = b""
        if len(body) > _TOGETHER:
            await writer.write(head + b"\r\n")
            await writer.write(body)
        else:
            await writer.write(head + b"\r\n" + body)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """It was written by ``prepare``."""


def _date() -> bytes:
    """Now, as RFC 9110 section 5.6.7 writes it."""
    return _date_of(int(time.time()))


@lru_cache(maxsize=2)
def _date_of(now: int) -> bytes:
    return formatdate(now, usegmt=True).encode("ascii")


def json_reply(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """A response that is one JSON document."""
    return WholeReply(body, status, headers)


def empty(status: int) -> web.StreamResponse:
    """A response that is its status alone."""
    return WholeReply(b"", status)


def refused(rejection: RpcError, id: RequestId | None, status: int) -> web.StreamResponse:
    """The answer to a message that was read and is refused."""
    return json_reply(jsonrpc.error(id, rejection), status)
