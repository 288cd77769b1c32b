"""Gates that say no, or not yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sidecar.gate import OpenGate
from sidecar.model import (
    Admitted,
    Call,
    Caller,
    Decision,
    Fields,
    Refused,
    Tool,
)
from tests.gateway.scripted import result

DENY = Decision("deny", "no-such-thing")


def refusal(kind: str = "denied") -> Refused:
    fields = {**result("no"), "isError": True, "_meta": {f"sidecar/{kind}": {"rule": "r"}}}
    return Refused(DENY, kind, fields)  # type: ignore[arg-type]


class Keeper(OpenGate):
    """Remembers every call; answers from ``admits`` and ``results``; hides ``hidden``."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, Caller]] = []
        self.seen: list[Fields] = []
        self.refuse: Refused | None = None
        self.refuse_result: Refused | None = None
        self.before: Callable[[], None] | None = None
        self.hidden: set[str] = set()
        self.hold: asyncio.Event | None = None

    async def admit(self, call: Call, caller: Caller) -> Admitted | Refused:
        self.calls.append((call, caller))
        if self.hold is not None:
            await self.hold.wait()
        if self.before is not None:
            self.before()
        return self.refuse or await super().admit(call, caller)

    async def result(
        self, call: Call, caller: Caller, admitted: Admitted, fields: Fields
    ) -> Fields | Refused:
        self.seen.append(fields)
        return self.refuse_result or fields

    def offers(self, tool: Tool, caller: Caller) -> bool:
        return tool.name not in self.hidden
