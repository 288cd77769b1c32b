"""What was sent and answered, on a call's span: only where ``telemetry.capture`` asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import msgspec

from sidecar.config import Config
from sidecar.model import Call, Fields, JsonObject, Kind
from sidecar.parking.claim import hide, shown
from sidecar.ports.tracer import Span
from sidecar.semconv import GenAi
from sidecar.wire import json

LONGEST: Final = 8192
"""Characters of either that are kept: they wait in memory until they are exported."""
_TOOLS: Final = (Kind.MCP, Kind.ACP)
_CONTENT: Final = ("structuredContent", "content", "isError")


@dataclass(frozen=True, slots=True)
class Capture:
    """``redact`` are globs over names and dotted paths, as ``parking.redact`` has them."""

    wants_arguments: bool = False
    wants_results: bool = False
    redact: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config) -> Capture:
        """What nobody is shown of a parked call is hidden here too."""
        capture = config.telemetry.capture
        return cls(capture.arguments, capture.results, (*capture.redact, *config.parking.redact))

    def arguments(self, span: Span, call: Call) -> None:
        """Put the arguments of a tool on its call's span."""
        if self.wants_arguments and call.kind in _TOOLS:
            self._put(span, GenAi.ARGUMENTS, shown(call))

    def result(self, span: Span, call: Call, fields: Fields) -> None:
        """Put what was answered on the span: after redaction by policies, with ours on top."""
        if not self.wants_results or call.kind not in _TOOLS:
            return
        found: JsonObject = {}
        for key in _CONTENT:
            value = fields.get(key)
            if isinstance(value, msgspec.Raw):
                try:
                    value = json.decode(value, depth=256)
                except json.BadJson:
                    continue
            if value is not None:
                found[key] = value
        self._put(span, GenAi.RESULT, found)

    def _put(self, span: Span, key: str, value: JsonObject) -> None:
        left, _ = hide(value, self.redact)
        text = json.encode(cast("object", left)).decode("utf-8", "replace")
        span.set(key, text if len(text) <= LONGEST else f"{text[:LONGEST]}…")
