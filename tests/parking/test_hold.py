"""Calls that wait for a person, through the real gateway and gate."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sidecar.config import Rate
from sidecar.events import ParkedChanged
from sidecar.model import (
    CLIENT_CANCELLED,
    Admitted,
    Call,
    Caller,
    Kind,
    Principal,
    RpcError,
    Unavailable,
)
from sidecar.parking import WrongState
from tests.parking.kit import PARKING, Node, Rules, meta, moment, plain, result, store, virtually


@virtually
async def test_approved_while_it_is_held_it_runs_once() -> None:
    async with Node(await store()) as node:
        call = node.call(args={"path": "/x"})
        await moment()
        assert node.ran == [] and not call.done()
        waiting = node.only("waiting")
        assert (waiting.tool, waiting.server, waiting.principal) == ("s__write", "s", "agent")
        assert waiting.rules == ("p/gated",)
        assert waiting.message == "p/gated says ask"
        await node.approve(why="looks fine")
        answer = await call
        assert plain(answer)["content"] == [{"type": "text", "text": "ok"}]
        assert node.ran == [{"name": "write", "arguments": {"path": "/x"}}]
        done = node.only()
        assert (done.state, done.ended, done.why) == ("done", "ok", "looks fine")
        assert (done.answered_by, done.way, done.ran_as) == ("alice", "token", waiting.id)
        assert plain(answer)["_meta"] == {"sidecar/call": waiting.id}


@virtually
async def test_denied_while_it_is_held_it_never_runs() -> None:
    async with Node(await store()) as node:
        call = node.call()
        await moment()
        await node.deny(why="not today")
        answer = plain(await call)
        assert answer["isError"] is True
        assert answer["_meta"]["sidecar/denied"] == {
            "rule": "p/gated",
            "message": "denied by a person: not today",
        }
        assert "not today" in answer["content"][0]["text"]
        assert node.ran == []
        assert node.only().state == "denied"


@virtually
async def test_after_hold_the_agent_is_told_to_call_again_and_waits_on() -> None:
    async with Node(await store()) as node:
        began = asyncio.get_running_loop().time()
        answer = plain(await node.call())
        assert asyncio.get_running_loop().time() - began == pytest.approx(45, abs=0.1)
        waiting = node.only("waiting")
        parked = answer["_meta"]["sidecar/parked"]
        assert parked == {"id": waiting.id, "expires_at": "2027-01-16T08:00:00.000Z"}
        assert answer["isError"] is True
        assert "same name and arguments" in answer["content"][0]["text"]
        again = node.call()
        await moment()
        assert len(node.rows()) == 1
        await node.approve()
        assert plain(await again)["content"][0]["text"] == "ok"
        assert len(node.ran) == 1


@virtually
async def test_approved_between_two_calls_the_next_takes_it_once() -> None:
    async with Node(await store()) as node:
        await node.call()
        await node.approve()
        assert node.ran == []
        assert plain(await node.call())["content"][0]["text"] == "ok"
        assert len(node.ran) == 1
        second = node.call()
        await moment()
        assert node.only("waiting").previous == node.only("done").id
        second.cancel()
        assert len(node.ran) == 1


@virtually
@pytest.mark.parametrize("approve", [True, False])
async def test_the_first_answer_counts(approve: bool) -> None:
    async with Node(await store()) as node:
        await node.call()
        id = node.only().id
        await node.parking.answer(id, approve=approve, by="alice", way="token")
        with pytest.raises(WrongState) as error:
            await node.parking.answer(id, approve=not approve, by="bob", way="token")
        assert error.value.parked.answered_by == "alice"
        with pytest.raises(WrongState):
            await node.parking.answer(id, approve=approve, by="alice", way="token")


@virtually
async def test_a_denial_after_a_poll_answer_is_told_once() -> None:
    async with Node(await store()) as node:
        await node.call()
        await node.deny(why="no")
        assert meta(await node.call(), "denied")["message"] == "denied by a person: no"
        third = node.call()
        await moment()
        assert [row.state for row in node.rows()] == ["denied", "waiting"]
        third.cancel()
        assert node.ran == []


@virtually
async def test_nobody_answers() -> None:
    async with Node(await store()) as node:
        await node.call()
        id = node.only().id
        await moment(86400)
        assert node.only().state == "expired"
        answer = plain(await node.call())
        assert answer["_meta"]["sidecar/expired"]["id"] == id
        assert "nobody answered" in answer["content"][0]["text"]
        third = node.call()
        await moment()
        assert [row.state for row in node.rows()] == ["expired", "waiting"]
        third.cancel()


@virtually
async def test_an_approval_that_is_not_used_in_time_expires() -> None:
    async with Node(await store()) as node:
        await node.call()
        await node.approve()
        await moment(86399)
        assert node.only().state == "approved"
        await moment(1.1)
        assert node.only().state == "expired"
        assert "was not used" in plain(await node.call())["content"][0]["text"]
        assert node.ran == []


@virtually
async def test_equal_calls_join_and_share_the_one_result() -> None:
    async with Node(await store()) as node:
        node.server.answers["tools/call"] = [result("first"), result("second")]
        calls = [node.call(args={"a": 1, "b": 2}), node.call(args={"b": 2, "a": 1})]
        calls.append(node.call(args={"a": 1, "b": 2}, session="s2"))
        await moment()
        assert len(node.rows()) == 1
        await node.approve()
        answers = [plain(await call) for call in calls]
        assert [a["content"][0]["text"] for a in answers] == ["first"] * 3
        ids = {a["_meta"]["sidecar/call"] for a in answers}
        assert len(ids) == 3
        assert len(node.ran) == 1


@virtually
@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (RpcError(-32050, "no", {"why": 1}), "done"),
        (Unavailable("s", "lost", ran="maybe"), "unknown"),
        (Unavailable("s", "down", ran="no"), "done"),
    ],
)
async def test_joined_calls_share_a_failure_too(failure: Exception, state: str) -> None:
    async with Node(await store()) as node:
        node.server.answers["tools/call"] = [failure, result("must not run")]
        calls = [node.call(), node.call()]
        await moment()
        await node.approve()
        for call in calls:
            with pytest.raises(type(failure)) as raised:
                await call
            assert str(raised.value) == str(failure)
        assert len(node.ran) == 1
        assert node.only().state == state


VARIATIONS = [
    ({"args": {"a": 2}}, False),
    ({"args": {"a": 1.0}}, False),
    ({"args": {"a": True}}, False),
    ({"args": {"a": 1, "b": None}}, False),
    ({"args": {}}, False),
    ({"args": {"a": 1}, "who": "mallory"}, False),
    ({"name": "s__other"}, False),
    ({"session": "s2"}, True),
    ({"args": {"a": 1}}, True),
]


@virtually
@pytest.mark.parametrize(("variation", "passes"), VARIATIONS)
async def test_an_approval_is_for_this_call_alone(
    variation: dict[str, object], passes: bool
) -> None:
    async with Node(await store()) as node:
        await node.call()
        await node.approve()
        other = node.call(**variation)  # type: ignore[arg-type]
        await moment()
        assert other.done() == passes
        assert len(node.ran) == passes
        other.cancel()
        await moment()


@virtually
async def test_the_order_of_keys_makes_no_difference() -> None:
    async with Node(await store()) as node:
        await node.call(args={"a": {"x": 1, "y": [1, {"p": 1, "q": 2}]}, "b": 2})
        await node.approve()
        await node.call(args={"b": 2, "a": {"y": [1, {"q": 2, "p": 1}], "x": 1}})
        assert len(node.ran) == 1


@virtually
async def test_another_server_of_the_same_name_for_its_tool() -> None:
    from tests.gateway.scripted import Scripted, config, offers

    async with Node(await store()) as node:
        two = Scripted("t", offers(["write"]))
        node.gateway.attach(two, config("t"))
        await node.call()
        await node.approve()
        other = node.call("t__write")
        await moment()
        assert not other.done() and two.asked == []
        other.cancel()


# ------------------------------------------------------------------------- while it waits


@virtually
@pytest.mark.parametrize("held", [True, False])
async def test_a_reload_after_the_answer_voids_it(held: bool) -> None:
    async with Node(await store()) as node:
        await node.call()
        await node.approve()
        node.reload(Rules("ask", revision="r2"))
        if held:
            await moment()
            assert node.only().state == "void"
        again = node.call()
        await moment()
        assert [row.state for row in node.rows()] == ["void", "waiting"]
        assert node.ran == []
        again.cancel()


@virtually
async def test_a_reload_before_the_answer_decides_anew_when_it_is_released() -> None:
    async with Node(await store()) as node:
        call = node.call()
        await moment()
        node.reload(Rules("ask", revision="r2"))
        await moment()
        await node.approve()
        assert plain(await call)["content"][0]["text"] == "ok"
        assert node.only().revision == "r2"
        assert node.only().asked_revision == "r1"


@virtually
async def test_a_deny_wins_over_an_approval() -> None:
    async with Node(await store()) as node:
        call = node.call()
        await moment()
        node.reload(Rules("deny", "p/never", revision="r2"))
        await node.approve()
        assert meta(await call, "denied")["rule"] == "p/never"
        assert node.ran == []
        assert node.only().state == "void"
        assert "p/never" in node.only().ended


@virtually
async def test_a_rule_that_did_not_ask_before_asks_anew() -> None:
    async with Node(await store()) as node:
        call = node.call()
        await moment()
        first = node.only().id
        node.reload(Rules("ask", "p/gated", "p/tainted", revision="r2"))
        await node.approve()
        await moment()
        assert node.ran == []
        waiting = node.only("waiting")
        assert (waiting.previous, waiting.rules) == (first, ("p/gated", "p/tainted"))
        await node.approve()
        assert plain(await call)["content"][0]["text"] == "ok"
        assert len(node.ran) == 1


@virtually
async def test_fewer_rules_than_asked_are_covered() -> None:
    async with Node(await store(), Rules("ask", "p/a", "p/b")) as node:
        call = node.call()
        await moment()
        node.reload(Rules("ask", "p/b", revision="r2"))
        await node.approve()
        await call
        assert len(node.ran) == 1


@virtually
async def test_what_is_allowed_by_now_needs_no_approval() -> None:
    async with Node(await store()) as node:
        await node.call()
        await node.approve()
        node.reload(Rules("allow", "p/fine", revision="r2"))
        await node.call()
        assert len(node.ran) == 1


@virtually
async def test_a_definition_that_changes_is_asked_anew_with_the_difference() -> None:
    async with Node(await store()) as node:
        call = node.call()
        await moment()
        first = node.only().id
        node.redefine("write", description="now it also mails your keys")
        await moment()
        old, new = node.rows()
        assert (old.id, old.state) == (first, "cancelled")
        assert "definition" in old.ended
        assert (new.state, new.previous) == ("waiting", first)
        assert new.definition != old.definition
        kept = [await node.parking.book.definition(row.definition) for row in (old, new)]
        assert "description" not in kept[0]
        assert kept[1]["description"] == "now it also mails your keys"
        with pytest.raises(WrongState):
            await node.approve(first)
        await node.approve(new.id)
        await call
        assert len(node.ran) == 1


@virtually
@pytest.mark.parametrize("told", [True, False])
async def test_a_definition_that_changes_after_the_answer_voids_it(told: bool) -> None:
    async with Node(await store()) as node:
        await node.call()
        await node.approve()
        if not told:
            node.server.bus = None
        node.redefine("write", description="other")
        await moment()
        again = node.call()
        await moment()
        assert not again.done() and node.ran == []
        assert node.rows("waiting") != []
        again.cancel()


@virtually
async def test_only_the_order_of_keys_of_a_definition_changes() -> None:
    async with Node(await store()) as node:
        node.redefine("write", title="T", description="D")
        await moment()
        await node.call()
        await node.approve()
        node.redefine("write", description="D", title="T")
        await moment()
        await node.call()
        assert len(node.ran) == 1


@virtually
async def test_a_server_that_is_removed_takes_what_waits_with_it() -> None:
    async with Node(await store()) as node:
        await node.call(args={"a": 2})
        await node.approve()
        call = node.call()
        await moment()
        node.gateway.detach("s")
        node.parking.removed("s")
        with pytest.raises(Unavailable) as gone:
            await call
        assert (gone.value.ran, gone.value.permanent) == ("no", True)
        assert sorted(row.state for row in node.rows()) == ["lost", "void"]


@virtually
async def test_a_principal_that_is_revoked_loses_what_it_asked_for() -> None:
    async with Node(await store()) as node:
        await node.call(who="eve")
        await node.call(who="eve", args={"a": 2})
        await node.approve(node.rows()[0].id)
        kept = node.call(who="alice")
        await moment()
        node.parking.revoked("eve")
        await moment()
        assert [row.state for row in node.rows()] == ["void", "cancelled", "waiting"]
        kept.cancel()


@virtually
async def test_a_client_that_hangs_up_before_a_poll_answer_cancels() -> None:
    async with Node(await store()) as node:
        call = node.call()
        await moment()
        id = node.only().id
        call.cancel()
        await moment()
        assert (node.only().state, node.only().ended) == ("cancelled", "the caller hung up")
        with pytest.raises(WrongState):
            await node.approve(id)
        assert node.ran == []


@virtually
async def test_it_waits_on_for_as_long_as_one_holder_is_left() -> None:
    async with Node(await store()) as node:
        first, second = node.call(), node.call()
        await moment()
        first.cancel()
        await moment()
        assert node.only().state == "waiting"
        await node.approve()
        await second
        assert len(node.ran) == 1


@virtually
async def test_a_client_that_hangs_up_after_a_poll_answer_may_come_back() -> None:
    async with Node(await store()) as node:
        await node.call()
        second = node.call()
        await moment()
        second.cancel()
        await moment()
        assert node.only().state == "waiting"


@virtually
async def test_a_client_that_cancels_in_words_cancels_also_after_a_poll_answer() -> None:
    async with Node(await store()) as node:
        await node.call()
        second = node.call()
        await moment()
        second.cancel(CLIENT_CANCELLED)
        await moment()
        assert (node.only().state, node.only().ended) == ("cancelled", "the caller cancelled it")


@virtually
async def test_cancelled_while_it_runs_nobody_knows_and_it_never_runs_again() -> None:
    async with Node(await store()) as node:
        node.server.answer = _forever
        call = node.call()
        await moment()
        await node.approve()
        await moment(1)
        assert node.only().state == "taken"
        call.cancel()
        await moment()
        assert node.only().state == "unknown"
        again = node.call()
        await moment()
        assert len(node.ran) == 1
        again.cancel()


async def _forever(*_: object) -> None:  # type: ignore[return]
    await asyncio.sleep(1e9)


@virtually
async def test_draining_answers_whoever_waits_at_once_and_keeps_what_is_parked() -> None:
    shared = await store()
    async with Node(shared) as node:
        call = node.call()
        await moment()
        node.parking.drain()
        await moment()
        assert meta(await call, "parked")["id"] == node.only().id
        await moment()
        assert node.only().state == "waiting"
    async with Node(shared) as node:
        await node.approve()
        await node.call()
        assert len(node.ran) == 1


@virtually
async def test_it_expires_while_it_is_held() -> None:
    async with Node(await store(), parking=replace(PARKING, expire=10.0)) as node:
        answer = await node.call()
        assert meta(answer, "expired") is not None
        assert node.only().state == "expired"


@virtually
async def test_the_callers_own_deadline_comes_before_hold() -> None:
    async with Node(await store()) as node:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await node.call(deadline=began + 5)
        assert meta(answer, "parked") is not None
        assert 4 < loop.time() - began < 5


@virtually
async def test_progress_while_it_is_held() -> None:
    heard: list[dict[str, object]] = []
    async with Node(await store()) as node:
        call = node.call(progress="tok", notify=lambda method, params: heard.append(params))
        await moment(35)
        assert not call.done()
        assert len(heard) == 4
        assert {params["progressToken"] for params in heard} == {"tok"}
        grown = [params["progress"] for params in heard]
        assert grown == sorted(set(grown))
        assert all(0 < value < 0.001 for value in grown)
        assert node.only().id in str(heard[0]["message"])
        call.cancel()


# -------------------------------------------------------------------------------- limits


@virtually
async def test_one_principal_cannot_flood_a_person() -> None:
    async with Node(await store(), parking=replace(PARKING, max_waiting=3)) as node:
        calls = [node.call(args={"n": n}) for n in range(5)]
        await moment()
        assert [call.done() for call in calls] == [False, False, False, True, True]
        refused = meta(calls[4].result(), "denied")
        assert refused["rule"] == "parking/max_waiting"
        assert len(node.rows()) == 3
        other = node.call(who="bob")
        joined = node.call(args={"n": 0})
        await moment()
        assert not other.done() and not joined.done()
        await node.deny(node.rows()[0].id)
        await moment()
        more = node.call(args={"n": 9})
        await moment()
        assert not more.done()
        for call in (*calls, other, more, joined):
            call.cancel()


@virtually
async def test_a_rate_of_asking() -> None:
    async with Node(await store(), parking=replace(PARKING, rate=Rate(2, 3600.0))) as node:
        calls = [node.call(args={"n": n}) for n in range(3)]
        await moment()
        assert meta(calls[2].result(), "denied")["rule"] == "parking/rate"
        other = node.call(who="bob")
        await moment()
        assert not other.done()
        for call in (*calls, other):
            call.cancel()


# ---------------------------------------------------------------------- restarts and nodes


@virtually
async def test_a_restart_between_park_and_approval() -> None:
    shared = await store()
    async with Node(shared) as node:
        await node.call()
    async with Node(shared) as node:
        await node.approve()
    async with Node(shared) as node:
        await node.call()
        assert len(node.ran) == 1
    async with Node(shared) as node:
        again = node.call()
        await moment()
        assert not again.done()
        again.cancel()


@virtually
async def test_killed_while_it_ran_nobody_knows_and_it_never_runs_again() -> None:
    shared = await store()
    dead = await Node(shared).start()
    dead.server.answer = _forever
    call = dead.call()
    await moment()
    await dead.approve()
    await moment()
    assert dead.only().state == "taken"
    dead.store.cut = True
    async with Node(shared) as node:
        await moment(5)
        assert node.only().state == "taken"
        await moment(20)
        assert node.only().state == "unknown"
        again = node.call()
        await moment()
        assert not again.done() and node.ran == []
        again.cancel()
    call.cancel()
    await dead.close()


@virtually
async def test_what_runs_long_stays_taken_on_all_nodes() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared) as two:

        async def slow(*_: object) -> object:
            await asyncio.sleep(300)
            return result("at last")

        one.server.answer = slow  # type: ignore[assignment]
        call = one.call()
        await moment()
        await two.approve()
        await moment(250)
        assert two.only().state == "taken"
        assert plain(await call)["content"][0]["text"] == "at last"
        assert two.only().state == "done"


@virtually
async def test_any_node_can_answer_and_either_may_run() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared) as two:
        first, second = one.call(), two.call()
        await moment()
        assert len(one.rows()) == len(two.rows()) == 1
        await two.approve()
        answers = [plain(await call) for call in (first, second)]
        assert [a["content"][0]["text"] for a in answers] == ["ok", "ok"]
        assert len(one.ran) + len(two.ran) == 1


@virtually
async def test_two_nodes_that_use_an_approval_at_once_run_it_once_and_share_the_result() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared) as two:
        await one.call()
        await two.approve()
        answers = await asyncio.gather(*(node.call() for node in (one, two)))
        assert [plain(each)["content"][0]["text"] for each in answers] == ["ok", "ok"]
        assert len(one.ran) + len(two.ran) == 1


@virtually
async def test_two_nodes_that_park_the_same_at_once_park_it_once() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared) as two:
        calls = [node.call() for node in (one, two) for _ in range(5)]
        await moment()
        assert len(one.rows()) == 1
        assert set(one.only().nodes) == {one.parking.node, two.parking.node}
        await one.approve()
        await asyncio.gather(*calls)
        assert len(one.ran) + len(two.ran) == 1


@virtually
async def test_the_last_holder_of_all_nodes() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared) as two:
        first, second = one.call(), two.call()
        await moment()
        first.cancel()
        await moment()
        assert two.only().state == "waiting"
        second.cancel()
        await moment()
        assert one.only().state == "cancelled"


@virtually
async def test_a_node_with_other_policies_does_not_take_it() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared, Rules("ask", revision="r9")) as two:
        await one.call()
        await one.approve()
        call = two.call()
        await moment()
        assert not call.done() and two.ran == []
        call.cancel()


@virtually
async def test_without_a_store_nothing_waits() -> None:
    async with Node(await store()) as node:
        await node.call(args={"warm": "up"})
        node.store.cut = True
        answer = await node.call()
        assert meta(answer, "denied")["rule"] == "store/unavailable"
        assert node.ran == []


@virtually
async def test_the_store_is_lost_while_it_waits() -> None:
    async with Node(await store()) as node:
        call = node.call()
        await moment()
        node.store.cut = True
        answer = await call
        assert meta(answer, "denied")["rule"] == "store/unavailable"
        assert node.ran == []


# ---------------------------------------------------------------- labels, permissions, history


@virtually
async def test_a_shared_answer_brings_its_labels_to_every_session() -> None:
    rules = Rules("ask", labels=("outside",))
    async with Node(await store(), rules, scope="session") as node:
        for session in ("s1", "s2", "s3"):
            # One that begins later would have them anyhow.
            node.house.ledger.begin("agent", session)
        calls = [node.call(session="s1"), node.call(session="s2")]
        await moment()
        await node.approve()
        answers = [plain(await call) for call in calls]
        assert [a["_meta"]["sidecar/labels"] for a in answers] == [["outside"]] * 2
        assert len(node.ran) == 1
        for session in ("s1", "s2", "s3"):
            who = Caller(Principal("agent"), session=session)
            assert node.house.ledger.of(who) == (("outside",) if session != "s3" else ())


@virtually
async def test_labels_of_whoever_asks_are_shown() -> None:
    async with Node(await store(), Rules("allow", labels=("outside",))) as node:
        await node.call()
        node.reload(Rules("ask", revision="r2"))
        call = node.call()
        await moment()
        assert node.only("waiting").labels == ("outside",)
        call.cancel()


def permission(node: Node, n: int = 1) -> asyncio.Task[object]:
    """A coding agent asks whether it may; each question is one of its own."""
    asked = Call(f"id-{n}", Kind.PERMISSION, "session/request_permission", "claude",
                 "claude__execute", "execute", {"command": "ls"})  # fmt: skip
    sender = Caller(Principal("harness:claude/x"))
    return asyncio.create_task(node.house.gate.admit(asked, sender))


@virtually
async def test_permissions_wait_as_long_as_it_takes_and_never_join() -> None:
    async with Node(await store()) as node:
        first, second = permission(node, 1), permission(node, 2)
        await moment(3600)
        assert not first.done() and not second.done()
        assert [row.state for row in node.rows()] == ["waiting", "waiting"]
        await node.approve("id-2")
        admitted = await second
        assert isinstance(admitted, Admitted) and admitted.settle is not None
        await admitted.settle({})
        assert not first.done()
        assert [row.state for row in node.rows()] == ["waiting", "done"]
        first.cancel()
        await moment()
        assert node.rows()[0].state == "lost"


@virtually
async def test_permissions_of_a_node_that_died_are_lost() -> None:
    shared = await store()
    dead = await Node(shared).start()
    task = permission(dead)
    await moment(100)
    dead.store.cut = True
    async with Node(shared) as node:
        assert node.only().state == "waiting"
        await moment(30)
        assert node.only().state == "lost"
    task.cancel()
    await dead.close()


@virtually
async def test_what_has_ended_is_kept_up_to_a_number() -> None:
    async with Node(await store()) as node:
        node.parking._upkeep._kept = 3
        for n in range(6):
            call = node.call(args={"n": n})
            await moment()
            await node.deny()
            await call
        kept = node.call(args={"n": 99})
        await moment(6)
        assert [row.state for row in node.rows()] == ["denied"] * 3 + ["waiting"]
        assert len(await node.store.list("calls/")) == 4
        kept.cancel()


@virtually
async def test_long_arguments_go_when_the_call_has_ended() -> None:
    async with Node(await store()) as node:
        call = node.call(args={"text": "x" * 100_000})
        await moment()
        whole = await node.parking.book.get(node.only().id)
        assert len(bytes(whole.args)) > 100_000
        await node.approve()
        await call
        ended = await node.parking.book.get(node.only().id)
        assert bytes(ended.args) == b"{}" and ended.args_dropped
        assert node.ran[0]["arguments"] == {"text": "x" * 100_000}


@virtually
async def test_a_store_that_is_back_finds_what_fell_due_meanwhile() -> None:
    async with Node(await store()) as node:
        await node.call()
        node.store.cut = True
        await moment(86400 + 60)
        assert node.only().state == "waiting"
        node.store.cut = False
        await moment(10)
        assert node.only().state == "expired"


@virtually
async def test_hidden_arguments_are_written_nowhere() -> None:
    shared = await store()
    async with Node(shared, parking=replace(PARKING, redact=("password",))) as node:
        call = node.call(args={"password": "hunter2", "user": "u"})
        await moment()
        records = [
            record
            for prefix in ("calls/", "tickets/", "definitions/")
            for record in await shared.list(prefix)
        ]
        stored = b"".join([record.value for record in records])
        assert b"hunter2" not in stored and b'"user":"u"' in stored
        assert node.only().hidden == ("/password",)
        await node.approve()
        await call
        assert node.ran[0]["arguments"] == {"password": "hunter2", "user": "u"}


@virtually
async def test_one_hidden_argument_is_not_another() -> None:
    """What nobody sees is still part of what is approved."""
    async with Node(await store(), parking=replace(PARKING, redact=("password",))) as node:
        await node.call(args={"password": "hunter2"})
        await node.approve()
        other = node.call(args={"password": "hunter3"})
        await moment()
        assert not other.done() and node.ran == []
        other.cancel()


@virtually
async def test_a_result_that_is_too_large_for_another_node() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared) as two:
        large = result("x" * (2 << 20))
        one.server.answers["tools/call"] = two.server.answers["tools/call"] = large
        calls = [one.call(), two.call()]
        await moment()
        await one.approve()
        done = await asyncio.gather(*calls, return_exceptions=True)
        failed = [answer for answer in done if isinstance(answer, Unavailable)]
        assert len(failed) == 1 and (failed[0].ran, failed[0].permanent) == ("maybe", True)
        assert len(one.ran) + len(two.ran) == 1


@virtually
async def test_every_change_of_state_is_told_once_on_every_node() -> None:
    shared = await store()
    async with Node(shared) as one, Node(shared) as two:
        heard: dict[str, list[tuple[str, str]]] = {"one": [], "two": []}
        for name, node in (("one", one), ("two", two)):
            node.bus.listen(
                ParkedChanged,
                lambda event, told=heard[name]: told.append((event.before, event.state)),
            )
        call = one.call()
        await moment()
        await two.approve()
        await call
        await moment()
        expected = [("", "waiting"), ("waiting", "approved"), ("approved", "taken"),
                    ("taken", "done")]  # fmt: skip
        assert heard["one"] == expected
        assert heard["two"] == expected
