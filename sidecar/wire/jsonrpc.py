"""JSON-RPC 2.0 messages as MCP uses them: one object, an id that is an integer or a string.

Payloads stay ``msgspec.Raw``: nothing inside ``params``, ``result`` and ``error`` is read here.
"""

from __future__ import annotations

import re
from typing import Literal, cast

import msgspec

from sidecar.model import Fields, Json, JsonObject, RequestId, RpcError
from sidecar.wire.json import BadJson, Buffer, fields, whole_pairs

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


class BadMessage(ValueError):
    """JSON, but not one JSON-RPC message. ``id`` is the sender's where it could be told.

    ``batch`` is true for an array, which no revision of MCP we speak has a use for.
    """

    def __init__(self, why: str, *, id: RequestId | None = None, batch: bool = False) -> None:
        super().__init__(why)
        self.id = id
        self.batch = batch


class Message(msgspec.Struct, gc=False, frozen=True):
    """One message: a request, a notification, or a response.

    ``id`` is ``None`` for a notification, and for an error that answers nothing in particular.
    ``method`` is empty for a response. The payloads are ``None`` where absent; ``params`` is an
    object when present.
    """

    id: RequestId | None = None
    method: str = ""
    params: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    error: msgspec.Raw | None = None

    @property
    def is_request(self) -> bool:
        return self.method != "" and self.id is not None

    @property
    def is_notification(self) -> bool:
        return self.method != "" and self.id is None

    @property
    def is_response(self) -> bool:
        return self.method == ""


class _Envelope(msgspec.Struct, gc=False):
    jsonrpc: Literal["2.0"]
    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Error(msgspec.Struct, gc=False):
    code: int
    message: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Envelope)
_error_decoder = msgspec.json.Decoder(_Error)
_id_decoder = msgspec.json.Decoder(int | str)
_any_decoder = msgspec.json.Decoder(msgspec.Raw)
_encoder = msgspec.json.Encoder()
_NULL = msgspec.Raw(b"null")
_BRACE = ord("{")
_ID = rb'"id"\s*:\s*(-?\d{1,30}|"(?:[^"\\]|\\.){0,200}")\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_AT_HEAD = re.compile(rb"(?:data:)?\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb",", re.S)
_ID_AT_TAIL = re.compile(_ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*$", re.S)


def parse(data: Buffer) -> Message:
    """Read one message.

    ``params``, ``result`` and ``error`` that are ``null`` count as absent, since servers of all
    ages send them. Unknown members are ignored. Half of a surrogate pair, which a program that
    cuts texts by UTF-16 units may send, is read as U+FFFD: one character costs no message.

    Raises:
        BadJson: the bytes are not JSON.
        BadMessage: they are, but not one JSON-RPC 2.0 message.
    """
    try:
        read = _decoder.decode(cast("bytes", data))
    except (msgspec.DecodeError, RecursionError) as error:
        if (whole := whole_pairs(data)) != bytes(data):
            return parse(whole)
        raise _diagnose(data, error) from None
    if not (isinstance(data, bytes) and data.isascii()):
        try:
            str(cast("bytes", data), "utf-8")
        except UnicodeDecodeError:
            raise BadJson("a string is not UTF-8") from None
    id_, method = read.id, read.method
    params, result, error_ = _present(read.params), _present(read.result), _present(read.error)
    known = None if id_ is msgspec.UNSET else id_
    if method is not msgspec.UNSET:
        if result is not None or error_ is not None:
            raise BadMessage("a message is a request or a response, not both", id=known)
        if not method:
            raise BadMessage("the method is empty", id=known)
        if id_ is None:
            raise BadMessage("the id of a request is an integer or a string, not null")
        if params is not None and memoryview(params)[0] != _BRACE:
            raise BadMessage("params is not an object", id=known)
        return Message(known, method, params)
    if (result is None) == (error_ is None):
        raise BadMessage("a response has either a result or an error", id=known)
    if result is not None and known is None:
        raise BadMessage("a result without an id answers nothing")
    return Message(known, "", None, result, error_)


def request(id: RequestId, method: str, params: JsonObject | msgspec.Raw | None) -> bytes:
    """Write a request. Without ``params`` when they are ``None``."""
    if params is None:
        return _encoder.encode({"jsonrpc": "2.0", "id": id, "method": method})
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def notification(method: str, params: JsonObject | msgspec.Raw | None) -> bytes:
    """Write a notification. Without ``params`` when they are ``None``."""
    if params is None:
        return _encoder.encode({"jsonrpc": "2.0", "method": method})
    return _encoder.encode({"jsonrpc": "2.0", "method": method, "params": params})


def result(id: RequestId, fields: Fields) -> bytes:
    """Write the answer to a request; ``msgspec.Raw`` values are spliced in byte for byte."""
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "result": fields})


def error(id: RequestId | None, failure: RpcError) -> bytes:
    """Write an error; ``id`` is ``None`` when it answers a message whose id could not be read."""
    body: dict[str, object] = {"code": failure.code, "message": failure.message}
    if failure.data is not None:
        body["data"] = failure.data
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": body})


def error_of(raw: Buffer) -> RpcError:
    """Read a response's ``error``. ``data`` stays ``msgspec.Raw``.

    What is not an error object becomes one that says so: the request has failed either way.
    """
    try:
        read = _error_decoder.decode(cast("bytes", raw))
    except (msgspec.DecodeError, RecursionError):
        return RpcError(INTERNAL_ERROR, "the answer is an error without a code and a message")
    return RpcError(read.code, read.message, None if read.data is msgspec.UNSET else read.data)


def as_id(value: object) -> RequestId | None:
    """A decoded value if it can be a request's id: an integer or a string, else ``None``."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return None


def id_of(message: Json) -> RequestId | None:
    """The id of a decoded message if it is one that MCP allows, else ``None``."""
    return as_id(message.get("id")) if isinstance(message, dict) else None


def id_from_ends(head: bytes, tail: bytes) -> RequestId | None:
    """The id of a message of which only the two ends were kept (``ndjson.Oversize``), if told.

    Found only where it stands next to the message's own braces, so that nothing inside of a
    payload can pass for it.
    """
    match = _ID_AT_HEAD.match(head) or _ID_AT_TAIL.search(tail)
    if match is None:
        return None
    try:
        return _id_decoder.decode(match[1])
    except msgspec.DecodeError:
        return None


def _present(raw: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    return None if raw is msgspec.UNSET or raw == _NULL else raw


def _diagnose(data: Buffer, error: Exception) -> BadJson | BadMessage:
    """Tell what is not JSON from what is not a message, and find the id if there is one."""
    if isinstance(error, RecursionError):
        return BadJson("the JSON is nested too deeply")
    try:
        found = fields(data)
    except BadJson as bad:
        if not isinstance(error, msgspec.ValidationError):
            return bad
        try:
            _any_decoder.decode(cast("bytes", data))
        except (msgspec.DecodeError, RecursionError):
            return BadJson("the JSON is malformed")
        batch = bytes(memoryview(data)[:64]).lstrip(b" \t\r\n").startswith(b"[")
        why = "batches are not supported" if batch else "a message is a JSON object"
        return BadMessage(why, batch=batch)
    id_: RequestId | None = None
    if "id" in found:
        try:
            id_ = _id_decoder.decode(cast("bytes", found["id"]))
        except msgspec.DecodeError:
            return BadMessage("the id of a message is an integer or a string")
    if found.get("jsonrpc") != msgspec.Raw(b'"2.0"'):
        return BadMessage('the message does not say "jsonrpc": "2.0"', id=id_)
    return BadMessage("the method is not a string", id=id_)
