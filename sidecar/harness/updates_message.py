"""The last thing an agent said in a turn, put together from its pieces."""

from __future__ import annotations

import io

from sidecar.harness.updates import Update

_BREAKS = frozenset({"tool_call_update", "agent_thought_chunk", "user_message_chunk"})
"""After one of these, a piece without a message's id begins another message."""


class LastMessage:
    """Pieces of one message have its id in common, or none and nothing between them.

    At most ``limit`` characters are kept; ``cut`` says that there were more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._text = io.StringIO()
        self._size = 0
        self._id = ""
        self._broken = False
        self.cut = False

    def clear(self) -> None:
        """Another turn begins."""
        self._begin("")
        self._broken = False

    def take(self, update: Update) -> None:
        if update.replayed:
            return
        if update.kind in _BREAKS:
            self._broken = True
        elif update.kind == "agent_message_chunk" and update.text:
            same = update.message and update.message == self._id
            if not same and (self._broken or (update.message and self._size)):
                self._begin(update.message)
            elif not self._size:
                self._id = update.message
            self._broken = False
            self._add(update.text)

    @property
    def text(self) -> str:
        return self._text.getvalue()

    def _begin(self, id_: str) -> None:
        self._text = io.StringIO()
        self._size = 0
        self._id = id_
        self.cut = False

    def _add(self, text: str) -> None:
        room = self._limit - self._size
        if len(text) > room:
            text = text[:room]
            self.cut = True
        if text:
            self._size += self._text.write(text)
