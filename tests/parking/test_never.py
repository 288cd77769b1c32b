"""No sequence of events runs a call twice, runs a denied one, or runs one whose arguments,
definition, caller or policy changed since a person approved it.

Two whole nodes on one store, driven in any order; the server is the witness: whatever reaches it
has to be covered by an approval that a person gave to exactly that, and that nothing has used.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from sidecar.model import CLIENT_CANCELLED, Caller, Fields, JsonObject, RpcError, Unavailable
from sidecar.parking import Missing, WrongState
from sidecar.ports.store import StoreError
from sidecar.wire.json import digest
from tests.parking.kit import PARKING, Node, Rules, VirtualLoop, moment, result, store

# Mostly the same call by the same agent: that is where things can go wrong.
AGENTS = ("alice", "alice", "alice", "bob")
TOOLS = ("write", "write", "write", "other")
SAME: JsonObject = {"a": 1, "b": 2}
ARGUMENTS: tuple[JsonObject, ...] = (SAME, SAME, SAME, {"b": 2, "a": 1}, {"a": 1, "b": 3}, {})
HOLD = 5.0
DECISIONS = (
    ("ask", ("p/gated",)),
    ("ask", ("p/gated", "p/tainted")),
    ("ask", ("p/tainted",)),
    ("deny", ("p/never",)),
    ("allow", ("p/fine",)),
)
EXPIRE = 300.0
NODES = st.sampled_from([(0, 1), (0,), (1,)])
DISTURBANCES = st.lists(
    st.one_of(
        st.tuples(
            st.just("reload"),
            st.fixed_dictionaries({"which": st.sampled_from(DECISIONS[:3]), "nodes": NODES}),
        ),
        st.tuples(
            st.just("redefine"),
            st.fixed_dictionaries(
                {"tool": st.just("write"), "back": st.booleans(), "told": st.booleans()}
            ),
        ),
        st.tuples(
            st.just("restart"),
            st.fixed_dictionaries({"node": st.integers(0, 1), "kill": st.booleans()}),
        ),
        st.tuples(
            st.just("pass_time"),
            st.fixed_dictionaries({"seconds": st.sampled_from([0.0, 0.0005, HOLD, EXPIRE])}),
        ),
    ),
    max_size=2,
)


@dataclass
class Approval:
    """What a person said yes to, as it was shown to them."""

    principal: str
    tool: str
    args: str
    definition: str
    rules: frozenset[str]
    revision: str
    at: float
    used: bool = False


@dataclass
class World:
    """What the test knows for itself."""

    loop: VirtualLoop
    approvals: dict[str, Approval] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    slow: float = 0.0
    failure: Exception | None = None
    definitions: dict[str, int] = field(default_factory=dict)
    revisions: int = 1


class Sidecars(RuleBasedStateMachine):
    """Everything that may happen to calls that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        asyncio.set_event_loop(self.loop)
        self.world = World(self.loop)
        self.nodes: list[Node] = []
        self.calls: list[tuple[int, asyncio.Task[Fields]]] = []
        self.graves: list[Node] = []

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.shared = self.run(store())
        self.rules = Rules()
        self.nodes = [self.run(self.made()) for _ in range(2)]

    async def made(self) -> Node:
        parking = replace(PARKING, expire=EXPIRE, hold=HOLD, max_waiting=10)
        node = Node(self.shared, self.rules, parking=parking)
        node.server.answer = lambda method, params, caller: self.witness(node, params, caller)
        for name, version in self.world.definitions.items():
            node.redefine(name, description=f"version {version}")
        await node.start()
        return node

    # --------------------------------------------------------------------------- the witness

    async def witness(self, node: Node, params: JsonObject, caller: Caller) -> Fields:
        """Whatever reaches the server was approved, or needed no approval."""
        world, rules = self.world, node.holder.current.policy
        assert isinstance(rules, Rules)
        if rules.decision == "deny":
            world.wrong.append("a denied call ran")
        elif rules.decision == "ask" and not self.covered(node, params, caller, rules):
            world.wrong.append(f"{caller.principal.name} ran {params} without an approval")
        if world.failure is not None:
            raise world.failure
        if world.slow:
            await asyncio.sleep(world.slow)
        return result("ran")

    def covered(self, node: Node, params: JsonObject, caller: Caller, rules: Rules) -> bool:
        """Use up an approval of exactly this."""
        tool = node.gateway.definition("s", str(params["name"]))
        assert tool is not None
        for approval in self.world.approvals.values():
            if (
                not approval.used
                and approval.principal == caller.principal.name
                and approval.tool == tool.name
                and approval.args == digest(params["arguments"])
                and approval.definition == tool.digest
                and approval.revision == rules.revision
                and approval.rules >= set(rules.rules)
                and self.loop.epoch() - approval.at < EXPIRE
            ):
                approval.used = True
                return True
        return False

    # ------------------------------------------------------------------------ what happens

    @rule(
        node=st.integers(0, 1),
        who=st.sampled_from(AGENTS),
        tool=st.sampled_from(TOOLS),
        args=st.sampled_from(ARGUMENTS),
    )
    def call(self, node: int, who: str, tool: str, args: JsonObject) -> None:
        async def begin() -> None:
            self.calls.append((node, self.nodes[node].call(f"s__{tool}", dict(args), who=who)))
            await moment()

        self.run(begin())

    @rule(which=st.integers(0, 50), words=st.booleans())
    def disconnect(self, which: int, words: bool) -> None:
        live = [task for _, task in self.calls if not task.done()]
        # No precondition: ids are random, and what is drawn must not depend on what came of them.
        if live:
            live[which % len(live)].cancel(*((CLIENT_CANCELLED,) if words else ()))
        self.run(moment(0.0))

    @rule(which=st.integers(0, 50), node=st.integers(0, 1), yes=st.booleans(), now=st.booleans())
    def answer_anything(self, which: int, node: int, yes: bool, now: bool) -> None:
        rows = self.nodes[node].rows()
        if rows:
            self.run(self.answered(self.nodes[node], rows[which % len(rows)].id, yes))
        if now:
            self.run(moment())

    @rule(node=st.integers(0, 1), yes=st.sampled_from([True, True, False]), now=st.booleans())
    def answer_what_waits(self, node: int, yes: bool, now: bool) -> None:
        for row in self.nodes[node].rows("waiting"):
            self.run(self.answered(self.nodes[node], row.id, yes))
        if now:
            self.run(moment())

    async def answered(self, node: Node, id: str, yes: bool) -> None:
        try:
            shown = await node.parking.book.get(id)
        except (Missing, StoreError):
            return
        mine = None
        if yes and id not in self.world.approvals:
            # It counts from now on: it may be used before whoever gave it hears that it counts.
            mine = self.world.approvals[id] = Approval(
                shown.principal,
                shown.tool,
                digest(shown.args),
                shown.definition,
                frozenset(shown.rules),
                node.holder.current.revision,
                self.loop.epoch(),
            )
        try:
            await node.parking.answer(id, approve=yes, by="p", way="token")
        except (WrongState, Missing):
            if mine is not None:
                del self.world.approvals[id]
                if mine.used:
                    self.world.wrong.append("an approval was used that was refused")

    @rule(which=st.sampled_from(DECISIONS), nodes=NODES)
    def reload(self, which: tuple[str, tuple[str, ...]], nodes: tuple[int, ...]) -> None:
        self.world.revisions += 1
        made = Rules(which[0], *which[1], revision=f"r{self.world.revisions}")
        if len(nodes) == 2:
            self.rules = made

        async def reload() -> None:
            for n in nodes:
                self.nodes[n].reload(made)

        self.run(reload())

    @rule(tool=st.sampled_from(TOOLS), back=st.booleans(), told=st.booleans())
    def redefine(self, tool: str, back: bool, told: bool) -> None:
        version = 0 if back else self.world.definitions.get(tool, 0) + 1
        self.world.definitions[tool] = version

        async def redefine() -> None:
            for node in self.nodes:
                bus, node.server.bus = node.server.bus, node.server.bus if told else None
                node.redefine(tool, description=f"version {version}")
                node.server.bus = bus

        self.run(redefine())

    @rule(seconds=st.sampled_from([0.0, 0.0005, 1.0, HOLD, HOLD, 150.0, 301.0]))
    def pass_time(self, seconds: float) -> None:
        self.run(moment(seconds))

    @rule(slow=st.sampled_from([0.0, 0.0005, 30.0, 100.0]))
    def runs_take(self, slow: float) -> None:
        self.world.slow = slow

    @rule(
        failure=st.sampled_from(
            [
                None,
                None,
                RpcError(-32000, "no"),
                Unavailable("s", "lost", ran="maybe"),
                Unavailable("s", "down", ran="no"),
            ]
        )
    )
    def runs_end(self, failure: Exception | None) -> None:
        self.world.failure = failure

    @rule(node=st.integers(0, 1), kill=st.booleans())
    def restart(self, node: int, kill: bool) -> None:
        async def restart() -> None:
            old = self.nodes[node]
            if kill:
                old.store.cut = True
            else:
                old.parking.drain()
                await moment()
            tasks = [task for n, task in self.calls if n == node and not task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await old.close()
            self.nodes[node] = await self.made()

        self.run(restart())

    @rule(who=st.sampled_from(AGENTS))
    def revoke(self, who: str) -> None:
        async def revoke() -> None:
            for node in self.nodes:
                node.parking.revoked(who)

        self.run(revoke())

    @rule()
    def remove(self) -> None:
        async def remove() -> None:
            for node in self.nodes:
                node.parking.removed("s")

        self.run(remove())

    @rule(
        nodes=st.lists(st.integers(0, 1), min_size=1, max_size=3),
        polled=st.booleans(),
        before=DISTURBANCES,
        by=st.integers(0, 1),
        after=DISTURBANCES,
        again=st.integers(0, 1),
    )
    def story(
        self,
        nodes: list[int],
        polled: bool,
        before: list[tuple[str, dict[str, Any]]],
        by: int,
        after: list[tuple[str, dict[str, Any]]],
        again: int,
    ) -> None:
        """What has to be in order for something to go wrong: asked, answered, used."""
        for node in nodes:
            self.call(node, "alice", "write", SAME)
        if polled:
            self.pass_time(HOLD)
        for name, given in before:
            getattr(self, name)(**given)
        self.answer_what_waits(by, True, False)
        for name, given in after:
            getattr(self, name)(**given)
        self.call(again, "alice", "write", SAME)

    # ------------------------------------------------------------------------ what is so

    @invariant()
    def nothing_ran_that_should_not(self) -> None:
        assert self.world.wrong == []

    @invariant()
    def every_call_gets_an_answer_or_waits(self) -> None:
        for _, task in self.calls:
            if task.done() and not task.cancelled():
                failure = task.exception()
                assert failure is None or isinstance(failure, (RpcError, Unavailable)), failure

    def teardown(self) -> None:
        async def end() -> None:
            # Whoever waits still is answered in the end, whatever has happened.
            self.world.slow = 0.0
            await moment(500)
            assert [task for _, task in self.calls if not task.done()] == []
            for node in self.nodes:
                states = {row.state.value for row in node.rows()}
                assert not states & {"taken"}, states
                await node.close()
            await self.shared.close()

        try:
            if self.nodes:
                self.run(end())
                assert self.world.wrong == []
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


TestNever = Sidecars.TestCase
TestNever.settings = settings(
    max_examples=int(os.environ.get("SIDECAR_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
