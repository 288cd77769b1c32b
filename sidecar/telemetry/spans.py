"""Spans of what happens beside calls: events of the bus that are worth one each.

They begin traces of their own unless they happened under a span; then they are part of its trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sidecar.events import (
    Bus,
    DialDecided,
    Event,
    LegChanged,
    SessionUpdate,
    Swept,
    ToolsChanged,
)
from sidecar.model import State
from sidecar.ports.tracer import Tracer, Value
from sidecar.semconv import Key, Names

MOST_NAMED: Final = 50
"""Tools or paths that one span names; its counts count them all."""
PIECE: Final = "_chunk"
"""What the kind of an update ends with that is a piece of a text."""
_UPDATES: Final = frozenset(
    {
        "agent_message_chunk",
        "agent_thought_chunk",
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "plan",
        "session_info_update",
        "tool_call",
        "tool_call_update",
        "usage_update",
        "user_message_chunk",
    }
)
"""Kinds of ACP. Others are the agent's own, of which there may be any number, and name no span."""
_BROKEN: Final = frozenset((State.BACKOFF, State.FAILED))


class EventSpans:
    """Listens from its making until ``close``."""

    def __init__(self, bus: Bus, tracer: Tracer) -> None:
        self._tracer = tracer
        self._last = ("", "")
        self._stops: list[Callable[[], None]] = [
            bus.listen(ToolsChanged, self._tools),
            bus.listen(LegChanged, self._leg),
            bus.listen(Swept, self._swept),
            bus.listen(SessionUpdate, self._update),
            bus.listen(DialDecided, self._dial),
        ]

    def close(self) -> None:
        """Idempotent."""
        while self._stops:
            self._stops.pop()()

    def _tools(self, event: ToolsChanged) -> None:
        self._tell(
            Names.TOOLS_CHANGED,
            event,
            {
                Key.NAME: event.name,
                Key.SERVER: event.server,
                Key.COUNT: event.count,
                Key.ADDED: _some(event.added),
                Key.REMOVED: _some(event.removed),
                Key.CHANGED: _some(event.changed),
            },
        )

    def _leg(self, event: LegChanged) -> None:
        about: dict[str, Value] = {Key.SERVER: event.server, Key.STATE: event.state.value}
        if event.error:
            about[Key.LEG_ERROR] = event.error
        if event.retry_in is not None:
            about[Key.RETRY_IN] = round(event.retry_in, 3)
        error = event.state.value if event.state in _BROKEN and event.error else None
        self._tell(Names.LEG, event, about, error=error, message=event.error or "")

    def _swept(self, event: Swept) -> None:
        kept = event.kept[:MOST_NAMED]
        self._tell(
            Names.SWEEP,
            event,
            {
                Key.NAME: event.name,
                Key.SWEPT: len(event.removed),
                Key.SWEPT_PATHS: _some(event.removed),
                Key.KEPT: len(event.kept),
                Key.KEPT_PATHS: [path for path, _ in kept],
                Key.KEPT_REASONS: [reason for _, reason in kept],
            },
        )

    def _update(self, event: SessionUpdate) -> None:
        # A text comes in as many pieces as its model likes: they are one update.
        piece = (event.trace.traceparent, event.update)
        if event.update.endswith(PIECE) and self._last == piece:
            return
        self._last = piece
        name = Names.SESSION_UPDATE
        self._tell(
            f"{name} {event.update}" if event.update in _UPDATES else name,
            event,
            {
                Key.NAME: event.name,
                Key.AGENT_ID: event.agent_id,
                Key.SPAN: event.trace.traceparent[36:52],
                Key.HARNESS: event.harness,
                Key.WORK: event.work,
                Key.UPDATE: event.update,
            },
        )

    def _dial(self, event: DialDecided) -> None:
        about: dict[str, Value] = {
            Key.DECISION: event.decision,
            Key.RULE: event.rule,
            Key.EGRESS_REASON: event.reason,
            Key.EGRESS_CLASS: event.class_,
            Key.TARGET: event.target,
            Key.SERVER: event.server,
            Key.PRINCIPAL: event.principal,
        }
        error = None if event.decision == "allow" else event.rule
        self._tell(Names.EGRESS, event, about, error=error, seconds=event.seconds)

    def _tell(
        self,
        name: str,
        event: Event,
        about: Mapping[str, Value],
        *,
        error: str | None = None,
        message: str = "",
        seconds: float = 0.0,
    ) -> None:
        at = time.time_ns() - int(seconds * 1e9)
        span = self._tracer.start(name, "internal", event.trace, at=at)
        if span.sampled:
            for key, value in about.items():
                # What is not known, or nothing, is left out.
                if value not in ("", [], ()):
                    span.set(key, value)
        span.end(error, message)


def _some(names: Sequence[str]) -> Sequence[str]:
    return names[:MOST_NAMED]
