"""What the awkward server may do wrong. Plain data, so that it fits on a command line as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"

Definition = dict[str, Any]


@dataclass
class Behaviour:
    """Times are in seconds. The defaults are those of a well-behaved server."""

    name: str = "awkward"
    instructions: str = ""
    eras: tuple[str, ...] = ("legacy", "modern")

    # Opening.
    discover: Literal["answer", "silent", "exit"] = "answer"
    """``server/discover``: as the eras say, never answered, or the process exits."""
    initialize_delay: float = 0.0
    start_delay: float = 0.0
    """How long a stdio server takes before it reads anything."""

    # Sessions (legacy HTTP).
    sessions: bool = True
    """Mint session ids, and refuse requests that have none."""
    lost: Literal["404", "404-json", "400", "-32001"] = "404"
    """What a request of a forgotten session gets."""

    # Listing.
    only: tuple[str, ...] | None = None
    """Which of the built-in tools are offered; ``None`` is all."""
    tools: list[Definition] = field(default_factory=list)
    """Further tools, listed byte for byte as they stand here; each answers with its own name."""
    page: int = 0
    """Entries a page of ``tools/list``; 0 is everything at once."""
    cursor: Literal["advances", "repeats", "endless", "fails"] = "advances"
    """From the second page on: go on, repeat one cursor, never end, or answer with an error."""
    list_delay: float = 0.0
    list_error: bool = False
    annotate: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Annotations of built-in tools that replace their own."""

    # Answering.
    answers: Literal["json", "sse"] = "json"
    """How a POST that sends no notification is answered."""
    status: int = 0
    """An HTTP status that every POST gets instead of an answer; 0 is none."""
    result: Definition | None = None
    """What the tool ``fidelity`` answers."""
    ask_on_connect: bool = False
    """Send an unsolicited ``roots/list`` and an unknown request after ``initialized``."""

    # Ending (stdio).
    ignore_sigterm: bool = False
    ignore_eof: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Behaviour:
        values = json.loads(text)
        for key in ("eras", "only"):
            if isinstance(values.get(key), list):
                values[key] = tuple(values[key])
        return cls(**values)
