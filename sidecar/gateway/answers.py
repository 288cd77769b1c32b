"""What is done to a result on its way out: only to its ``_meta``."""

from __future__ import annotations

from typing import cast

import msgspec

from sidecar.model import SIDECAR_META, Call, Fields, JsonObject, Kind
from sidecar.wire import json

CALL = SIDECAR_META + "call"
UNAVAILABLE = SIDECAR_META + "unavailable"
RUNNING = SIDECAR_META + "running"
UNAVAILABLE_MORE = SIDECAR_META + "unavailable_more"
"""How many servers are missing beside those that ``UNAVAILABLE`` names."""


def received(fields: Fields) -> Fields:
    """A server's result without the ``sidecar/*`` keys that it had no right to write.

    ``_meta`` becomes a dict; its values stay as they came (``Raw``), so that no number in them
    loses a digit. Anything else than an object there is no ``_meta`` and goes.
    """
    if "_meta" not in fields:
        return fields
    meta = opened(fields["_meta"])
    kept = {key: value for key, value in meta.items() if not key.startswith(SIDECAR_META)}
    return {**fields, "_meta": kept}


def stamped(fields: Fields, call: str) -> Fields:
    """The result with the id of the call that it answers."""
    meta = fields.get("_meta")
    if meta is None:
        return {**fields, "_meta": {CALL: call}}
    return {**fields, "_meta": {**opened(meta), CALL: call}}


def opened(meta: object) -> JsonObject:
    """A ``_meta`` as a dict, whichever form it has; empty when it is not an object."""
    if isinstance(meta, dict):
        return cast("JsonObject", meta)
    if isinstance(meta, msgspec.Raw):
        try:
            return json.fields(meta)
        except json.BadJson:
            return {}
    return {}


def outcome(call: Call, fields: Fields) -> str:
    """``ok``, ``tool_error``, or ``running``: a coding agent's answer is still to come."""
    if not is_error(fields):
        return "ok"
    goes_on = call.kind is Kind.ACP and RUNNING in opened(fields.get("_meta"))
    return "running" if goes_on else "tool_error"


def is_error(fields: Fields) -> bool:
    """Whether a tool says that it failed (``isError``)."""
    value = fields.get("isError")
    if isinstance(value, msgspec.Raw):
        return bytes(value) == b"true"
    return value is True
