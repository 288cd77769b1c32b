"""What an editor is told while an agent works: the agent's own updates, and ours. Pure.

Source: ACP schema v1.21, `session/update`.
"""

from __future__ import annotations

from typing import Final, cast

from sidecar.model import SIDECAR_META, JsonObject
from sidecar.ports.agents import EditorSession

__all__ = ["Teller", "at_work", "history", "message", "waiting", "without_ours"]

_OURS: Final = frozenset({"current_mode_update", "config_option_update"})
"""Modes and options are the sidecar's to set; an editor would show what it cannot change."""
MOST_TOOLS: Final = 2000
"""Tool calls of one prompt that are known; of more, the oldest are forgotten."""


class Teller:
    """Shapes the updates of one prompt. ``spoke``: the agent has said something in words."""

    def __init__(self) -> None:
        self.spoke = False
        self._tools: dict[str, None] = {}

    def shape(self, raw: JsonObject) -> JsonObject | None:
        """An update as the editor gets it: unknown kinds and fields as they came. ``None`` for
        what it is not told."""
        kind = raw.get("sessionUpdate")
        if not isinstance(kind, str) or kind in _OURS:
            return None
        update = without_ours(raw)
        if kind == "agent_message_chunk":
            self.spoke = True
        if kind in ("tool_call", "tool_call_update"):
            return self._tool(kind, update)
        return update

    def _tool(self, kind: str, update: JsonObject) -> JsonObject | None:
        id_ = update.get("toolCallId")
        if not isinstance(id_, str):
            return None
        known = id_ in self._tools
        self._tools[id_] = None
        if len(self._tools) > MOST_TOOLS:
            del self._tools[next(iter(self._tools))]
        if kind == "tool_call_update" and not known:
            # An update to what it was not told of before is an error to an editor.
            title = update.get("title")
            said = title if isinstance(title, str) and title else "tool call"
            return {"status": "pending", **update, "sessionUpdate": "tool_call", "title": said}
        return update


def without_ours(raw: JsonObject) -> JsonObject:
    """Without the ``_meta`` keys that nobody but us may write."""
    meta = raw.get("_meta")
    if not isinstance(meta, dict) or not any(_is_ours(key) for key in meta):
        return raw
    kept = {key: value for key, value in cast("JsonObject", meta).items() if not _is_ours(key)}
    return {**raw, "_meta": kept}


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and key.startswith(SIDECAR_META)


def message(text: str, kind: str = "agent_message_chunk", **meta: object) -> JsonObject:
    """Words. ``meta`` are keys of ours."""
    update: JsonObject = {"sessionUpdate": kind, "content": {"type": "text", "text": text}}
    if meta:
        update["_meta"] = {SIDECAR_META + key: value for key, value in meta.items()}
    return update


def at_work(session: EditorSession, ignored: int) -> JsonObject:
    """Where the agent works. ``ignored`` is how many MCP servers the editor named."""
    text = (
        f"The agent works in `{session.path}` on branch `{session.branch}`, not in the folder "
        "that is open here."
    )
    if ignored:
        text += (
            " The MCP servers of this editor are not given to it: which ones it may use says "
            "`mcp` in the sidecar's configuration."
        )
    return message(text + "\n\n", notice="work")


def waiting(call: str, tool: str) -> JsonObject:
    """Something waits for a person."""
    text = (
        f"\n\nWaiting for a person's approval of `{tool}`: answer on the sidecar's page, or with "
        f"`sidecar calls approve {call}` or `sidecar calls deny {call}`.\n\n"
    )
    return message(text, waiting={"id": call, "tool": tool})


def history(session: EditorSession) -> list[JsonObject]:
    """What is remembered of a session that is loaded."""
    told: list[JsonObject] = []
    for task, last in session.episodes:
        told.append(message(task, "user_message_chunk"))
        if last:
            told.append(message(last))
    return told
