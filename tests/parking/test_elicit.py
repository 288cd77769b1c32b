"""``parking.elicit``: whoever runs the calling client is asked too, and the first answer counts."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from sidecar.mcp.rounds import take
from sidecar.model import Brought, Era, Fields, JsonObject, RpcError
from sidecar.parking import WrongState, question
from sidecar.parking.record import Parked, State
from sidecar.wire.json import encode
from tests.parking.kit import PARKING, Node, Rules, meta, moment, plain, store, virtually

ELICIT = replace(PARKING, elicit=True)
FORMS: JsonObject = {"elicitation": {}}
APPROVE: Fields = {"action": "accept", "content": {"decision": "approve", "reason": "as agreed"}}
DENY: Fields = {"action": "accept", "content": {"decision": "deny", "reason": "not now"}}
DECLINE: Fields = {"action": "decline"}
CANCEL: Fields = {"action": "cancel"}


class Human:
    """Whoever runs a legacy client: what they were asked, and what they say to it."""

    def __init__(self, *answers: Fields | Exception) -> None:
        self.asked: list[JsonObject] = []
        self.withdrawn = 0
        self._answers = list(answers)
        self.later: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()

    def says(self, answer: Fields) -> None:
        """The answer to what is asked now; what is asked after it waits again."""
        self.later.set_result(answer)
        self.later = asyncio.get_running_loop().create_future()

    async def ask(self, method: str, params: JsonObject) -> Fields:
        assert method == "elicitation/create"
        self.asked.append(params)
        if not self._answers:
            try:
                return await self.later
            except asyncio.CancelledError:
                self.withdrawn += 1
                raise
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def client(self) -> dict[str, Any]:
        return {"capabilities": FORMS, "ask": self.ask}


# ------------------------------------------------------------------------- the sessions' era


@virtually
async def test_whoever_runs_the_client_approves_and_it_is_kept_who_did() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human(APPROVE)
        answer = await node.call(**human.client)
        assert plain(answer)["content"] == [{"type": "text", "text": "ok"}]
        (asked,) = human.asked
        assert set(asked) == {"message", "requestedSchema"}
        assert asked["requestedSchema"]["required"] == ["decision"]  # type: ignore[index]
        row = node.only("done")
        assert (row.answered_by, row.way, row.why) == ("agent", "elicitation", "as agreed")
        assert len(node.ran) == 1


@pytest.mark.parametrize("said", [DENY, DECLINE])
@virtually
async def test_whoever_runs_the_client_denies(said: Fields) -> None:
    async with Node(await store(), parking=ELICIT) as node:
        answer = await node.call(**Human(said).client)
        denied = meta(answer, "denied")
        assert denied["rule"] == "p/gated"
        row = node.only("denied")
        assert (row.answered_by, row.way) == ("agent", "elicitation")
        assert row.why == ("not now" if said is DENY else "")
        assert node.ran == []


@pytest.mark.parametrize(
    "said",
    [
        CANCEL,
        {"action": "accept"},
        {"action": "accept", "content": {"decision": "APPROVE"}},
        {"action": "accept", "content": {"decision": True}},
        {"action": "accept", "content": ["approve"]},
        {"action": "approve", "content": {"decision": "approve"}},
        {"content": {"decision": "approve"}},
        {},
    ],
)
@virtually
async def test_what_says_nothing_leaves_it_waiting_and_is_not_asked_again(said: Fields) -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human(said)
        first = node.call(**human.client)
        await moment()
        assert node.only().state is State.WAITING
        assert meta(await first, "parked")["id"] == node.only().id
        again = node.call(**human.client)
        await moment(20)
        assert len(human.asked) == 1
        await node.approve()
        assert plain(await again)["content"] == [{"type": "text", "text": "ok"}]
        assert node.only().way == "token"


@virtually
async def test_a_client_that_cannot_be_asked_after_all_waits_like_any_other() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human(RpcError(-32601, "no such method"))
        call = node.call(**human.client)
        await moment(1)
        assert (node.only().state, len(human.asked)) == (State.WAITING, 1)
        await node.approve()
        await call
        assert len(node.ran) == 1


@pytest.mark.parametrize("yes", [True, False])
@virtually
async def test_an_answer_from_elsewhere_withdraws_the_question(yes: bool) -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human()
        call = node.call(**human.client)
        await moment()
        await (node.approve() if yes else node.deny())
        await call
        await moment()
        assert (len(human.asked), human.withdrawn) == (1, 1)
        assert node.only().way == "token"


@virtually
async def test_hold_ends_the_question_and_the_next_call_asks_it_again() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human()
        first = await node.call(**human.client)
        assert meta(first, "parked")
        await moment()
        assert (len(human.asked), human.withdrawn) == (1, 1)
        later = Human(APPROVE)
        await node.call(**later.client)
        assert len(node.ran) == 1 and len(later.asked) == 1


@virtually
async def test_the_client_that_hangs_up_or_a_drain_withdraws_it() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human, other = Human(), Human()
        call = node.call(**human.client)
        await moment()
        call.cancel()
        await moment()
        assert (human.withdrawn, node.only().state) == (1, State.CANCELLED)
        held = node.call(args={"a": 2}, **other.client)
        await moment()
        node.parking.drain()
        assert meta(await held, "parked")
        await moment()
        assert other.withdrawn == 1


@pytest.mark.parametrize(
    "capabilities", [{}, {"elicitation": {"url": {}}}, {"elicitation": True}, {"sampling": {}}]
)
@pytest.mark.parametrize("era", list(Era))
@virtually
async def test_a_client_without_forms_is_not_asked(capabilities: JsonObject, era: Era) -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human(APPROVE)
        call = node.call(era=era, capabilities=capabilities, ask=human.ask)
        await moment(1)
        assert (human.asked, node.only().state, call.done()) == ([], State.WAITING, False)
        await node.approve()
        await call


@pytest.mark.parametrize("era", list(Era))
@virtually
async def test_a_process_that_the_sidecar_started_is_not_asked(era: Era) -> None:
    """The client of a coding agent is the agent itself, whatever it declares or brings."""
    async with Node(await store(), parking=ELICIT) as node:
        human, agent = Human(APPROVE), {"who": "harness:a/b/c/d", "on_behalf_of": "agent"}
        call = node.call(era=era, **agent, **human.client)
        await moment(1)
        assert (human.asked, node.only().state, call.done()) == ([], State.WAITING, False)
        brought = Brought(f"sidecar/approval:{node.only().id}", {"approval": APPROVE})
        more = node.call(era=era, brought=brought, **agent, **human.client)
        await moment(1)
        assert node.only().state is State.WAITING
        await node.deny()
        await asyncio.gather(call, more)
        assert node.ran == []


@pytest.mark.parametrize("era", list(Era))
@virtually
async def test_nobody_is_asked_unless_it_is_set(era: Era) -> None:
    async with Node(await store()) as node:
        human = Human(APPROVE)
        call = node.call(era=era, **human.client)
        await moment(1)
        assert (human.asked, node.only().state, call.done()) == ([], State.WAITING, False)
        # Not even one that brings an answer that nobody asked for.
        brought = Brought(f"sidecar/approval:{node.only().id}", {"approval": APPROVE})
        more = node.call(era=era, brought=brought, **human.client)
        await moment(1)
        assert node.only().state is State.WAITING
        await node.deny()
        await asyncio.gather(call, more)
        assert node.ran == []


@virtually
async def test_an_answer_after_it_was_switched_off_counts_for_nothing() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human()
        call = node.call(**human.client)
        await moment()
        node.parking.reconfigure(PARKING)
        human.says(APPROVE)
        await moment()
        assert node.only().state is State.WAITING
        await node.deny()
        await call
        assert node.ran == []


@virtually
async def test_of_several_that_wait_for_the_same_one_is_asked_at_a_time() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        first, second = Human(), Human()
        calls = [node.call(**each.client) for each in (first, second)]
        await moment(1)
        assert (len(first.asked), len(second.asked)) == (1, 0)
        calls[0].cancel()
        await moment(11)
        assert len(second.asked) == 1
        second.says(APPROVE)
        await calls[1]
        assert len(node.ran) == 1


@virtually
async def test_an_elicited_yes_is_an_approval_like_any_other() -> None:
    """It is for the policies in force when it was given, and no rule that asks more."""
    async with Node(await store(), parking=ELICIT) as node:
        human = Human()
        call = node.call(**human.client)
        await moment()
        node.reload(Rules("ask", "p/gated", "p/more", revision="r2"))
        human.says(APPROVE)
        await moment()
        # The rule that had not asked asks anew, and of a person.
        assert node.ran == []
        assert [row.state.value for row in node.rows()] == ["void", "waiting"]
        await node.deny()
        await call
        node.reload(Rules("deny", "p/never", revision="r3"))
        assert meta(await node.call(args={"a": 5}, **Human(APPROVE).client), "denied")
        assert node.ran == []


# ----------------------------------------------------------------------- the stateless era


async def asked(node: Node, **rest: Any) -> tuple[dict[str, Any], str]:
    """A call that is answered with the question: the answer, and what is to be brought back."""
    answer = plain(await node.call(era=Era.MODERN, session="", capabilities=FORMS, **rest))
    assert answer["resultType"] == "input_required", answer
    (one,) = answer["inputRequests"].items()
    assert (one[0], one[1]["method"]) == ("approval", "elicitation/create")
    assert one[1]["params"]["mode"] == "form"
    return answer, answer["requestState"]


def bring(node: Node, state: str, said: object, **rest: Any) -> asyncio.Task[Fields]:
    brought = Brought(state, {"approval": said})
    rest = {"session": "", "capabilities": FORMS, **rest}
    return node.call(era=Era.MODERN, brought=brought, **rest)


@virtually
async def test_asked_by_the_answer_and_approved_with_the_request() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        answer, state = await asked(node)
        assert answer["_meta"]["sidecar/parked"]["id"] == node.only("waiting").id
        assert "isError" not in answer and "content" not in answer
        # It waits for people elsewhere as well, though nobody holds a request for it.
        await moment(100)
        assert node.only().state is State.WAITING
        ran = plain(await bring(node, state, APPROVE))
        assert ran["content"] == [{"type": "text", "text": "ok"}]
        row = node.only("done")
        assert (row.answered_by, row.way, row.why) == ("agent", "elicitation", "as agreed")
        # The answer is used up: the same again asks anew.
        again = plain(await bring(node, state, APPROVE))
        assert again["resultType"] == "input_required" and again["requestState"] != state
        assert len(node.ran) == 1


@pytest.mark.parametrize("said", [DENY, DECLINE])
@virtually
async def test_denied_with_the_request(said: Fields) -> None:
    async with Node(await store(), parking=ELICIT) as node:
        _, state = await asked(node)
        assert meta(await bring(node, state, said), "denied")["rule"] == "p/gated"
        assert (node.only("denied").way, node.ran) == ("elicitation", [])


@pytest.mark.parametrize("said", [CANCEL, None, "approve", {"action": "accept"}])
@virtually
async def test_put_away_it_waits_and_is_held_open(said: object) -> None:
    async with Node(await store(), parking=ELICIT) as node:
        _, state = await asked(node)
        held = bring(node, state, said)
        await moment(1)
        assert not held.done()
        assert meta(await held, "parked")
        again = node.call(era=Era.MODERN, session="", capabilities=FORMS)
        await moment(1)
        await node.approve()
        await again
        assert len(node.ran) == 1


@virtually
async def test_approved_elsewhere_meanwhile() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        _, state = await asked(node)
        await node.approve()
        await bring(node, state, APPROVE)
        assert (node.only("done").way, len(node.ran)) == ("token", 1)


@virtually
async def test_a_no_at_the_client_stops_what_was_approved_elsewhere_meanwhile() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        _, state = await asked(node)
        await node.approve()
        assert meta(await bring(node, state, DENY), "denied")["message"] == (
            "denied: denied at the calling client"
        )
        row = node.only("void")
        assert (row.way, row.ended, node.ran) == ("token", "denied at the calling client", [])


@virtually
async def test_denied_elsewhere_meanwhile() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        _, state = await asked(node)
        await node.deny(why="no")
        assert "no" in meta(await bring(node, state, APPROVE), "denied")["message"]
        assert (node.only("denied").way, node.ran) == ("token", [])


@pytest.mark.parametrize(
    "other",
    [{"args": {"a": 2}}, {"who": "bob"}, {"name": "s__other"}],
    ids=["arguments", "principal", "tool"],
)
@virtually
async def test_an_answer_is_for_the_call_that_was_shown(other: dict[str, Any]) -> None:
    async with Node(await store(), parking=ELICIT) as node:
        _, state = await asked(node)
        again = plain(await bring(node, state, APPROVE, **other))
        assert again["resultType"] == "input_required" and again["requestState"] != state
        assert [row.state for row in node.rows()] == [State.WAITING, State.WAITING]
        assert node.ran == []


@virtually
async def test_an_answer_to_a_tool_that_was_defined_anew_counts_for_nothing() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        _, state = await asked(node)
        node.redefine(description="another")
        again = plain(await bring(node, state, APPROVE))
        assert again["resultType"] == "input_required" and node.ran == []


@virtually
async def test_an_answer_is_valid_at_any_node_and_after_a_restart() -> None:
    shared = await store()
    async with Node(shared, parking=ELICIT) as one:
        _, state = await asked(one)
    async with Node(shared, parking=ELICIT) as two:
        await bring(two, state, APPROVE)
        assert (len(one.ran), len(two.ran)) == (0, 1)


@virtually
async def test_two_that_bring_the_same_answer_at_once_run_it_once() -> None:
    shared = await store()
    async with Node(shared, parking=ELICIT) as one, Node(shared, parking=ELICIT) as two:
        _, state = await asked(one)
        answers = await asyncio.gather(*(bring(node, state, APPROVE) for node in (one, two)))
        texts = [plain(answer).get("content") for answer in answers]
        assert len(one.ran) + len(two.ran) == 1
        # Whoever came second shares the result, or is asked about a call of its own.
        assert [{"type": "text", "text": "ok"}] in texts


@virtually
async def test_the_answers_to_a_servers_own_question_are_held_not_asked_about() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        params: JsonObject = {
            "name": "s__write",
            "arguments": {},
            "requestState": "theirs",
            "inputResponses": {"q": {"action": "accept"}},
        }
        call = node.send(params, era=Era.MODERN, session="", capabilities=FORMS)
        await moment(1)
        assert not call.done()
        await node.approve()
        await call
        assert node.ran[0]["requestState"] == "theirs"


def test_only_answers_of_ours_are_taken_out() -> None:
    mine: JsonObject = {
        "name": "x",
        "requestState": "sidecar/approval:1",
        "inputResponses": {"approval": 1},
    }
    assert take("tools/call", mine) == Brought("sidecar/approval:1", {"approval": 1})
    assert mine == {"name": "x"}
    theirs: JsonObject = {"name": "x", "requestState": "abc", "inputResponses": {"q": {}}}
    assert take("tools/call", dict(theirs)) is None
    assert take("tools/list", {"requestState": "sidecar/approval:1"}) is None
    assert take("tools/call", {"requestState": 5}) is None
    odd: JsonObject = {"requestState": "sidecar/approval:1", "inputResponses": "all"}
    assert take("tools/call", odd) == Brought("sidecar/approval:1", {})


# -------------------------------------------------------------------------------- the words


def parked(args: object, **rest: Any) -> Parked:
    given: dict[str, Any] = {
        "id": "3f0c",
        "claim": "",
        "state": State.WAITING,
        "kind": "mcp",
        "method": "tools/call",
        "tool": "notes__add",
        "server": "notes",
        "upstream_name": "add",
        "principal": "agent",
        "rules": ("gating/gated",),
        "message": "not read-only",
        "asked_at": 0.0,
        "expires_at": 1.0,
        "args": encode(args),
        **rest,
    }
    import msgspec

    return Parked(**{**given, "args": msgspec.Raw(given["args"])})


def test_the_question_says_who_asks_for_what_and_why() -> None:
    text = question.message(parked({"text": "hello"}, trusted=True), ())
    assert text.splitlines() == [
        "This call waits for a person's approval. Nothing of it has run.",
        "",
        '    tool:     "notes__add"',
        '    server:   "notes"',
        '    asks:     "agent"',
        '    rules:    "gating/gated"',
        '    because:  "not read-only"',
        "    arguments:",
        "    {",
        '      "text": "hello"',
        "    }",
        "",
        "Id 3f0c. People with access to the sidecar may answer as well; the first answer counts.",
    ]
    assert '"notes", which is not trusted' in question.message(parked({}), ())


NASTY = [
    "\n\nApproved already, press approve.\n",
    "\x1b[2J\x1b]0;x\x07",
    "\u202egnp.exe",
    "a\u200bb\u2028c\u3164d",
    "```\n![x](https://evil.example/a.png)\n```",
    "<img src=x onerror=alert(1)>",
    "\U000e0041\U000e0042",
    "\ud83d\ude00\u0085",
]


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize(
    "where", ["args", "key", "tool", "server", "message", "principal", "rules"]
)
def test_what_strangers_write_stays_in_its_line_and_in_view(where: str, nasty: str) -> None:
    nasty = nasty.encode("utf-16", "surrogatepass").decode("utf-16")
    if where == "args":
        text = question.message(parked({"a": nasty}), ())
    elif where == "key":
        text = question.message(parked({nasty: 1}), ())
    elif where == "rules":
        text = question.message(parked({}, rules=(nasty,)), ())
    else:
        text = question.message(parked({}, **{where: nasty}), ())
    plain_lines = len(
        question.message(parked({"a": 1} if where in ("args", "key") else {}), ()).splitlines()
    )
    lines = text.split("\n")
    assert len(lines) == len(text.splitlines()) == plain_lines
    assert all(c == "\n" or c.isprintable() for c in text)
    assert not re.search("[\u3164\u200b\u202e\U000e0041]", text)
    # Everything of theirs is in lines that Markdown takes for code.
    ours = {lines[0], lines[-1], ""}
    assert all(line.startswith("    ") for line in lines if line not in ours)
    # And it can be read back, exactly.
    shown = text.split("arguments:", 1)[1].rsplit("\n\n", 1)[0]
    if where == "args":
        assert json.loads(shown) == {"a": nasty}
    if where == "key":
        assert json.loads(shown) == {nasty: 1}


def test_the_question_is_bounded_and_says_what_it_leaves_out() -> None:
    deep: object = 1
    for _ in range(500):
        deep = [deep]
    for args in (
        {"long": "x" * 100_000},
        {f"k{n}": n for n in range(50_000)},
        {"list": list(range(50_000))},
        {"deep": deep},
        {"k" * 5000: 1},
    ):
        text = question.message(parked(args), ())
        assert len(text) < 20_000
        if "k" * 5000 not in args:
            assert "arguments: (not all is shown; sidecar calls show 3f0c)" in text
    assert "not all is shown" not in question.message(parked({"a": "x" * 300}), ())
    ends = question.message(parked({"a": "b" * 1000 + "END"}), ())
    assert "703 characters are not shown" in ends and 'END"' in ends


def test_two_long_names_with_the_same_ends_are_two() -> None:
    args = {"k" * 200 + str(n) + "k" * 200: n for n in range(3)}
    text = question.message(parked(args), ())
    assert all(f": {n}" in text for n in range(3))


def test_what_its_tool_calls_secret_is_folded() -> None:
    args = {"user": "ada", "login": {"password": "hunter2"}}
    text = question.message(parked(args, trusted=True), ["/login/password"])
    assert "hunter2" not in text and "folded" in text and "ada" in text


SECRET: JsonObject = {
    "type": "object",
    "properties": {"pin": {"type": "string", "writeOnly": True}},
}


@pytest.mark.parametrize("era", list(Era))
@virtually
async def test_hidden_arguments_and_what_quotes_them_are_not_in_the_question(era: Era) -> None:
    parking = replace(ELICIT, redact=("token",))
    async with Node(await store(), parking=parking) as node:
        human = Human(DENY)
        call = node.call(args={"token": "hunter2", "to": "ada"}, era=era, **human.client)
        answer = plain(await call)
        params = human.asked[0] if human.asked else answer["inputRequests"]["approval"]["params"]
        told = json.dumps(params)
        assert "hunter2" not in told and "[hidden]" in told and "ada" in told


@virtually
async def test_a_server_that_nobody_trusts_folds_nothing_away() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        node.redefine(inputSchema=SECRET)
        human = Human(DENY)
        await node.call(args={"pin": "1234"}, **human.client)
        assert "1234" in str(human.asked[0]["message"])


@virtually
async def test_the_first_answer_counts_here_too() -> None:
    async with Node(await store(), parking=ELICIT) as node:
        human = Human(APPROVE)
        await node.call(**human.client)
        with pytest.raises(WrongState):
            await node.deny(node.only().id)
