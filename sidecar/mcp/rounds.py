"""Asking a client, in either era: what is asked, where that goes, and what comes back.

The sessions' era has requests from the server to the client (2025-11-25, client features); the
stateless one answers the client's request with the question, and the client brings the answer
with the same request again (2026-07-28, input required).
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, cast

from sidecar.mcp.shape import INPUT_REQUIRED
from sidecar.model import SIDECAR_META, Brought, Caller, Era, Fields, JsonObject

ELICIT: Final = "elicitation/create"
ROUNDS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods that may be answered with a question (2026-07-28, input required)."""
STATE: Final = "requestState"
RESPONSES: Final = "inputResponses"

Action: TypeAlias = Literal["accept", "decline", "cancel"]


def has_forms(caller: Caller) -> bool:
    """Whether the client said that it can show its user a form: an empty capability means that
    it can, one that names modes has to name this one (2025-11-25, elicitation)."""
    declared = caller.capabilities.get("elicitation")
    if not isinstance(declared, dict):
        return False
    return not declared or isinstance(cast("JsonObject", declared).get("form"), dict)


def form(era: Era, message: str, properties: JsonObject, required: list[str]) -> JsonObject:
    """The params of ``elicitation/create``. ``message`` is for people."""
    schema: JsonObject = {"type": "object", "properties": properties, "required": required}
    mode: JsonObject = {"mode": "form"} if era is Era.MODERN else {}
    return {**mode, "message": message, "requestedSchema": schema}


def elicited(result: object) -> tuple[Action, JsonObject] | None:
    """What the person did, and what the form holds; ``None`` for what is no answer to one."""
    if not isinstance(result, dict):
        return None
    found = cast("JsonObject", result)
    content = found.get("content")
    match found.get("action"):
        case "accept":
            return "accept", cast("JsonObject", content) if isinstance(content, dict) else {}
        case "decline":
            return "decline", {}
        case "cancel":
            return "cancel", {}
    return None


def question(state: str, key: str, method: str, params: JsonObject) -> Fields:
    """A result that asks. ``state`` begins with ``sidecar/`` and comes back as it is."""
    assert state.startswith(SIDECAR_META)
    return {
        "resultType": INPUT_REQUIRED,
        "inputRequests": {key: {"method": method, "params": params}},
        STATE: state,
    }


def take(method: str, params: JsonObject) -> Brought | None:
    """Take out of ``params`` what answers a question of ours, and return it.

    The answers to a server's own question stay: they are that server's.
    """
    state = params.get(STATE)
    if method not in ROUNDS or not isinstance(state, str) or not state.startswith(SIDECAR_META):
        return None
    del params[STATE]
    responses = params.pop(RESPONSES, None)
    return Brought(state, cast("JsonObject", responses) if isinstance(responses, dict) else {})
