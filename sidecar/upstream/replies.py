"""What we answer when a server asks us. Legs declare no sampling, elicitation or roots."""

from __future__ import annotations

from sidecar.model import RpcError
from sidecar.wire import jsonrpc
from sidecar.wire.jsonrpc import Message


def reply(request: Message) -> bytes:
    """The answer to a server's request, whether it had a right to ask or not.

    Some servers ask for roots although none were declared; an empty list is true, and keeps
    them going.
    """
    assert request.id is not None
    if request.method == "ping":
        return jsonrpc.result(request.id, {})
    if request.method == "roots/list":
        return jsonrpc.result(request.id, {"roots": []})
    return jsonrpc.error(
        request.id,
        RpcError(jsonrpc.METHOD_NOT_FOUND, "this client does not support the method"),
    )
