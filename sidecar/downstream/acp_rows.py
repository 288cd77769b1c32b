"""Sessions of editors, as the editor lists them and as the operator does. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from sidecar.downstream.acp import Opened, work_of
from sidecar.downstream.session import key_of
from sidecar.model import SIDECAR_META, Client, JsonObject, Principal
from sidecar.ports.agents import EditorSession

__all__ = ["key", "listed", "shown"]


def key(harness: str, principal: Principal, about: EditorSession) -> str:
    """A session's name in spans, logs and labels: the same whenever its work is gone on with."""
    return key_of(f"acp/{harness}/{principal.name}/{about.id}")


def listed(about: EditorSession) -> JsonObject:
    """A row of ``session/list``."""
    row: JsonObject = {
        "sessionId": about.id,
        "cwd": about.folder,
        "title": about.episodes[-1][0][:80] if about.episodes else about.work,
        "_meta": {SIDECAR_META + "work": work_of(about)},
    }
    if about.ended:
        row["updatedAt"] = datetime.fromtimestamp(about.ended, UTC).isoformat()
    return row


def shown(
    opened: Opened,
    *,
    harness: str,
    principal: Principal,
    client: Client,
    opened_at: float,
    idle: float,
) -> JsonObject:
    """A row as ``AgentListener.sessions`` has it. ``opened_at`` and ``idle`` are the
    connection's, in seconds."""
    busy = opened.prompt is not None
    return {
        "id": key(harness, principal, opened.about),
        "principal": principal.name,
        "client": {"name": client.name, "version": client.version},
        "era": "acp",
        "server": harness,
        "opened_at": opened_at,
        "idle": 0.0 if busy else round(idle, 3),
        "calls": int(busy),
    }
