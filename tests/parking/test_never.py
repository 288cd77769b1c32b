"""No sequence of events runs a call twice, runs a denied one, or runs one whose arguments,
definition, caller or policy changed since a person approved it.

Two whole nodes on one store, driven in any order; the server is the witness: whatever reaches it
has to be covered by an approval that a person gave to exactly that, and that nothing has used.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
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

from sidecar.model import (
    CLIENT_CANCELLED,
    Brought,
    Caller,
    Era,
    Fields,
    JsonObject,
    RpcError,
    Unavailable,
)
from sidecar.parking import Missing, Parked, State, WrongState
from sidecar.ports.store import StoreError
from sidecar.wire.json import digest
from tests.kit.examples import examples
from tests.parking.kit import PARKING, Node, Rules, VirtualLoop, moment, plain, result, store

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
FORMS: JsonObject = {"elicitation": {}}
# What the one who runs a client says to the question: yes, no, no, nothing, nothing clear.
SAID: tuple[JsonObject, ...] = (
    {"action": "accept", "content": {"decision": "approve"}},
    {"action": "accept", "content": {"decision": "deny"}},
    {"action": "decline"},
    {"action": "cancel"},
    {"action": "accept", "content": {}},
)
SAYS = st.sampled_from([SAID[0], SAID[0], SAID[0], *SAID])
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


def about(params: JsonObject) -> str:
    """The id of the call that a question is about."""
    found = re.search(r"^Id (\S+)\. ", str(params["message"]), re.MULTILINE)
    assert found is not None
    return found[1]


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
class Question:
    """What a client was asked: ``later`` takes the answer while the request is held open, else
    it is brought with the same request, and with ``state``."""

    node: int
    id: str
    who: str
    tool: str
    args: JsonObject
    state: str = ""
    later: asyncio.Future[Fields] | None = None


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
        self.questions: list[Question] = []

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.shared = self.run(store())
        self.rules = Rules()
        self.nodes = [self.run(self.made()) for _ in range(2)]

    async def made(self) -> Node:
        parking = replace(PARKING, expire=EXPIRE, hold=HOLD, max_waiting=10, elicit=True)
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

    @rule(
        node=st.integers(0, 1),
        who=st.sampled_from(AGENTS),
        tool=st.sampled_from(TOOLS),
        args=st.sampled_from(ARGUMENTS),
        era=st.sampled_from(list(Era)),
    )
    def call_of_a_client_that_can_be_asked(
        self, node: int, who: str, tool: str, args: JsonObject, era: Era
    ) -> None:
        async def ask(method: str, params: JsonObject) -> Fields:
            later: asyncio.Future[Fields] = self.loop.create_future()
            self.questions.append(Question(node, about(params), who, tool, args, later=later))
            return await later

        async def begin() -> None:
            task = self.nodes[node].call(
                f"s__{tool}",
                dict(args),
                who=who,
                era=era,
                capabilities=FORMS,
                ask=ask if era is Era.LEGACY else None,
            )
            self.calls.append((node, task))
            await moment()
            self.look(task, node, who, tool, args)

        self.run(begin())

    def look(
        self, task: asyncio.Task[Fields], node: int, who: str, tool: str, args: JsonObject
    ) -> None:
        """Keep the question that the request was answered with, if it was."""
        if not task.done() or task.cancelled() or task.exception() is not None:
            return
        answer = plain(task.result())
        if answer.get("resultType") == "input_required":
            id = about(answer["inputRequests"]["approval"]["params"])
            state = answer["requestState"]
            self.questions.append(Question(node, id, who, tool, args, state=state))

    @rule(
        which=st.integers(0, 50),
        node=st.integers(0, 1),
        said=SAYS,
        other=st.sampled_from([None, None, None, "args", "who", "tool"]),
        against=st.sampled_from([None, None, True, False]),
    )
    def client_says(
        self, which: int, node: int, said: JsonObject, other: str | None, against: bool | None
    ) -> None:
        """Whoever runs a client answers the question; ``other``: with another request than the
        one it is about. ``against`` is what a person says at the other node, at that moment."""
        if not self.questions:
            return
        question = self.questions[-1 - which % len(self.questions)]
        self.run(self.client_said(question, node, said, other, against))

    async def client_said(
        self,
        question: Question,
        node: int,
        said: JsonObject,
        other: str | None,
        against: bool | None,
    ) -> None:
        held = question.later is not None
        node = question.node if held else node
        if len({each.holder.current.revision for each in self.nodes}) > 1:
            # Whose yes it was would decide under which policies it is one.
            against = None

        async def answers() -> None:
            if question.later is not None:
                if not question.later.done():
                    question.later.set_result(dict(said))
            else:
                self.bring(question, node, said, other)
            if against is not None:
                with contextlib.suppress(WrongState, Missing):
                    await self.nodes[1 - node].parking.answer(
                        question.id, approve=against, by="p", way="token"
                    )
            await moment()

        yes = bool(against) or (said is SAID[0] and (held or other is None))
        stops = not held and other is None and said in SAID[1:3]
        if stops and await self.would_use(self.nodes[node], question.id):
            # A no to what was approved and has not run: it may run no more.
            self.world.approvals[question.id].used = True
        await self.judged(self.nodes[node], question.id, yes, answers)

    async def would_use(self, node: Node, id: str) -> bool:
        """Whether the same request, at this node now, would find this approval."""
        try:
            parked = await node.parking.book.get(id)
        except (Missing, StoreError):
            return False
        rules = node.holder.current.policy
        tool = node.gateway.definition("s", parked.upstream_name)
        assert isinstance(rules, Rules) and tool is not None
        return (
            parked.state is State.APPROVED
            and parked.expires_at > self.loop.epoch()
            and tool.digest == parked.definition
            and rules.decision == "ask"
            and id in self.world.approvals
        )

    async def judged(
        self, node: Node, id: str, yes: bool, answers: Callable[[], Awaitable[object]]
    ) -> Parked | None:
        """Have people answer, of whom ``yes``: somebody may say yes to what is shown here. It
        counts from when it is said, and only if it counted in the end."""
        try:
            shown, mine = await node.parking.book.get(id), None
        except (Missing, StoreError):
            return None
        if yes and id not in self.world.approvals:
            mine = self.world.approvals[id] = self.approval(node, shown)
        await answers()
        try:
            now = await node.parking.book.get(id)
        except (Missing, StoreError):
            return None
        if mine is not None and (not now.answered_at or now.state is State.DENIED):
            del self.world.approvals[id]
            if mine.used:
                self.world.wrong.append("a yes was used that did not count")
        return now

    def bring(self, question: Question, node: int, said: JsonObject, other: str | None) -> None:
        who, tool, args = question.who, question.tool, dict(question.args)
        if other == "args":
            args = {"z": 1}
        elif other == "who":
            who = "carol"
        elif other == "tool":
            tool = "other" if tool == "write" else "write"
        task = self.nodes[node].call(
            f"s__{tool}",
            args,
            who=who,
            era=Era.MODERN,
            capabilities=FORMS,
            brought=Brought(question.state, {"approval": dict(said)}),
        )
        self.calls.append((node, task))

    @rule(which=st.integers(0, 50), yes=st.tuples(st.booleans(), st.booleans()))
    def two_people_answer_at_once(self, which: int, yes: tuple[bool, bool]) -> None:
        rows = self.nodes[0].rows("waiting")
        if not rows or len({each.holder.current.revision for each in self.nodes}) > 1:
            return
        id = rows[which % len(rows)].id

        async def both() -> None:
            outcomes = await asyncio.gather(
                *(
                    node.parking.answer(id, approve=each, by="p", way="token")
                    for node, each in zip(self.nodes, yes, strict=True)
                ),
                return_exceptions=True,
            )
            won = [each for each in outcomes if not isinstance(each, BaseException)]
            if len(won) > 1:
                self.world.wrong.append("two answers counted")

        self.run(self.judged(self.nodes[0], id, any(yes), both))

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

    def approval(self, node: Node, shown: Parked) -> Approval:
        """A person says yes to what is shown, at this node, now."""
        return Approval(
            shown.principal,
            shown.tool,
            digest(shown.args),
            shown.definition,
            frozenset(shown.rules),
            node.holder.current.revision,
            self.loop.epoch(),
        )

    async def answered(self, node: Node, id: str, yes: bool) -> None:
        try:
            shown = await node.parking.book.get(id)
        except (Missing, StoreError):
            return
        mine = None
        if yes and id not in self.world.approvals:
            # It counts from now on: it may be used before whoever gave it hears that it counts.
            mine = self.world.approvals[id] = self.approval(node, shown)
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

    @rule(
        node=st.integers(0, 1),
        era=st.sampled_from(list(Era)),
        meanwhile=st.sampled_from([None, None, True, False]),
        before=DISTURBANCES,
        at=st.integers(0, 1),
        said=SAYS,
        other=st.sampled_from([None, None, None, "args", "who", "tool"]),
        against=st.sampled_from([None, None, True, False]),
        after=DISTURBANCES,
        again=st.integers(0, 1),
    )
    def story_of_a_client_that_is_asked(
        self,
        node: int,
        era: Era,
        meanwhile: bool | None,
        before: list[tuple[str, dict[str, Any]]],
        at: int,
        said: JsonObject,
        other: str | None,
        against: bool | None,
        after: list[tuple[str, dict[str, Any]]],
        again: int,
    ) -> None:
        """The same, with the answer from where the client runs."""
        self.call_of_a_client_that_can_be_asked(node, "alice", "write", SAME, era)
        for name, given in before:
            getattr(self, name)(**given)
        if meanwhile is not None:
            self.answer_what_waits(at, meanwhile, True)
        self.client_says(0, at, said, other, against)
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
            self.every_call_gets_an_answer_or_waits()
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
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
