"""A scripted agent behind ours, and a listener that keeps what it hears."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from sidecar.harness.agent import (
    Agent,
    AgentLimits,
    AgentSpec,
    Decision,
    Epitaph,
    PermissionRequest,
    Update,
)
from sidecar.harness.profiles import PROFILES, Asking, Profile

SCRIPTED = Path(__file__).with_name("scripted.py")

PROFILE = replace(
    PROFILES["generic"],
    name="scripted",
    title="A scripted agent",
    asking=Asking(mode="default", modes=frozenset({"default", "plan"})),
    drain=0.05,
    notes=(),
)
"""One that asks in mode ``default``, as the real ones do."""

LIMITS = AgentLimits(
    initialize=30, open=30, mode=30, silence=60, cancel=10, grace=2, settle=1.0, look=0.05
)


def command(**habits: object) -> tuple[str, ...]:
    """What starts a scripted agent with these habits."""
    return (sys.executable, "-S", "-E", str(SCRIPTED), json.dumps(habits))


def script(*steps: Mapping[str, object]) -> str:
    """A prompt."""
    return f"SCRIPT {json.dumps(steps)} END"


class Ear:
    """Keeps what it hears. Answers permissions with ``answer``, which may wait."""

    def __init__(
        self, answer: Decision | Callable[[PermissionRequest], Awaitable[Decision]] = "allow"
    ) -> None:
        self.answer = answer
        self.updates: list[Update] = []
        self.requests: list[PermissionRequest] = []
        self.dropped: list[PermissionRequest] = []
        self.modes: list[tuple[str, bool]] = []
        self.epitaphs: list[Epitaph] = []
        self.changed = asyncio.Event()

    def update(self, update: Update) -> None:
        self.updates.append(update)
        self.changed.set()

    async def permission(self, request: PermissionRequest) -> Decision:
        self.requests.append(request)
        self.changed.set()
        try:
            return self.answer if isinstance(self.answer, str) else await self.answer(request)
        except asyncio.CancelledError:
            self.dropped.append(request)
            raise

    def mode_changed(self, mode: str, asks: bool) -> None:
        self.modes.append((mode, asks))

    def gone(self, epitaph: Epitaph) -> None:
        self.epitaphs.append(epitaph)

    @property
    def text(self) -> str:
        return "".join(u.text for u in self.updates if u.kind == "agent_message_chunk")

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that was heard makes it true."""
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def forever(_: PermissionRequest) -> Decision:
    """Nobody ever answers."""
    await asyncio.Event().wait()
    return "allow"


@asynccontextmanager
async def running(
    cwd: Path,
    ear: Ear | None = None,
    *,
    profile: Profile = PROFILE,
    limits: AgentLimits = LIMITS,
    session: str | None = None,
    env: Mapping[str, str] | None = None,
    **habits: object,
) -> AsyncIterator[tuple[Agent, Ear]]:
    """An open scripted agent."""
    ear = ear or Ear()
    spec = AgentSpec("scripted", profile, command(**habits), cwd, env or {}, limits=limits)
    agent = await Agent.start(spec, ear)
    try:
        await agent.open(session)
        yield agent, ear
    finally:
        await agent.stop()


def sent(log: Path) -> list[dict[str, object]]:
    """What a scripted agent was sent, from its ``log``."""
    return [json.loads(line) for line in log.read_text().splitlines()]
