"""What a client takes for an answer: the ``Accept`` header (RFC 9110 section 12.5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


class Accepts(NamedTuple):
    """Whether a client takes JSON, and whether it takes an event stream."""

    json: bool
    sse: bool


def accepts(lines: Sequence[str]) -> Accepts:
    """Read the ``Accept`` header lines. A client that sends none takes JSON."""
    if not lines:
        return Accepts(True, False)
    return _read(lines[0] if len(lines) == 1 else ",".join(lines))


@lru_cache(maxsize=64)
def _read(value: str) -> Accepts:
    json = sse = False
    for entry in value.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if any(_is_zero(parameter) for parameter in parameters):
            continue
        json = json or kind in ("application/json", "application/*", "*/*")
        sse = sse or kind in ("text/event-stream", "text/*", "*/*")
    return Accepts(json, sse)


def _is_zero(parameter: str) -> bool:
    name, _, weight = parameter.partition("=")
    return name.strip() == "q" and weight.strip().rstrip("0").rstrip(".") in ("", "0")
