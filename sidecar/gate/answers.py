"""What a caller is told when the gate answers instead of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from sidecar.mcp.errors import denied as denied_error
from sidecar.model import SIDECAR_META, Call, Decision, Fields, JsonObject, Kind, Refused
from sidecar.wire import json

DENIED: Final = SIDECAR_META + "denied"
LABELS: Final = SIDECAR_META + "labels"
REDACTED: Final = SIDECAR_META + "redacted"

_RESULTS: Final = frozenset((Kind.MCP, Kind.ACP))
"""Kinds whose result can say that it is an error; everything else is answered with an error."""


def denied(decision: Decision, call: Call, text: str = "", *, ran: bool = False) -> Refused:
    """The answer to a call, or in place of a result (``ran``), that policy denies.

    ``text`` is for the caller and may quote what it sent; default: the decision's own message.
    """
    message = text or decision.message or decision.rule
    about: JsonObject = {"rule": decision.rule, "message": message}
    shown = message if message.startswith("denied") else f"denied: {message}"
    # A rule without a message is named by what is said in its place.
    named = shown.endswith(f" rule {decision.rule}")
    told = shown if named else f"{shown} (rule {decision.rule})"
    if ran:
        # Whoever is told no tries again, and what has run once should not run twice for that.
        told += "; the call itself has run, its answer is withheld"
    result: Fields = {
        "content": [{"type": "text", "text": told}],
        "isError": True,
        "_meta": {DENIED: about},
    }
    error = None if call.kind in _RESULTS else denied_error(told, about)
    return Refused(decision, "denied", result, error)


def needs_approval(decision: Decision, call: Call) -> Refused:
    """The answer to a call that a person would have to approve, where nobody can."""
    message = decision.message or "approval is needed"
    how = (
        "nobody can approve calls in this version; the operator can let it pass with "
        f"`gated: false` for server {call.server} in sidecar.yaml, or with a policy of their own"
    )
    return denied(decision, call, f"{message}; {how}")


def with_meta(fields: Fields, key: str, value: object) -> Fields:
    """The result with one more ``_meta`` key; everything else stays as it is."""
    meta = fields.get("_meta")
    held = cast("JsonObject", meta) if isinstance(meta, dict) else {}
    return {**fields, "_meta": {**held, key: value}}


def carried(fields: Fields) -> list[str]:
    """The labels that a result of ours carries."""
    meta = fields.get("_meta")
    if isinstance(meta, msgspec.Raw):
        meta = json.fields(meta)
    labels = cast("JsonObject", meta).get(LABELS) if isinstance(meta, dict) else None
    if isinstance(labels, msgspec.Raw):
        labels = json.decode(labels)
    return [label for label in labels if isinstance(label, str)] if isinstance(labels, list) else []


def labelled(fields: Fields, labels: Sequence[str]) -> Fields:
    """The result with the labels that it carries."""
    return with_meta(fields, LABELS, list(labels))
