"""A whole sidecar without its listeners: the real gateway, gate, policies, parking and works,
before scripted agents in processes of their own."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.config import Config, HarnessConfig, ParkingConfig, Rate, Retry
from sidecar.config.secrets import EnvFileSecrets
from sidecar.config.types import SHIPPED
from sidecar.events import Bus, SessionUpdate
from sidecar.gate import Gatehouse
from sidecar.gateway import Gateway
from sidecar.harness.git_checkout import Checkout
from sidecar.harness.runs import Runs
from sidecar.harness.tokens import RunTokens
from sidecar.harness.works import Works
from sidecar.model import Caller, Era, Fields, JsonObject, Principal
from sidecar.parking import Parking
from sidecar.parking.record import Parked
from sidecar.policy import load
from sidecar.policy.guard import Guarded
from sidecar.ports.policy import EngineOptions
from sidecar.ports.tracer import PassingTracer, Tracer
from sidecar.store.memory import MemoryStore
from sidecar.wire.json import encode
from tests.gate.kit import Policies
from tests.gateway.scripted import Scripted, config, offers
from tests.harness.agent.kit import command, script
from tests.harness.kit import repository

__all__ = ["Box", "command", "meta", "plain", "script", "soon"]

PATIENCE = 60.0
ALICE = Principal("alice", ("*",), ("*",), ("*",))


def plain(fields: Fields) -> dict[str, Any]:
    """A result as a client reads it."""
    return json.loads(encode(fields))


def meta(fields: Fields, key: str) -> Any:
    return plain(fields).get("_meta", {}).get(f"sidecar/{key}")


async def soon(what: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Return when it is so."""
    async with asyncio.timeout(timeout):
        while not what():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


@functools.cache
def _loaded(paths: tuple[Path, ...]) -> Guarded:
    """The shipped policies and these: loading them takes longer than most tests."""
    return load(paths, shipped=SHIPPED, options=EngineOptions(default="allow"))


class Box:
    """``folder`` holds a repository ``repo``, the works and the agents' sessions; another box
    over the same folder is the sidecar after a restart. One MCP server ``s`` is there too."""

    def __init__(
        self,
        folder: Path,
        *,
        habits: Mapping[str, object] | None = None,
        harness: Mapping[str, object] | None = None,
        hold: float = 30.0,
        expire: float = 86400.0,
        policies: tuple[Path, ...] = (),
        tracer: Tracer | None = None,
        store: MemoryStore | None = None,
        others: tuple[str, ...] = (),
        sweep: float | None = None,
        mcp_url: Callable[[], str | None] = lambda: None,
        idle: float = 300.0,
        **rest: Any,
    ) -> None:
        self.folder = folder
        self.repo = folder / "repo"
        self.root = folder / "worktrees"
        self.log = folder / "agent.log"
        starts = command(
            **{
                "mode": "default",
                "store": str(folder / "sessions.json"),
                "log": str(self.log),
                **(habits or {}),
            }
        )
        configs = {
            name: HarnessConfig(
                name, **{"profile": "generic", "command": starts, **(harness or {})}
            )  # type: ignore[arg-type]
            for name in ("claude", *others)
        }
        self.bus = Bus()
        self.updates: list[SessionUpdate] = []
        self.bus.listen(SessionUpdate, self.updates.append)
        self.config = Config(
            list_wait=0.2,
            retry=Retry(attempts=1),
            parking=ParkingConfig(hold=hold, expire=expire, rate=Rate(1_000_000, 1.0)),
        )
        self.store = store or MemoryStore()
        self.policies = Policies(_loaded(policies))
        self.parking = Parking(
            self.store,
            self.config.parking,
            revision=lambda: self.policies.current.revision,
            bus=self.bus,
            labels=lambda caller: self.house.ledger.of(caller),  # noqa: PLW0108  it comes later
        )
        self.house = Gatehouse(
            self.policies,
            self.store,
            self.bus,
            self.config,
            servers=lambda name: self.gateway.config_of(name),  # noqa: PLW0108  it comes later
            parking=self.parking,
        )
        tracer = tracer or PassingTracer()
        self.gateway = Gateway(self.config, self.bus, gate=self.house.gate, tracer=tracer)
        self.parking.definition = self.gateway.definition
        self.server = Scripted("s", offers(["write", "other"]), bus=self.bus)
        self.tokens = RunTokens()
        self.works = Works(self.root, [Checkout("repo", self.repo)], bus=self.bus, name="box")
        self.runs = Runs(
            self.works,
            configs,
            ["repo"],
            root=self.root,
            gate=self.house.gate,
            bus=self.bus,
            tokens=self.tokens,
            labels=self.house.ledger,
            secrets=EnvFileSecrets({}),
            tracer=tracer,
            mcp_url=mcp_url,
            servers=lambda: ["s"],
            hold=hold,
            sweep=sweep,
            name="box",
            idle=idle,
            **rest,
        )

    async def __aenter__(self) -> Box:
        if not self.repo.exists():
            repository(self.repo)
        await self.store.open()
        await self.house.start(self.gateway.tools)
        await self.parking.start()
        await self.runs.open()
        harnesses = [(harness, harness.server) for harness in self.runs.upstreams()]
        self.gateway.set_servers([(self.server, config("s")), *harnesses])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runs.close()
        await self.gateway.close()
        await self.parking.close()
        await self.house.close()

    # ------------------------------------------------------------------------ what callers do

    def call(
        self, task: str, work: str | None = "fix", *, name: str = "claude", **rest: Any
    ) -> asyncio.Task[Fields]:
        """Begin a call of the harness."""
        args: JsonObject = {"task": task}
        if work is not None:
            args["work"] = work
        who = rest.pop("who", ALICE)
        args.update(rest.pop("args", {}))
        caller = Caller(who, era=Era.LEGACY, session="s1", **rest)
        params: JsonObject = {"name": name, "arguments": args}
        return asyncio.create_task(self.gateway.request("tools/call", params, caller))

    async def done(self, *steps: Mapping[str, object], **rest: Any) -> dict[str, Any]:
        """The answer of a scripted task."""
        return plain(await asyncio.wait_for(self.call(script(*steps), **rest), PATIENCE))

    # ------------------------------------------------------------------------- what people do

    def parked(self, *states: str) -> list[Parked]:
        """The parked calls in these states, oldest first."""
        found, _ = self.parking.book.index.page(
            lambda parked: not states or parked.state in states,
            after=None,
            limit=1000,
            oldest_first=True,
        )
        return [row.parked for row in found]

    async def waits(self, count: int = 1) -> list[Parked]:
        """The calls that wait, once there are so many."""
        await soon(lambda: len(self.parked("waiting")) == count)
        return self.parked("waiting")

    async def answer(self, id: str, *, approve: bool = True, why: str = "") -> Parked:
        return await self.parking.answer(id, approve=approve, by="bob", way="token", why=why)

    def heard(self) -> list[dict[str, Any]]:
        """What agents were told, message by message."""
        if not self.log.exists():
            return []
        # The last line may still be written.
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]

    def prompts(self) -> list[str]:
        return [
            message["params"]["prompt"][0]["text"]
            for message in self.heard()
            if message.get("method") == "session/prompt"
        ]
