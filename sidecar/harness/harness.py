"""A harness as the gateway sees it: an upstream with one tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sidecar.config import HarnessConfig, ServerConfig
from sidecar.harness.profiles import PROFILES
from sidecar.harness.tool import BadTask, definition, name_of, read
from sidecar.mcp.errors import method_not_found
from sidecar.model import Call, Caller, Entries, Fields, JsonObject, ServerStatus, State

__all__ = ["Harness", "as_server"]


def as_server(config: HarnessConfig) -> ServerConfig:
    """A harness as the catalog and policies know it."""
    return ServerConfig(
        config.name,
        "acp",
        config.command,
        config.env,
        trusted=config.trusted,
        gated=config.gated,
        egress=config.egress,
    )


class Runner(Protocol):
    """Who does the work: ``runs.Runs``."""

    def joins(self, harness: str, call: Call, caller: Caller) -> bool: ...

    async def run(self, config: HarnessConfig, call: Call, caller: Caller) -> Fields: ...


class Harness:
    """Implements ``ports.agents.AgentUpstream``. Its runs are not its own: they go on when the
    configuration changes, and it has nothing to close."""

    def __init__(self, config: HarnessConfig, checkouts: Sequence[str], runs: Runner) -> None:
        self.config = config
        self.server = as_server(config)
        self._checkouts = tuple(checkouts)
        self._runs = runs
        title = PROFILES[config.profile].title
        tool = definition(config.name, title, self._checkouts)
        self._entries = Entries(tools=(tool,), capabilities={"tools": {}})

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def status(self) -> ServerStatus:
        return ServerStatus(self.name, "configured", "acp", State.READY, tools=1)

    def entries(self) -> Entries:
        return self._entries

    async def settled(self) -> None:
        """At once: an agent is started when it has a task."""

    def about(self, params: JsonObject, caller: Caller) -> JsonObject:
        """The variable ``work``, as far as the arguments say which; a new work has no name yet."""
        try:
            task = read(params, self._checkouts, caller.principal)
            name = name_of(self.name, task, caller.principal)
        except BadTask:
            return {}
        known = bool(task.work)
        work: JsonObject = {
            "name": task.work,
            "checkout": task.checkout,
            "branch": name.key.branch.removeprefix("refs/heads/") if known else "",
            "path": "",
        }
        return {"work": work}

    def joins(self, call: Call, caller: Caller) -> bool:
        return self._runs.joins(self.name, call, caller)

    async def run(self, call: Call, caller: Caller) -> Fields:
        return await self._runs.run(self.config, call, caller)

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        """A harness has no methods but its tool, which is called by ``run``."""
        raise method_not_found(method)

    async def subscribe(self, uri: str, caller: Caller) -> None:
        raise method_not_found("resources/subscribe")

    async def unsubscribe(self, uri: str, caller: Caller) -> None:
        """There is nothing to end."""

    async def set_log_level(self, level: str, caller: Caller) -> None:
        """Agents do not log to callers."""

    async def forget(self, isolation: str) -> None:
        """Runs outlive sessions."""

    async def close(self) -> None:
        """Its runs are ended by their owner."""
