"""The agents' processes: started for a run, kept for a while after it, ended as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from sidecar.config import HarnessConfig
from sidecar.harness.agent import (
    Agent,
    AgentError,
    AgentListener,
    AgentSpec,
    Opened,
    Turn,
)
from sidecar.harness.naming import WorkKey
from sidecar.harness.run_ears import Ears
from sidecar.model import JsonObject
from sidecar.ports.proxy import Grant

__all__ = ["Agents", "Occupant", "RunningAgent", "StartAgent"]

log = logging.getLogger(__name__)

IDLE: Final = 300.0
"""Seconds for which an agent without a task is kept."""
_FAREWELL: Final = 30.0
"""Seconds for all that end at ``close``; each is bounded by itself."""
MOST_IDLE: Final = 4
"""Agents without a task that are kept; of more, the longest idle one ends. Some take 700 MB."""


class RunningAgent(Protocol):
    """What a run needs of ``agent.Agent``."""

    @property
    def session(self) -> str: ...
    @property
    def over(self) -> AgentError | None: ...
    @property
    def idle(self) -> bool: ...
    async def open(self, session: str | None) -> Opened: ...
    async def prompt(self, text: str, *, meta: JsonObject | None = None) -> Turn: ...
    async def cancel(self) -> None: ...
    async def stop(self) -> None: ...


StartAgent: TypeAlias = Callable[[AgentSpec, AgentListener], Awaitable[RunningAgent]]


async def start_agent(spec: AgentSpec, listener: AgentListener) -> RunningAgent:
    """A real one."""
    return await Agent.start(spec, listener)


@dataclass(slots=True, eq=False)
class Occupant:
    """One agent in its work. ``config`` is what it was started with, ``place`` the directory
    (device and inode) in which it is; ``grant`` its access to the forward proxy. ``keep``: it
    may stay after a run."""

    key: WorkKey
    place: tuple[int, int]
    config: HarnessConfig
    agent: RunningAgent
    ears: Ears
    grant: Grant | None = None
    keep: bool = True
    timer: asyncio.TimerHandle | None = None


class Agents:
    """Who starts one owes ``keep`` or ``stop``."""

    def __init__(self, start: StartAgent = start_agent, *, idle: float = IDLE) -> None:
        self._start = start
        self._idle_for = idle
        self._idle: dict[WorkKey, Occupant] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def there(self, key: WorkKey) -> bool:
        """Whether a work has an agent without a task, or one that is ending."""
        name = _task_name(key)
        return key in self._idle or any(task.get_name() == name for task in self._ending)

    def take(self, key: WorkKey, config: HarnessConfig, place: tuple[int, int]) -> Occupant | None:
        """The idle agent of a work, if it can be given a task as it is. The work is held."""
        occupant = self._idle.pop(key, None)
        if occupant is None:
            return None
        _stop_timer(occupant)
        same = occupant.config == config and occupant.place == place
        if same and occupant.agent.idle and not occupant.ears.is_gone:
            return occupant
        self._later(occupant)
        return None

    async def begin(
        self,
        key: WorkKey,
        config: HarnessConfig,
        spec: AgentSpec,
        ears: Ears,
        *,
        place: tuple[int, int],
        grant: Grant | None,
        keep: bool,
    ) -> Occupant:
        """Start a process. Raises AgentError; then there is none, and the grant is revoked."""
        # One that is about to end in the same worktree would still write there.
        await self.settled(key)
        try:
            agent = await self._start(spec, ears)
        except BaseException:
            if grant is not None:
                grant.revoke()
            raise
        return Occupant(key, place, config, agent, ears, grant, keep)

    def keep(self, occupant: Occupant) -> None:
        """It has no task any more. What cannot be kept ends."""
        occupant.ears.rest()
        usable = occupant.agent.idle and not occupant.ears.is_gone
        if self._closed or not occupant.keep or not usable:
            self._later(occupant)
            return
        self._idle[occupant.key] = occupant
        loop = asyncio.get_running_loop()
        occupant.timer = loop.call_later(self._idle_for, self._expired, occupant)
        while len(self._idle) > MOST_IDLE:
            self._expired(next(iter(self._idle.values())))

    def _expired(self, occupant: Occupant) -> None:
        if self._idle.get(occupant.key) is occupant:
            del self._idle[occupant.key]
            _stop_timer(occupant)
            self._later(occupant)

    async def stop(self, occupant: Occupant) -> None:
        """End it, all of it, whatever happens to who waits."""
        task = self._later(occupant)
        await asyncio.shield(task)

    async def stop_idle(self, key: WorkKey) -> None:
        """End the idle agent of a work, and return when nothing of any is left there."""
        occupant = self._idle.pop(key, None)
        if occupant is not None:
            _stop_timer(occupant)
            self._later(occupant)
        await self.settled(key)

    async def settled(self, key: WorkKey) -> None:
        """Return when no agent of the work is ending any more."""
        while tasks := [task for task in self._ending if task.get_name() == _task_name(key)]:
            # Each is bounded by what ending a process is bounded by.
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """End all that are idle, and wait for all that end. Idempotent."""
        self._closed = True
        for occupant in tuple(self._idle.values()):
            self._expired(occupant)
        if self._ending:
            await asyncio.wait(tuple(self._ending), timeout=_FAREWELL)

    def _later(self, occupant: Occupant) -> asyncio.Task[None]:
        occupant.ears.rest()
        task = asyncio.create_task(_end(occupant), name=_task_name(occupant.key))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


async def _end(occupant: Occupant) -> None:
    try:
        await occupant.agent.stop()
    except Exception:
        log.exception("the agent of work %s could not be ended in order", occupant.key)
    finally:
        if occupant.grant is not None:
            occupant.grant.revoke()


def _task_name(key: WorkKey) -> str:
    return f"end of the agent of {key}"


def _stop_timer(occupant: Occupant) -> None:
    if occupant.timer is not None:
        occupant.timer.cancel()
        occupant.timer = None
