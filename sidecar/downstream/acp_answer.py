"""What a call of a harness was answered, as the end of an editor's prompt. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, cast

from sidecar.mcp.shape import plain
from sidecar.model import SIDECAR_META, Fields, JsonObject

__all__ = ["Ended", "read"]

REASONS: Final = frozenset({"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"})
"""The stop reasons of the protocol; an editor fails over another."""
_AGAIN: Final = (SIDECAR_META + "running", SIDECAR_META + "parked")
_TOLD: Final = ("base", "head", "commits", "dirty", "asks", "continued")


@dataclass(frozen=True, slots=True)
class Ended:
    """``reason`` is the stop reason, ``None`` where there is none to tell: the prompt failed,
    ``error`` says why. ``said`` is the agent's last message. ``goes_on``: it has not ended."""

    reason: str | None
    error: str = ""
    said: str = ""
    goes_on: bool = False
    notes: JsonObject = field(default_factory=dict)


def read(fields: Fields) -> Ended:
    """Read a result of the harness's tool, or the gate's in place of one."""
    given = plain(fields.get("_meta")) if "_meta" in fields else {}
    meta = cast("JsonObject", given) if isinstance(given, dict) else {}
    if any(key in meta for key in _AGAIN):
        return Ended(None, goes_on=True)
    kept: JsonObject = {key: value for key, value in meta.items() if key.startswith(SIDECAR_META)}
    about = plain(fields.get("structuredContent")) if "structuredContent" in fields else None
    if not isinstance(about, dict) or "stop_reason" not in about:
        return Ended(None, _text(fields), notes=kept)
    told = cast("JsonObject", about)
    reason, error, said = (_string(told, key) for key in ("stop_reason", "error", "last_message"))
    kept[SIDECAR_META + "result"] = {key: told[key] for key in _TOLD if key in told}
    if reason in REASONS:
        return Ended(reason, error, said, notes=kept)
    why = error or f"the agent ended its turn with {reason[:64]!r}"
    return Ended(None, why, said, notes=kept)


def _text(fields: Fields) -> str:
    content = plain(fields.get("content")) if "content" in fields else []
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            return str(block["text"])
    return "the call was not answered with a result"


def _string(about: JsonObject, key: str) -> str:
    value = about.get(key)
    return value if isinstance(value, str) else ""
