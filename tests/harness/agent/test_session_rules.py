"""Whatever an agent says and whenever we answer, these hold."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.harness.protocol import Answer, Failure
from sidecar.harness.session import Asked, Bounds, Broken, Effect, Replied, Session, Withdrawn
from tests.harness.agent.kit import PROFILE
from tests.kit.examples import examples

IDS = st.sampled_from([0, 1, 2, "0", "a"])
OPTIONS = st.lists(
    st.fixed_dictionaries(
        {
            "optionId": st.sampled_from(["x", "y", "z"]),
            "kind": st.sampled_from(
                ["allow_once", "allow_always", "reject_once", "reject_always", "allow_session"]
            ),
        }
    ),
    max_size=4,
)


class Conversation(RuleBasedStateMachine):
    """An agent that may say anything, and a driver that keeps to the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(PROFILE, Bounds(open_requests=3))
        self.pending: dict[object, list[dict[str, str]]] = {}  # what the driver was asked
        self.open: dict[object, list[dict[str, str]]] = {}  # what the agent waits for
        self.answers: list[dict[str, Any]] = []
        self.allowed: set[object] = set()
        self.turn: int | None = None
        self.cancelling = False
        self.broken = False
        new = self.session.call("session/new", {})
        self.hear({"id": new, "result": {"sessionId": "s"}})
        self.session.opened()
        self.prompt()

    def hear(self, message: object) -> list[Effect]:
        text = json.dumps({"jsonrpc": "2.0", **message} if isinstance(message, dict) else message)
        effects = list(self.session.receive(text.encode() + b"\n"))
        for effect in effects:
            if isinstance(effect, Asked):
                assert effect.request.id not in self.pending
                assert self.turn is not None and not self.cancelling
                self.pending[effect.request.id] = list(effect.request.options)  # type: ignore[arg-type]
            elif isinstance(effect, Withdrawn):
                del self.pending[effect.id]
            elif isinstance(effect, Replied) and effect.reply.id == self.turn:
                assert isinstance(effect.reply, Answer | Failure)
                self.turn = None
                self.cancelling = False
            elif isinstance(effect, Broken):
                self.broken = True
        return effects

    def look(self) -> None:
        """Take what is to be sent; each request is answered once, and never allowed unasked."""
        for line in self.session.outgoing().splitlines():
            message = json.loads(line)
            if "method" in message:
                continue
            id_ = message["id"]
            outcome = message.get("result", {}).get("outcome")
            if message.get("error", {}).get("code") == -32600:
                continue  # about another request with this id, or one too many
            options = self.open.pop((type(id_), id_))
            if outcome is None or outcome["outcome"] == "cancelled":
                continue
            chosen = [o for o in options if o["optionId"] == outcome["optionId"]]
            assert len(chosen) == 1
            assert chosen[0]["kind"] in ("allow_once", "reject_once")
            if chosen[0]["kind"] == "allow_once":
                assert (type(id_), id_) in self.allowed
            self.allowed.discard((type(id_), id_))

    @rule()
    @precondition(lambda self: self.session.phase == "idle")
    def prompt(self) -> None:
        self.turn = self.session.prompt([{"type": "text", "text": "x"}], {})
        self.look()

    @rule(id_=IDS, options=OPTIONS, session=st.sampled_from(["s", "s", "s", "t"]))
    def ask(self, id_: object, options: list[dict[str, str]], session: str) -> None:
        key = (type(id_), id_)
        if key not in self.open and len(self.open) < 3:
            self.open[key] = options
        params = {"sessionId": session, "toolCall": {"toolCallId": "t"}, "options": options}
        self.hear({"id": id_, "method": "session/request_permission", "params": params})
        self.look()

    @rule(id_=IDS)
    def other(self, id_: object) -> None:
        key = (type(id_), id_)
        if key not in self.open and len(self.open) < 3:
            self.open[key] = []
        self.hear({"id": id_, "method": "fs/read_text_file", "params": {"path": "/x"}})
        self.look()

    @rule(id_=IDS)
    def withdraw(self, id_: object) -> None:
        self.hear({"method": "$/cancel_request", "params": {"requestId": id_}})
        self.look()
        assert id_ not in [request.id for request in self.session.waiting]

    @rule(decision=st.sampled_from(["allow", "reject", "cancelled"]), data=st.data())
    @precondition(lambda self: self.pending)
    def decide(self, decision: Any, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.pending, key=repr)))
        if decision == "allow":
            self.allowed.add((type(id_), id_))
        assert self.session.permit(id_, decision) is not None  # type: ignore[arg-type]
        del self.pending[id_]
        self.look()

    @rule()
    def cancel(self) -> None:
        withdrawn = self.session.cancel()
        for id_ in withdrawn:
            del self.pending[id_]
        self.cancelling = self.turn is not None
        self.look()
        if self.cancelling:
            assert not self.pending

    @rule(
        stop=st.sampled_from(["end_turn", "cancelled", "new_one", None]),
        error=st.booleans(),
        again=st.sampled_from([True, True, True, False]),
    )
    @precondition(lambda self: self.turn is not None)
    def end(self, stop: str | None, error: bool, again: bool) -> None:
        answer = (
            {"error": {"code": -1, "message": "m"}} if error else {"result": {"stopReason": stop}}
        )
        self.hear({"id": self.turn, **answer})
        self.look()
        assert self.turn is None
        if again:
            self.prompt()

    @rule(noise=st.sampled_from([42, [], "x", None, {"id": 99, "result": {}}, {"method": "x"}]))
    def noise(self, noise: object) -> None:
        assert not any(isinstance(e, Asked) for e in self.hear(noise))
        self.look()

    @invariant()
    def agree(self) -> None:
        assert {r.id for r in self.session.waiting} == set(self.pending)
        assert len(self.open) == len(self.pending)
        expected = "cancelling" if self.cancelling else "turn" if self.turn is not None else "idle"
        assert self.session.phase == expected
        assert not self.broken


TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=examples(80), stateful_step_count=30, deadline=None
)
