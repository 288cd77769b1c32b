"""ACP's layer of messages: NDJSON and JSON-RPC, sans-io, seen from the client.

Bytes of the agent's stdout go in, messages as plain dicts come out; bytes for its stdin are
returned to the caller. Nothing here knows what a method means. A line that cannot be read costs
itself: it is told as ``Garbage``, answered where its id can be told, and the next line is read
as if nothing had been.

Source: https://agentclientprotocol.com/protocol/v1 (transports, `$/cancel_request`), JSON-RPC 2.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

from sidecar.model import JsonObject, RequestId, RpcError
from sidecar.wire import json, jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import BadMessage, Message
from sidecar.wire.ndjson import Lines, Oversize, line

CANCELLED = -32800
AUTH_REQUIRED = -32000
NOT_FOUND = -32002

_METHOD = b'"method"'


@dataclass(frozen=True, slots=True)
class Request:
    """The agent asks for something; ``Peer.answer`` or ``Peer.refuse`` it with this id."""

    id: RequestId
    method: str
    params: JsonObject


@dataclass(frozen=True, slots=True)
class Notification:
    method: str
    params: JsonObject


@dataclass(frozen=True, slots=True)
class Answer:
    """To our request ``id``. A result that is not an object is ``{}``."""

    id: int
    method: str
    result: JsonObject


@dataclass(frozen=True, slots=True)
class Failure:
    """Our request ``id`` was answered with an error, or with something that cannot be read."""

    id: int
    method: str
    error: RpcError


@dataclass(frozen=True, slots=True)
class Garbage:
    """A line that is no message we can use; ``why`` holds nothing of it. ``reply`` goes back."""

    why: str
    reply: bytes = b""


Incoming: TypeAlias = Request | Notification | Answer | Failure | Garbage


class Peer:
    """One agent's side of the conversation.

    ``line`` is the longest line in bytes, ``depth`` how deep one may nest, ``open_requests``
    how many of its requests may wait for us at once.
    """

    def __init__(self, *, line: int, depth: int, open_requests: int) -> None:
        self.frames = 0
        """Lines that came, good or bad."""
        self._lines = Lines(line)
        self._depth = depth
        self._most = open_requests
        self._next = 1
        self._ours: dict[int, str] = {}
        self._theirs: set[RequestId] = set()

    # ------------------------------------------------------------------------------- going out

    def request(self, method: str, params: JsonObject) -> tuple[int, bytes]:
        """A request of ours: its id, and what to send."""
        id_ = self._next
        self._next += 1
        self._ours[id_] = method
        return id_, line(jsonrpc.request(id_, method, params))

    def notify(self, method: str, params: JsonObject) -> bytes:
        return line(jsonrpc.notification(method, params))

    def answer(self, id_: RequestId, result: JsonObject) -> bytes:
        """Empty when nothing of that id waits: it was withdrawn or is answered already."""
        if id_ not in self._theirs:
            return b""
        self._theirs.discard(id_)
        return line(jsonrpc.result(id_, result))

    def refuse(self, id_: RequestId, code: int, message: str) -> bytes:
        """As ``answer``, with an error."""
        if id_ not in self._theirs:
            return b""
        self._theirs.discard(id_)
        return line(jsonrpc.error(id_, RpcError(code, message)))

    # ------------------------------------------------------------------------------- coming in

    def feed(self, data: bytes) -> Iterator[Incoming]:
        """Take the next bytes of the agent's stdout; the messages that are now complete.

        Take all that it gives before feeding more.
        """
        for found in self._lines.feed(data):
            self.frames += 1
            if isinstance(found, Oversize):
                yield self._oversize(found)
                continue
            try:
                message = jsonrpc.parse(found)
            except BadJson as bad:
                yield Garbage(f"a line is not JSON: {bad}")
            except BadMessage as bad:
                yield self._bad(bad)
            else:
                yield self._read(message)

    def _read(self, message: Message) -> Incoming:
        if message.is_response:
            return self._response(message)
        id_ = message.id
        if id_ is None:
            try:
                params = _object(message.params, self._depth)
            except BadJson as bad:
                return Garbage(f"a notification cannot be read: {bad}")
            return Notification(message.method, params)
        if id_ in self._theirs:
            # Whose answer would be whose? Neither is worth guessing, and the first one stands.
            return Garbage("a request has the id of another that still waits", self._no(id_))
        if len(self._theirs) >= self._most:
            why = f"{self._most} requests wait for an answer already"
            return Garbage(f"a request came while {why}", self._no(id_, why))
        try:
            # What two parsers could read differently must not be asked about.
            params = _object(message.params, self._depth, strict=True)
        except BadJson as bad:
            return Garbage(f"a request cannot be read: {bad}", self._no(id_, str(bad)))
        self._theirs.add(id_)
        return Request(id_, message.method, params)

    def _response(self, message: Message) -> Incoming:
        id_ = message.id
        if not isinstance(id_, int) or id_ not in self._ours:
            return Garbage("an answer that nobody asked for")
        method = self._ours.pop(id_)
        if message.error is not None:
            error = jsonrpc.error_of(message.error)
            return Failure(id_, method, RpcError(error.code, error.message, _data(error.data)))
        assert message.result is not None
        try:
            result = json.decode(message.result, self._depth)
        except BadJson as bad:
            return Failure(id_, method, RpcError(jsonrpc.INTERNAL_ERROR, f"its answer: {bad}"))
        return Answer(id_, method, cast("JsonObject", result) if isinstance(result, dict) else {})

    def _bad(self, bad: BadMessage) -> Incoming:
        """One that is JSON but no message. Where it has an id of ours it was meant to answer."""
        if isinstance(bad.id, int) and bad.id in self._ours:
            method = self._ours.pop(bad.id)
            error = RpcError(jsonrpc.INTERNAL_ERROR, f"its answer: {bad}")
            return Failure(bad.id, method, error)
        return Garbage(f"a line is no message: {bad}")

    def _oversize(self, found: Oversize) -> Incoming:
        why = f"a line of {found.size} bytes is too long"
        id_ = jsonrpc.id_from_ends(found.head, found.tail)
        if id_ is None:
            return Garbage(why)
        if _METHOD in found.head or _METHOD in found.tail:
            return Garbage(why, b"" if id_ in self._theirs else self._no(id_, why))
        if isinstance(id_, int) and id_ in self._ours:
            method = self._ours.pop(id_)
            return Failure(id_, method, RpcError(jsonrpc.INTERNAL_ERROR, f"its answer: {why}"))
        return Garbage(why)

    def _no(self, id_: RequestId, why: str = "the id is in use") -> bytes:
        return line(jsonrpc.error(id_, RpcError(jsonrpc.INVALID_REQUEST, why)))


def _object(raw: object, depth: int, *, strict: bool = False) -> JsonObject:
    if raw is None:
        return {}
    data = bytes(cast("memoryview", raw))
    value = json.decode_request(data, depth) if strict else json.decode(data, depth)
    assert isinstance(value, dict), "jsonrpc.parse lets no other params through"
    return cast("JsonObject", value)


def _data(raw: object) -> object:
    try:
        return None if raw is None else json.decode(cast("bytes", raw))
    except BadJson:
        return None
