"""The server's side of a message: what is checked, in which order, and what is left of it.

Everything here takes decoded JSON (``wire.json.decode_request``) and raises ``Rejection``, which
knows the request's id and its HTTP status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from sidecar.mcp import headers as _headers
from sidecar.mcp import meta as _meta
from sidecar.mcp.errors import (
    Rejection,
    header_mismatch,
    http_status,
    invalid_params,
    invalid_request,
    unsupported_version,
)
from sidecar.mcp.headers import VERSION_HEADER, Headers
from sidecar.mcp.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION, Envelope
from sidecar.mcp.versions import MODERN_VERSIONS
from sidecar.model import Era, Fields, Json, JsonObject, RequestId, RpcError
from sidecar.wire.jsonrpc import INTERNAL_ERROR, id_of

__all__ = ["Inbound", "Reply", "era_of", "http_status", "legacy", "modern", "stdio"]


@dataclass(slots=True)
class Inbound:
    """A request, or a notification (then ``id`` is ``None``), with its envelope taken out.

    ``params`` is ``{}`` when there were none; its ``_meta`` holds vendors' keys only.
    """

    id: RequestId | None
    method: str
    params: JsonObject
    envelope: Envelope
    era: Era

    @property
    def is_notification(self) -> bool:
        return self.id is None


@dataclass(slots=True)
class Reply:
    """A legacy client's answer to a request of ours: ``result`` or ``error``, never both."""

    id: RequestId
    result: Fields | None
    error: RpcError | None


def modern(body: Json, headers: Headers | None = None) -> Inbound:
    """Check one message of the stateless era, in the order that the specification gives.

    One object → not a response → duplicated routing headers → ``_meta`` (-32602) → headers
    equal the body (-32020) → version (-32022). ``Mcp-Param-*`` needs the tool's schema and
    comes after (``headers.check_params``), the method's existence last (-32601).
    A notification is checked for its shape and its version header only: this era has none from
    clients over HTTP, and they are answered 202 and dropped.
    ``headers`` is ``None`` on transports that have none.

    Raises:
        Rejection: the first check that failed.
    """
    _, id_, method, params = _message(body)
    if method is None:
        raise invalid_request("clients send requests, not responses, in this revision")
    if id_ is None:
        if headers is not None:
            said = headers.getall(VERSION_HEADER, [])
            if len(said) > 1:
                raise header_mismatch(f"the header {VERSION_HEADER} came more than once")
            if said and said[0] not in MODERN_VERSIONS:
                raise unsupported_version(said[0])
        return Inbound(None, method, params, _taken(params, None, strict=False), Era.MODERN)
    if headers is not None:
        _raise(_headers.duplicated(headers), id_)
    found = params.get("_meta")
    if not isinstance(found, dict):
        raise invalid_params(
            f"params._meta is an object with {PROTOCOL_VERSION} and {CLIENT_CAPABILITIES}", id=id_
        )
    missing = [key for key in (PROTOCOL_VERSION, CLIENT_CAPABILITIES) if key not in found]
    if missing:
        raise invalid_params(f"params._meta has no {' and no '.join(missing)}", id=id_)
    version = cast("JsonObject", found)[PROTOCOL_VERSION]
    if headers is not None:
        said = headers.getall(VERSION_HEADER, [])
        if not said or said[0] != version:
            raise header_mismatch(
                f"the header {VERSION_HEADER} is not the body's {PROTOCOL_VERSION}", id=id_
            )
        _raise(_headers.check_routing(headers, method, params, required=True), id_)
    if not isinstance(version, str):
        # Not -32022: there is nothing to negotiate about a version that is not even text.
        raise invalid_params(f"params._meta[{PROTOCOL_VERSION!r}] is a string", id=id_)
    if version not in MODERN_VERSIONS:
        raise unsupported_version(version, id=id_)
    return Inbound(id_, method, params, _taken(params, id_, strict=True), Era.MODERN)


def legacy(body: Json, headers: Headers | None = None) -> Inbound | Reply:
    """Check one message of the sessions' era.

    Batches are refused in every revision: 2025-06-18 removed them, and the one revision that
    had them (2025-03-26) lets nobody rely on them who also speaks another.
    ``headers`` are compared to the body where a client sends them anyway.

    Raises:
        Rejection: the first check that failed.
    """
    message, id_, method, params = _message(body)
    if method is None:
        return _reply(message, id_)
    if headers is not None:
        _raise(_headers.check(headers, method, params), id_)
    return Inbound(id_, method, params, _taken(params, id_, strict=False), Era.LEGACY)


def stdio(body: Json, era: Era | None) -> Inbound | Reply:
    """Check one message of a stdio client, whose first message decides the era.

    ``era`` is that of the messages before, ``None`` for the first one. From then on a message
    of the other era is refused: ``initialize`` with -32022 and the revisions of the modern era,
    an enveloped request with -32600.

    Raises:
        Rejection: the first check that failed.
    """
    found = era_of(body)
    if era is None:
        era = found or Era.LEGACY
    elif found is not None and found is not era:
        if era is Era.MODERN:
            message = cast("JsonObject", body)
            params = message.get("params")
            asked = params.get("protocolVersion") if isinstance(params, dict) else None
            raise unsupported_version(asked, id=id_of(body))
        raise invalid_request(
            "this connection was opened with initialize; requests of 2026-07-28 need their own",
            id=id_of(body),
        )
    return modern(body) if era is Era.MODERN else legacy(body)


def era_of(body: Json) -> Era | None:
    """The era that a message shows by itself, ``None`` if it could be of either."""
    if not isinstance(body, dict):
        return None
    message = cast("JsonObject", body)
    if message.get("method") == "initialize":
        return Era.LEGACY
    params = message.get("params")
    meta = cast("JsonObject", params).get("_meta") if isinstance(params, dict) else None
    if isinstance(meta, dict) and PROTOCOL_VERSION in meta:
        return Era.MODERN
    return Era.MODERN if message.get("method") == "server/discover" else None


# Keys of params by which calls are routed and decided. Some servers match keys without regard
# to case (Go's encoding/json does), and would read "Name" where we read "name".
_ROUTING_KEYS: Final = frozenset({"_meta", "arguments", "name", "ref", "taskid", "uri"})
_EXACT_KEYS: Final = frozenset({"_meta", "arguments", "name", "ref", "taskId", "uri"})


def _message(body: Json) -> tuple[JsonObject, RequestId | None, str | None, JsonObject]:
    """The message's object, id, method (``None`` for a response) and params."""
    if not isinstance(body, dict):
        raise invalid_request(
            "batches are not supported; send one message a request"
            if isinstance(body, list)
            else "the body is one JSON-RPC message, an object"
        )
    message = cast("JsonObject", body)
    id_ = id_of(message)
    if message.get("jsonrpc") != "2.0":
        raise invalid_request('the message does not say "jsonrpc": "2.0"', id=id_)
    if id_ is None and "id" in message:
        raise invalid_request("the id of a message is an integer or a string")
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return message, id_, None, {}
    if not isinstance(method, str) or not method:
        raise invalid_request("the method is a string and not empty", id=id_)
    if "result" in message or "error" in message:
        raise invalid_request("a message is a request or a response, not both", id=id_)
    params = message.get("params")
    if params is None:
        return message, id_, method, {}
    if not isinstance(params, dict):
        raise invalid_request("params is an object", id=id_)
    params = cast("JsonObject", params)
    for key in params:
        if key not in _EXACT_KEYS and key.casefold() in _ROUTING_KEYS:
            raise invalid_params(
                "a key of params differs from one of the protocol's by its case only", id=id_
            )
    return message, id_, method, params


def _reply(message: JsonObject, id_: RequestId | None) -> Reply:
    if id_ is None:
        raise invalid_request("a response has the id of a request")
    result, error = message.get("result"), message.get("error")
    if isinstance(error, dict) and result is None:
        found = cast("JsonObject", error)
        code, text = found.get("code"), found.get("message")
        if isinstance(code, int) and not isinstance(code, bool) and isinstance(text, str):
            return Reply(id_, None, RpcError(code, text, found.get("data")))
        return Reply(id_, None, RpcError(INTERNAL_ERROR, "the client's error has no code"))
    if isinstance(result, dict) and error is None:
        return Reply(id_, cast("Fields", result), None)
    raise invalid_request("a response has either a result or an error, an object")


def _taken(params: JsonObject, id_: RequestId | None, *, strict: bool) -> Envelope:
    try:
        envelope = _meta.take(params, strict=strict)
    except Rejection as rejection:
        rejection.id = id_
        raise
    envelope.request = id_
    return envelope


def _raise(rejection: Rejection | None, id_: RequestId | None) -> None:
    if rejection is not None:
        rejection.id = id_
        raise rejection
