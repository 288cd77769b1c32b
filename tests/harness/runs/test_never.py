"""Whatever calls, people and agents do, and in whatever order: a work has one agent with one task
at a time, an answer is given to those who asked before it was given and to nobody after, what an
agent asks is answered as a person said and never later, and nothing is left in the end.

The real gateway, gate, parking and runs on a virtual clock; works and agents are scripted.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sidecar.config import HarnessConfig
from sidecar.config.secrets import EnvFileSecrets
from sidecar.harness.agent import (
    AgentError,
    AgentGone,
    AgentListener,
    AgentSpec,
    Decision,
    Epitaph,
    Opened,
    PermissionRequest,
    Turn,
)
from sidecar.harness.naming import WorkKey, WorkName
from sidecar.harness.runs import Runs
from sidecar.harness.session_asks import Extract, read
from sidecar.harness.sweep import Sweep
from sidecar.harness.tokens import RunTokens
from sidecar.harness.works import Nobody, Work
from sidecar.harness.worktree import WorkState
from sidecar.model import CLIENT_CANCELLED, Caller, Era, JsonObject, Principal
from sidecar.model import Decision as Policy
from sidecar.parking import Missing, WrongState
from tests.gateway.scripted import config
from tests.kit.examples import examples
from tests.parking.kit import PARKING, Node, Rules, VirtualLoop, epoch, moment, plain, store

PEOPLE = ("alice", "alice", "alice", "bob")
TASKS = ("one", "one", "two")
WORKS = ("fix", "fix", "other", None)
HOLD = 60.0
IDLE = 30.0
ENDING = 2.0
REASONS = ("end_turn", "end_turn", "refusal", "cancelled")


class OnlyPermissions(Rules):
    """Asks about what agents ask, and about nothing else."""

    def specialise(self, known: Mapping[str, object]) -> Rules:
        asked = known.get("tool.kind") == "permission"
        return self if asked else Rules("allow", "p/fine", revision=self.revision)


class Desk:
    """Works without git. ``inside``: those that somebody uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.occupants: Any = Nobody()
        self.inside: set[WorkKey] = set()
        self._made: dict[WorkKey, Work] = {}
        self._locks: dict[WorkKey, asyncio.Lock] = {}

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    @contextlib.asynccontextmanager
    async def use(self, name: WorkName) -> AsyncIterator[Work]:
        key = name.key
        async with self._locks.setdefault(key, asyncio.Lock()):
            await asyncio.sleep(0.01)
            assert key not in self.inside
            self.inside.add(key)
            try:
                new = key not in self._made
                path = self.root.joinpath(*key.parts)
                path.mkdir(parents=True, exist_ok=True)
                branch = key.branch.removeprefix("refs/heads/")
                work = Work(key, name, path, branch, "refs/heads/main", "b", 0.0, new)
                self._made[key] = work
                yield work
            finally:
                self.inside.discard(key)

    async def works(self) -> list[Work]:
        return list(self._made.values())

    async def state(self, key: WorkKey) -> WorkState:
        return WorkState(key.branch, "b", "h", (), False)

    async def sweep(self, *, dry_run: bool = False) -> Sweep:
        return Sweep((), ())


@dataclass(eq=False)
class Puppet:
    """An agent that does what the test says. ``turn`` is there while it has a prompt."""

    stage: Stage
    spec: AgentSpec
    listener: AgentListener
    session: str = ""
    over: AgentError | None = None
    stopped: bool = False
    turn: asyncio.Future[Turn] | None = None
    said: str = ""
    asks: dict[int, asyncio.Task[Decision]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return self.over is None and not self.stopped and self.turn is None

    async def open(self, session: str | None) -> Opened:
        await asyncio.sleep(0.01)
        self.session = session or f"s{next(self.stage.numbers)}"
        return Opened(self.session, "resumed" if session else "new")

    async def prompt(self, text: str, *, meta: JsonObject | None = None) -> Turn:
        assert self.idle
        others = [p for p in self.stage.puppets if p.spec.cwd == self.spec.cwd and p.turn]
        assert not others, "two agents have tasks in one work"
        self.turn = asyncio.get_running_loop().create_future()
        self.said = f"m{next(self.stage.numbers)}"
        self.stage.prompts.append(text.rpartition("\n\n")[2])
        try:
            return await self.turn
        finally:
            self.turn = None
            self._drop()

    def _drop(self) -> None:
        for task in self.asks.values():
            task.cancel()
        self.asks.clear()

    def finish(self, reason: str) -> None:
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(Turn(reason, self.said))

    async def cancel(self) -> None:
        self._drop()
        await asyncio.sleep(0.05)
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(Turn("cancelled", self.said, "cancel"))

    def die(self) -> None:
        gone = AgentGone("claude", Epitaph(9, 0, 0), self.said)
        self.over = gone
        self.listener.gone(gone.epitaph)
        self._drop()
        if self.turn is not None and not self.turn.done():
            self.turn.set_exception(gone)

    def ask(self) -> None:
        number = next(self.stage.numbers)
        call = {"title": f"q{number}", "kind": "execute", "rawInput": {"command": "x"}}
        options = [
            {"optionId": "y", "kind": "allow_once"},
            {"optionId": "n", "kind": "reject_once"},
        ]
        params: JsonObject = {"sessionId": self.session, "toolCall": call, "options": options}
        request = read(number, params, call, Extract())
        self.asks[number] = asyncio.create_task(self._answered(request))

    async def _answered(self, request: PermissionRequest) -> Decision:
        decision = await self.listener.permission(request)
        self.stage.told[request.title] = decision
        return decision

    async def stop(self) -> None:
        self._drop()
        await asyncio.sleep(ENDING)
        self.stopped = True
        if self.turn is not None and not self.turn.done():
            self.turn.set_exception(AgentGone("claude", Epitaph(0, 0, 0)))


class Stage:
    def __init__(self) -> None:
        self.numbers = iter(range(1_000_000))
        self.puppets: list[Puppet] = []
        self.prompts: list[str] = []
        self.told: dict[str, Decision] = {}

    async def start(self, spec: AgentSpec, listener: AgentListener) -> Puppet:
        await asyncio.sleep(0.01)
        alive = [p for p in self.puppets if p.spec.cwd == spec.cwd and not p.stopped]
        assert not alive, "two agents live in one work"
        puppet = Puppet(self, spec, listener)
        self.puppets.append(puppet)
        return puppet

    @property
    def working(self) -> list[Puppet]:
        return [puppet for puppet in self.puppets if puppet.turn is not None]


@dataclass(eq=False)
class Asking:
    """A request, when it began and what it brought."""

    task: asyncio.Task[Any]
    began: int
    ended: int = 0


async def _at_once(action: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    return action(*args, **kwargs)


class Never(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="runs"))
        self.loop = VirtualLoop()
        # Threads and disks know no virtual time.
        self.patches = [
            mock.patch("asyncio.to_thread", _at_once),
            mock.patch("os.fsync", lambda fd: None),
        ]
        for patch in self.patches:
            patch.start()
        self.steps = 0
        self.calls: list[Asking] = []
        self.answered: dict[str, Policy] = {}
        self.decided: dict[str, bool] = {}
        self.given: dict[str, int] = {}

    def run(self, work: Awaitable[Any]) -> Any:
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(work)

    @initialize(busy=st.sampled_from(["refuse", "queue"]))
    def begin(self, busy: str) -> None:
        self.busy = busy
        self.stage = Stage()
        self.desk = Desk(self.folder)
        self.run(self._open())

    async def _open(self, kept: Any = None) -> None:
        self.shared = kept or await store()
        self.node = await Node(
            self.shared, OnlyPermissions("ask"), parking=PARKING, lease=20.0
        ).start()
        harness = HarnessConfig("claude", "generic", ("agent",), busy=self.busy, hold=HOLD)  # type: ignore[arg-type]
        self.tokens = RunTokens()
        self.runs = Runs(
            self.desk,  # type: ignore[arg-type]
            {"claude": harness},
            ["repo"],
            root=self.folder,
            gate=self.node.house.gate,
            bus=self.node.bus,
            tokens=self.tokens,
            labels=self.node.house.ledger,
            secrets=EnvFileSecrets({}),
            hold=PARKING.hold,
            sweep=None,
            start=self.stage.start,
            idle=IDLE,
            clock=epoch,
        )
        await self.runs.open()
        servers = [(each, each.server) for each in self.runs.upstreams()]
        self.node.gateway.set_servers([(self.node.server, config("s")), *servers])

    # ------------------------------------------------------------------------- what happens

    @rule(task=st.sampled_from(TASKS), work=st.sampled_from(WORKS), who=st.sampled_from(PEOPLE))
    def call(self, task: str, work: str | None, who: str) -> None:
        async def begin() -> None:
            arguments: JsonObject = {"task": task}
            if work is not None:
                arguments["work"] = work
            caller = Caller(Principal(who, ("*",), ("*",), ("*",)), era=Era.LEGACY, session="s")
            params: JsonObject = {"name": "claude", "arguments": arguments}
            request = self.node.gateway.request("tools/call", params, caller)
            self.calls.append(Asking(asyncio.create_task(request), self.steps + 1))
            await moment(0.2)

        self.run(begin())

    @rule(which=st.integers(0, 5), explicit=st.booleans())
    def leave(self, which: int, explicit: bool) -> None:
        waiting = [call for call in self.calls if not call.task.done()]

        async def leave() -> None:
            waiting[which % len(waiting)].task.cancel(CLIENT_CANCELLED if explicit else None)
            await moment(0.2)

        if waiting:
            self.run(leave())

    @rule(seconds=st.sampled_from([0.1, 5.0, IDLE, PARKING.hold + 1, HOLD + 1, 400.0]))
    def wait(self, seconds: float) -> None:
        self.run(moment(seconds))

    def _puppet(self, which: int) -> Puppet | None:
        working = self.stage.working
        return working[which % len(working)] if working else None

    @rule(which=st.integers(0, 3), reason=st.sampled_from(REASONS))
    def finish(self, which: int, reason: str) -> None:
        async def finish(puppet: Puppet) -> None:
            puppet.finish(reason)
            await moment(0.2)

        if (puppet := self._puppet(which)) is not None:
            self.run(finish(puppet))

    @rule(which=st.integers(0, 3))
    def ask(self, which: int) -> None:
        async def ask(puppet: Puppet) -> None:
            puppet.ask()
            await moment(0.2)

        if (puppet := self._puppet(which)) is not None:
            self.run(ask(puppet))

    @rule(which=st.integers(0, 3), idle=st.booleans())
    def die(self, which: int, idle: bool) -> None:
        alive = [p for p in self.stage.puppets if not p.stopped and p.over is None]
        if idle:
            alive = [puppet for puppet in alive if puppet.idle and puppet.session]

        async def die() -> None:
            alive[which % len(alive)].die()
            await moment(0.2)

        if alive:
            self.run(die())

    @rule(which=st.integers(0, 3), approve=st.booleans(), parent=st.booleans())
    def answer(self, which: int, approve: bool, parent: bool) -> None:
        waiting = self.node.rows("waiting")

        async def answer() -> None:
            parked = waiting[which % len(waiting)]
            same = [each for each in waiting if each.parent == parked.parent]
            id = parked.parent if parent else parked.id
            try:
                answered = await self.node.parking.answer(id, approve=approve, by="a", way="t")
            except Missing:
                assert parent and len(same) > 1
            except WrongState:
                pass
            else:
                assert not parent or len(same) == 1
                whole = await self.node.parking.book.get(answered.id)
                title = plain({"args": whole.args})["args"]["permission"]["title"]
                self.decided[title] = approve
            await moment(0.2)

        if waiting:
            self.run(answer())

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        async def again() -> None:
            old, node = self.runs, self.node
            if kill:
                # Nothing that is done from here on reaches the disk or the store.
                node.store.cut = True
                nothing = mock.Mock()
                old._memories.put = nothing  # type: ignore[method-assign]
                old._memories.handed_over = nothing  # type: ignore[method-assign]
                for puppet in self.stage.puppets:
                    puppet.stopped = True
            for call in self.calls:
                call.task.cancel()
            await old.close()
            await asyncio.gather(*(call.task for call in self.calls), return_exceptions=True)
            await node.close()
            await self._open(self.shared)

        self.run(again())

    # ------------------------------------------------------------------------------ never

    @invariant()
    def an_answer_is_given_once(self) -> None:
        self.steps += 1
        if not hasattr(self, "stage"):
            return
        for call in self.calls:
            if not call.task.done() or call.ended:
                continue
            call.ended = self.steps
            if call.task.cancelled() or call.task.exception() is not None:
                continue
            told = plain(call.task.result()).get("structuredContent")
            message = told["last_message"] if told is not None else ""
            if not message:
                continue
            first = self.given.setdefault(message, self.steps)
            assert call.began <= first, "an answer was given to one who asked after it was given"

    @invariant()
    def agents_hear_what_people_said(self) -> None:
        for title, decision in getattr(self, "stage", Stage()).told.items():
            assert decision != "allow" or self.decided.get(title) is True
            assert decision != "reject" or self.decided.get(title, False) is False

    @invariant()
    def runs_are_known(self) -> None:
        if not hasattr(self, "stage"):
            return
        working = {puppet.spec.cwd for puppet in self.stage.working}
        active = {self.folder.joinpath(*key.parts) for key in self.runs._active}
        assert working <= active
        for run in self.runs._all():
            assert run.waiters or run.polled or run.cancelling, "a run that nobody waits for"
        assert len(self.stage.working) == len(working)

    def teardown(self) -> None:
        try:
            if hasattr(self, "stage"):
                self.run(self._end())
        finally:
            for patch in self.patches:
                patch.stop()
            asyncio.set_event_loop(None)
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _end(self) -> None:
        for call in self.calls:
            call.task.cancel()
        await asyncio.gather(*(call.task for call in self.calls), return_exceptions=True)
        # Leases of those that were killed run out; the others have ended.
        await moment(100)
        await self.runs.close()
        assert all(puppet.stopped for puppet in self.stage.puppets)
        assert not self.stage.working
        assert not self.runs._active
        assert self.desk.inside == set()
        assert self.tokens._principals == {}
        await moment(100)
        assert self.node.rows("waiting", "taken") == []
        await self.node.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert left == set(), left


Never.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestNever = Never.TestCase
