"""Notifications of a server, on their way to a caller."""

from __future__ import annotations

from sidecar.model import Caller, JsonObject
from sidecar.wire import json
from sidecar.wire.jsonrpc import Message


def read_params(message: Message, depth: int) -> JsonObject:
    """The params of a notification; none counts as empty. Raises BadJson."""
    if message.params is None:
        return {}
    params = json.decode(message.params, depth)
    # ``parse`` has seen to it that params are an object.
    return params if isinstance(params, dict) else {}


def progress(caller: Caller, params: JsonObject) -> None:
    """Hand progress to whoever asked for it, under their own token, otherwise unchanged."""
    if caller.progress is not None:
        caller.notify("notifications/progress", {**params, "progressToken": caller.progress})
