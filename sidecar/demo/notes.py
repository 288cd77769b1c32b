"""The demo's stdio server: notes in memory. ``python -m sidecar.demo.notes``"""

from __future__ import annotations

import sys

from sidecar.demo.server import DemoServer, DemoTool, Mistake
from sidecar.model import JsonObject

LIMIT = 1000


class Notes:
    """Up to ``LIMIT`` notes, gone when the process ends."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    def add(self, arguments: JsonObject) -> str:
        """Keep one note."""
        text = arguments["text"]
        if not isinstance(text, str) or not text.strip():
            raise Mistake("text must be a string with something in it")
        if len(self._notes) >= LIMIT:
            raise Mistake(f"there are {LIMIT} notes already")
        self._notes.append(text)
        return f"noted as number {len(self._notes)}"

    def search(self, arguments: JsonObject) -> str:
        """The notes that hold ``query``, all without one."""
        query = str(arguments.get("query", "")).casefold()
        found = [
            f"{number}. {text}"
            for number, text in enumerate(self._notes, 1)
            if query in text.casefold()
        ]
        return "\n".join(found) or "no notes"


def server() -> DemoServer:
    """A new notes server."""
    notes = Notes()
    return DemoServer(
        "notes",
        [
            DemoTool(
                "add",
                "Keep a note.",
                {"text": {"type": "string", "description": "what to remember"}},
                ["text"],
                notes.add,
                read_only=False,
                idempotent=False,
            ),
            DemoTool(
                "search",
                "Find notes; all of them without a query.",
                {"query": {"type": "string", "description": "a part of the text"}},
                [],
                notes.search,
            ),
        ],
    )


def main() -> None:
    """Serve standard input until it ends."""
    notes = server()
    for line in sys.stdin.buffer:
        if answer := notes.answer(line):
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
