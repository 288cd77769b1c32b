"""All there is of coding agents, as the app holds it: nothing, until a harness is configured.

What runs them is imported by the first one: it is a fifth of what a start imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar import users
from sidecar.config import Config, Limits, ServerConfig
from sidecar.events import Bus
from sidecar.harness.run_labels import Labels
from sidecar.harness.tokens import RunTokens
from sidecar.model import JsonObject
from sidecar.ports.agents import EditorSessions
from sidecar.ports.gate import Gate
from sidecar.ports.proxy import ChildProxy
from sidecar.ports.secrets import Secrets
from sidecar.ports.tracer import Tracer
from sidecar.ports.upstream import Upstream

if TYPE_CHECKING:
    from sidecar.harness.agent import AgentListener, AgentSpec
    from sidecar.harness.editors import Editors
    from sidecar.harness.git_checkout import Checkout
    from sidecar.harness.run_agents import RunningAgent
    from sidecar.harness.runs import Runs
    from sidecar.harness.works import Works

__all__ = ["House", "HouseError", "Means"]


class HouseError(Exception):
    """The coding agents cannot be had as they are configured. Says what to do."""


@dataclass(frozen=True, slots=True)
class Means:
    """What runs are made with. ``mcp_url`` is where agents reach us, ``servers`` gives the names
    of the MCP servers there are; each as it is then."""

    gate: Gate
    bus: Bus
    tokens: RunTokens
    labels: Labels
    secrets: Secrets
    mcp_url: Callable[[], str | None]
    servers: Callable[[], Iterable[str]]
    proxy: ChildProxy
    tracer: Tracer | None = None


class House:
    """Implements ``ports.agents.AgentRuns``. ``open`` it inside the loop, ``close`` it last."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._works: Works | None = None
        self._runs: Runs | None = None
        self._editors: Editors | None = None
        self._limits = Limits()

    async def open(self, config: Config) -> None:
        """Make what the configuration has. Raises HouseError."""
        self._limits = config.limits
        if config.harnesses and config.worktrees is not None:
            await self._begin(config, config.worktrees)

    async def _begin(self, config: Config, root: Path) -> None:
        from sidecar.harness.editors import Editors
        from sidecar.harness.handover import Owner
        from sidecar.harness.runs import Runs
        from sidecar.harness.works import Works

        means, user = self._means, users.current()
        works = Works(
            root,
            _checkouts(config),
            bus=means.bus,
            name=config.name,
            owner=Owner(user.uid, user.gid) if user is not None else None,
        )
        runs = Runs(
            works,
            config.harnesses,
            tuple(config.checkouts),
            root=root,
            gate=means.gate,
            bus=means.bus,
            tokens=means.tokens,
            labels=means.labels,
            secrets=means.secrets,
            tracer=means.tracer,
            mcp_url=means.mcp_url,
            servers=means.servers,
            proxy=means.proxy,
            hold=config.parking.hold,
            sweep=config.sweep,
            name=config.name,
            separator=config.separator,
            start=self._start,
        )
        try:
            await runs.open()
        except _faults() as error:
            await works.close()
            raise HouseError(str(error)) from error
        self._works, self._runs = works, runs
        folders = {each.name: each.path for each in config.checkouts.values()}
        self._editors = Editors(works, await asyncio.to_thread(root.resolve), folders)

    async def _start(self, spec: AgentSpec, listener: AgentListener) -> RunningAgent:
        """An agent, within the limits as they are now."""
        from sidecar.harness.agent import AgentLimits
        from sidecar.harness.run_agents import start_agent

        return await start_agent(replace(spec, limits=AgentLimits.of(self._limits)), listener)

    async def reconfigure(self, config: Config) -> None:
        """Other harnesses and checkouts from now on; runs are not disturbed.

        Raises HouseError, and then nothing was changed.
        """
        if self._works is None or self._runs is None:
            await self.open(config)
            return
        try:
            await self._works.reconfigure(_checkouts(config))
        except _faults() as error:
            raise HouseError(str(error)) from error
        self._limits = config.limits
        if self._editors is not None:
            self._editors.checkouts = {each.name: each.path for each in config.checkouts.values()}
        self._runs.reconfigure(
            config.harnesses,
            tuple(config.checkouts),
            hold=config.parking.hold,
            sweep=config.sweep,
        )

    @property
    def editors(self) -> EditorSessions | None:
        """What the sessions of editors are; ``None`` while there is no harness."""
        return self._editors

    def revoked(self, principal: str) -> None:
        """A principal may not call any more: what it began is cancelled."""
        if self._runs is not None:
            self._runs.revoked(principal)

    def drain(self) -> None:
        """The end is near: whoever waits for an agent is told to call again."""
        if self._runs is not None:
            self._runs.drain()

    async def close(self) -> None:
        """End every agent, all of it. The works stay. Idempotent."""
        if self._runs is not None:
            await self._runs.close()

    def upstreams(self) -> list[tuple[Upstream, ServerConfig]]:
        """The harnesses as the gateway takes them, in the order of the configuration."""
        if self._runs is None:
            return []
        return [(harness, harness.server) for harness in self._runs.upstreams()]

    async def works(self) -> Sequence[JsonObject]:
        """See ``ports.agents.AgentRuns``."""
        return [] if self._runs is None else await self._runs.works()

    async def sweep(self, *, dry_run: bool = False) -> JsonObject:
        """See ``ports.agents.AgentRuns``."""
        if self._runs is None:
            return {"removed": [], "kept": [], "dry_run": dry_run}
        return await self._runs.sweep(dry_run=dry_run)


def _faults() -> tuple[type[Exception], ...]:
    """What says why works cannot be had as they are configured."""
    from sidecar.harness.git import GitError
    from sidecar.harness.git_checkout import CheckoutError
    from sidecar.harness.works import WorkError

    return (WorkError, CheckoutError, GitError)


def _checkouts(config: Config) -> list[Checkout]:
    from sidecar.harness.git_checkout import Checkout

    return [
        Checkout(each.name, each.path, each.base, each.fetch) for each in config.checkouts.values()
    ]
