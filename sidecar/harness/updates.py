"""What an agent says while it works, shaped as ACP version 2 has it.

Version 1 and version 2 say the same in different ways; inside of the sidecar there is one:
messages and tool calls have ids and later updates add to them, the first update of a tool call
makes it, and a run is ``running``, ``requires_action`` or ``idle``. What the agent sent stays
beside it, unchanged. Kinds that nobody knows pass through.

Source: ACP schema v1.21 and v2.0.0-alpha.3, `session/update`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

from sidecar.model import JsonObject

RunState = Literal["running", "requires_action", "idle"]

FINISHED = frozenset({"completed", "failed", "cancelled"})
"""States of a tool call after which nothing more comes."""

_SHAPED = {
    "tool_call": "tool_call_update",
    "plan": "plan_update",
    "current_mode_update": "config_option_update",
}
_CHUNKS = frozenset({"agent_message_chunk", "agent_thought_chunk", "user_message_chunk"})
_TITLE = 1024
_TOOLS = 500
"""Tool calls remembered; of more, the oldest are forgotten."""
_KEPT = 256 << 10
"""Bytes of a tool call's details that are remembered for a question about it, by estimate."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as far as it is known. ``kind`` and ``status`` are the agent's words."""

    id: str
    title: str = ""
    kind: str = ""
    status: str = "pending"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """One thing an agent said.

    ``kind`` is version 2's; ``raw`` is the ``update`` as it came. ``text`` is that of a chunk,
    ``message`` its message's id where there is one. ``tool`` is the tool call after this
    update. ``plan`` are the entries of a plan. ``state`` is that of the run, in updates of kind
    ``state_update``, which we make ourselves. ``replayed``: it is history that a loaded session
    tells; ``late``: it came after the end of the turn.
    """

    kind: str
    raw: JsonObject
    text: str = ""
    message: str = ""
    tool: ToolCall | None = None
    plan: tuple[JsonObject, ...] | None = None
    state: RunState | None = None
    replayed: bool = False
    late: bool = False


def state_update(state: RunState) -> Update:
    """Ours: the run is in another state."""
    return Update("state_update", {"sessionUpdate": "state_update", "state": state}, state=state)


class Tools:
    """The tool calls of a session: what was said of each so far."""

    def __init__(self) -> None:
        self._calls: dict[str, ToolCall] = {}
        self._details: dict[str, JsonObject] = {}

    @property
    def running(self) -> bool:
        """Whether any has begun and not ended."""
        return any(call.status == "in_progress" for call in self._calls.values())

    def settle(self) -> None:
        """A turn is over: what it left running is not waited for in the next."""
        self._calls.clear()
        self._details.clear()

    def upsert(self, raw: JsonObject) -> ToolCall | None:
        """Take a ``tool_call`` or ``tool_call_update``. ``None`` when it has no id."""
        id_ = raw.get("toolCallId")
        if not isinstance(id_, str) or not id_:
            return None
        known = self._calls.pop(id_, None) or ToolCall(id_)
        call = replace(
            known,
            title=_text(raw, "title", known.title)[:_TITLE],
            kind=_text(raw, "kind", known.kind)[:64],
            status=_text(raw, "status", known.status)[:64],
            name=_text(raw, "name", known.name)[:_TITLE],
        )
        self._calls[id_] = call
        if call.status in FINISHED:
            self._details.pop(id_, None)
        else:
            self._remember(id_, raw)
        while len(self._calls) > _TOOLS:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            self._details.pop(oldest, None)
        return call

    def whole(self, raw: JsonObject) -> JsonObject:
        """A question's ``toolCall`` with what was said of that call before and is not said
        again: it is an update like the others, in which what is left out stays as it was."""
        id_ = raw.get("toolCallId")
        known = self._details.get(id_, {}) if isinstance(id_, str) else {}
        return {**known, **{key: value for key, value in raw.items() if value is not None}}

    def _remember(self, id_: str, raw: JsonObject) -> None:
        details = {**self._details.get(id_, {})}
        for key in ("title", "kind", "name", "rawInput", "locations", "content"):
            if raw.get(key) is not None:
                details[key] = raw[key]
        for key in ("content", "rawInput"):  # the largest first
            if _weight(details) > _KEPT:
                details.pop(key, None)
        self._details[id_] = details


def shape(raw: JsonObject, tools: Tools, *, replayed: bool = False, late: bool = False) -> Update:
    """An ``update`` of either version, in the shape of version 2."""
    said = raw.get("sessionUpdate")
    word = said if isinstance(said, str) else ""
    kind = _SHAPED.get(word, word)
    text, message = "", ""
    if word in _CHUNKS:
        text = content_text(raw.get("content"))
        message = _text(raw, "messageId", "")
    tool = tools.upsert(raw) if kind == "tool_call_update" else None
    plan = _plan(raw) if kind == "plan_update" else None
    return Update(kind, raw, text, message, tool, plan, None, replayed, late)


def content_text(block: object) -> str:
    """The text of a content block; empty for one of another type."""
    if not isinstance(block, dict):
        return ""
    content = cast("JsonObject", block)
    text = content.get("text")
    return text if content.get("type") == "text" and isinstance(text, str) else ""


def _plan(raw: JsonObject) -> tuple[JsonObject, ...] | None:
    entries = raw.get("entries")
    if entries is None and isinstance(raw.get("plan"), dict):
        entries = cast("JsonObject", raw["plan"]).get("entries")
    if not isinstance(entries, list):
        return None
    return tuple(cast("JsonObject", entry) for entry in entries if isinstance(entry, dict))


def _text(raw: JsonObject, key: str, otherwise: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else otherwise


def _weight(value: object) -> int:
    """About how much memory a value holds; strings and the number of things count."""
    total = 0
    queue = [value]
    while queue:
        item = queue.pop()
        total += len(item) if isinstance(item, str) else 32
        if isinstance(item, dict):
            queue += item.keys()
            queue += item.values()
        elif isinstance(item, list):
            queue += item
    return total
