"""HTTP answers: JSON ones, and refusals before there is a request to answer."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from sidecar.model import RequestId, RpcError
from sidecar.wire import jsonrpc
from sidecar.wire.json import encode
from sidecar.wire.jsonrpc import INVALID_REQUEST

JSON = "application/json"


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

    def reply(self, *, rest: bool = False) -> web.Response:
        """The response: a JSON-RPC error, on the REST face ``{"error": {code, message}}``."""
        if rest:
            body: dict[str, object] = {"code": self.error.code, "message": self.error.message}
            if self.error.data is not None:
                body["data"] = self.error.data
            return json_reply(encode({"error": body}), self.status, self.headers)
        return json_reply(jsonrpc.error(self.id, self.error), self.status, self.headers)


def json_reply(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A response that is one JSON document."""
    reply = web.Response(body=body, status=status, content_type=JSON)
    if headers:
        reply.headers.update(headers)
    return reply


def refused(rejection: RpcError, id: RequestId | None, status: int) -> web.Response:
    """The answer to a message that was read and is refused."""
    return json_reply(jsonrpc.error(id, rejection), status)
