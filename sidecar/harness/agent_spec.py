"""What an agent is started with, and who listens to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from sidecar.config import Limits
from sidecar.harness.agent_errors import Epitaph
from sidecar.harness.profiles import Profile
from sidecar.harness.session import Bounds
from sidecar.harness.session_asks import Decision, PermissionRequest
from sidecar.harness.updates import Update
from sidecar.model import JsonObject


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Times in seconds, ``memory`` in bytes.

    ``initialize`` is for the process to come up, ``open`` for each request that opens a
    session, ``mode`` for reading the mode back. ``silence`` is how long a turn may go on
    without a frame while no question waits; ``cancel`` how long a cancelled turn may take to
    end, ``grace`` a process. ``settle`` bounds the wait for what comes after the end of a turn.
    ``memory`` is what its whole process tree may hold, ``None`` for any.
    """

    bounds: Bounds = field(default_factory=Bounds)
    initialize: float = 60.0
    open: float = 120.0
    mode: float = 10.0
    silence: float = 600.0
    cancel: float = 10.0
    grace: float = 5.0
    settle: float = 5.0
    memory: int | None = 8 << 30
    look: float = 1.0
    """Between two looks at its processes and silence. What it left behind is known by having
    been seen while it was there."""

    @classmethod
    def of(cls, limits: Limits) -> AgentLimits:
        """With those of the configuration that are about lines."""
        return cls(bounds=Bounds(line=limits.line, depth=limits.depth))


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent for one work. ``env`` comes on top of what every child gets of our environment
    (``children.INHERITED``), and under what the profile insists on."""

    harness: str
    profile: Profile
    command: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    mcp_servers: tuple[JsonObject, ...] = field(default=(), repr=False)
    limits: AgentLimits = field(default_factory=AgentLimits)


class AgentListener(Protocol):
    """Who hears an agent. Nothing here may block, but for ``permission``."""

    def update(self, update: Update) -> None:
        """It said something, or its run is in another state."""
        ...

    async def permission(self, request: PermissionRequest) -> Decision:
        """Whether it may. Cancelled when the answer is of no use any more: the agent took the
        question back, its turn ended or was cancelled, or it is gone. What it raises rejects."""
        ...

    def mode_changed(self, mode: str, asks: bool) -> None:
        """It says that it is in another mode. Where it does not ask in that one, the turn fails
        (reason ``mode``) and the agent is ended, whatever is done here."""
        ...

    def gone(self, epitaph: Epitaph) -> None:
        """Its process ended without our doing."""
        ...


Ended = Literal["agent", "cancel", "denial"]


@dataclass(frozen=True, slots=True)
class Turn:
    """How a turn ended.

    ``stop_reason`` is the agent's word, also one that nobody knows. ``ended_by`` says who made
    it end: some agents end it, as ``cancelled`` or otherwise, because a permission was denied.
    ``cut``: the last message was longer than is kept. ``usage`` is what the agent counted.
    """

    stop_reason: str
    last_message: str
    ended_by: Ended = "agent"
    cut: bool = False
    usage: JsonObject | None = None
    raw: JsonObject = field(default_factory=dict)
