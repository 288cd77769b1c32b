"""What failures look like on the wire: JSON-RPC errors and the answers of ``POST /v1/call``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, cast

import msgspec

from sidecar.mcp.versions import MODERN_VERSIONS
from sidecar.model import (
    SIDECAR_META,
    Fields,
    JsonObject,
    RequestId,
    RpcError,
    Unavailable,
    Unroutable,
)
from sidecar.wire.json import BadJson
from sidecar.wire.json import fields as fields_of
from sidecar.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)

RESOURCE_NOT_FOUND: Final = -32002
"""Legacy only; the modern era says -32602 with ``data.uri``."""

HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

MODERN_CODES: Final = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
"""Codes that only a modern server sends: they tell its era."""

HTTP_STATUS: Final[Mapping[int, int]] = MappingProxyType(
    {
        PARSE_ERROR: 400,
        INVALID_REQUEST: 400,
        INVALID_PARAMS: 400,
        HEADER_MISMATCH: 400,
        MISSING_CAPABILITY: 400,
        UNSUPPORTED_VERSION: 400,
        METHOD_NOT_FOUND: 404,
    }
)
"""JSON-RPC code → HTTP status of a modern answer; every other code goes out with 200."""


def http_status(code: int) -> int:
    """The HTTP status that a modern answer with this error code has."""
    return HTTP_STATUS.get(code, 200)


DENIED: Final = -32003
"""Policy refused something whose result cannot say so. JSON-RPC leaves -32000 to -32099 to
servers, MCP gives no meaning to those down to -32019; ``data.reason`` is what to look at."""


class Rejection(RpcError):
    """An error of our own making. ``id`` is the request's, ``None`` if it has none to answer.

    ``status`` is the HTTP status it goes out with in the modern era.
    """

    def __init__(
        self, code: int, message: str, data: object = None, *, id: RequestId | None = None
    ) -> None:
        super().__init__(code, message, data)
        self.id = id

    @property
    def status(self) -> int:
        return http_status(self.code)


def parse_error(why: str) -> Rejection:
    """The body is not JSON as we read it; ``why`` is a ``BadJson``'s text."""
    return Rejection(PARSE_ERROR, f"the request cannot be read: {why}")


def invalid_request(why: str, *, id: RequestId | None = None) -> Rejection:
    """JSON, but not a message that can be sent here."""
    return Rejection(INVALID_REQUEST, why, id=id)


def method_not_found(method: str, *, id: RequestId | None = None) -> Rejection:
    """No such method in this era. The name is told back only where it looks like one."""
    shown = method if len(method) <= 64 and method.isascii() and method.isprintable() else ""
    return Rejection(METHOD_NOT_FOUND, f"method not found: {shown}" if shown else _NO_METHOD, id=id)


_NO_METHOD: Final = "method not found"


def invalid_params(why: str, data: object = None, *, id: RequestId | None = None) -> Rejection:
    """The method exists, what it was given does not fit; ``why`` says what would."""
    return Rejection(INVALID_PARAMS, why, data, id=id)


def internal(why: str = "the sidecar failed; its log says more") -> Rejection:
    """Something of ours broke. Never with the exception's own text: it may quote anything."""
    return Rejection(INTERNAL_ERROR, why)


def denied(message: str, about: JsonObject) -> Rejection:
    """Policy refused it; ``about`` is ``{rule, message}``, told in ``data``."""
    return Rejection(DENIED, message, {"reason": "denied", **about})


def header_mismatch(why: str, *, id: RequestId | None = None) -> Rejection:
    """A header and the body say different things (2026-07-28, transports)."""
    return Rejection(HEADER_MISMATCH, why, id=id)


def missing_capability(required: JsonObject, *, id: RequestId | None = None) -> Rejection:
    """The client did not declare what this request needs; ``required`` as capabilities."""
    return Rejection(
        MISSING_CAPABILITY,
        "Missing required client capability",
        {"requiredCapabilities": required},
        id=id,
    )


def unsupported_version(
    requested: object,
    *,
    supported: Sequence[str] = MODERN_VERSIONS,
    id: RequestId | None = None,
) -> Rejection:
    """We do not speak the revision that the request is in."""
    data: JsonObject = {"supported": list(supported)}
    if isinstance(requested, str):
        data["requested"] = requested[:64]
    return Rejection(UNSUPPORTED_VERSION, "Unsupported protocol version", data, id=id)


def of(failure: Exception) -> RpcError:
    """The JSON-RPC form of a failed call.

    A server's own error passes as it is. ``Unroutable`` says why in ``data.reason``;
    ``Unavailable`` has ``data`` ``{reason, server, ran, retry_in}``, always all four
    (``retry_in`` in seconds, ``null`` if nobody knows). Anything else is ours, and its text
    stays in the log.
    """
    if isinstance(failure, RpcError):
        return failure
    if isinstance(failure, Unroutable):
        return Rejection(INVALID_PARAMS, failure.message, {"reason": failure.reason})
    if isinstance(failure, Unavailable):
        return Rejection(
            INTERNAL_ERROR,
            f"server {failure.server} is unavailable: {failure.why}",
            {
                "reason": "unavailable",
                "server": failure.server,
                "ran": failure.ran,
                "retry_in": failure.retry_in,
            },
        )
    return internal()


def rest(failure: Exception) -> tuple[int, JsonObject]:
    """The HTTP status and the body ``{"error": {code, message, data}}`` of a failed REST call.

    404 where the name leads to nothing, 503 where the server could not answer, 502 for an
    error that the server itself sent, 400 for a request that is wrong, 500 for our own fault.
    ``data`` is there only if the error has any; it may be a ``msgspec.Raw``.
    """
    error = of(failure)
    body: JsonObject = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return _rest_status(failure, error), {"error": body}


def _rest_status(failure: Exception, error: RpcError) -> int:
    if isinstance(failure, Unroutable):
        return 404
    if isinstance(failure, Unavailable):
        return 503
    if isinstance(error, Rejection):
        if error.code != INTERNAL_ERROR:
            return http_status(error.code)
        # It may be the form of an Unavailable already, as for calls that a drain ends.
        told = error.data
        return 503 if isinstance(told, dict) and told.get("reason") == "unavailable" else 500
    return 502


_REFUSALS: Final = (
    (SIDECAR_META + "denied", 403),
    (SIDECAR_META + "parked", 202),
    (SIDECAR_META + "running", 202),
    (SIDECAR_META + "expired", 410),
)


def rest_status(fields: Fields) -> int:
    """The HTTP status of a REST call that has a result: 200, unless the gate answered instead.

    The gate's answers are told by ``_meta`` keys of ours, which nobody else's results have. A
    tool's own ``isError`` is a result like any other.
    """
    meta = fields.get("_meta")
    if isinstance(meta, msgspec.Raw):
        try:
            meta = fields_of(meta)
        except BadJson:
            return 200
    if isinstance(meta, dict):
        for key, status in _REFUSALS:
            if key in cast("JsonObject", meta):
                return status
    return 200
