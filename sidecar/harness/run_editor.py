"""An agent's question, put to the person at the editor that has it work (``parking.elicit``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from sidecar.model import SIDECAR_META, Ask, Fields, JsonObject, RpcError
from sidecar.wire import jsonrpc

if TYPE_CHECKING:
    from sidecar.harness.run import Run
    from sidecar.harness.session_asks import PermissionRequest

__all__ = ["ANSWERED", "ASKED", "PERMISSION", "UPDATE", "answer_of", "asking", "question"]

UPDATE: Final = "session/update"
PERMISSION: Final = "session/request_permission"
ASKED: Final = "sidecar/asked"
ANSWERED: Final = "sidecar/answered"
"""What ``Caller.notify`` is told of the agent's questions, beside ``UPDATE``: never sent on."""
_OPTIONS: Final = (
    {"optionId": "allow", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
)


def asking(run: Run, request: PermissionRequest, call: str) -> Ask | None:
    """The way to put it, as parking asks clients: its ``elicitation/create`` in, the answer to
    that out. ``None`` where no editor waits for the run. ``call`` is the id of the question's
    call."""
    if run.editor() is None:
        return None

    async def ask(method: str, params: JsonObject) -> Fields:
        editor = run.editor()
        if editor is None:
            raise RpcError(jsonrpc.INTERNAL_ERROR, "the editor has gone")
        asked = question(request.tool_call, params.get("message"), call)
        return answer_of(await editor(PERMISSION, asked))

    return ask


def question(tool_call: JsonObject, message: object, call: str) -> JsonObject:
    """The params of ``session/request_permission``, but for the session. ``message`` are our own
    words of what would be allowed: titles are the agent's."""
    content = tool_call.get("content")
    block: JsonObject = {"type": "content", "content": {"type": "text", "text": message}}
    id_ = tool_call.get("toolCallId")
    shown: JsonObject = {
        **tool_call,
        "toolCallId": id_ if isinstance(id_, str) else call,
        "content": [
            *([block] if isinstance(message, str) else []),
            *(cast("list[object]", content) if isinstance(content, list) else []),
        ],
    }
    meta: JsonObject = {SIDECAR_META + "call": call}
    return {"toolCall": shown, "options": [dict(option) for option in _OPTIONS], "_meta": meta}


def answer_of(result: Fields) -> Fields:
    """What the person said, as the answer to a form. Whatever is not clear says nothing."""
    outcome = result.get("outcome")
    if isinstance(outcome, dict) and outcome.get("outcome") == "selected":
        match outcome.get("optionId"):
            case "allow":
                return {"action": "accept", "content": {"decision": "approve"}}
            case "reject":
                return {"action": "accept", "content": {"decision": "deny"}}
    return {"action": "cancel"}
