"""The parts that know neither clock nor store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.config import Rate
from sidecar.model import Call, Caller, Decision, Kind, Principal
from sidecar.parking import machine, record
from sidecar.parking.choices import Found, found, uncovered
from sidecar.parking.claim import Claim, claim, hide, shown
from sidecar.parking.index import Index
from sidecar.parking.limits import MOST, Buckets
from sidecar.parking.machine import WrongState, step
from sidecar.parking.picture import MOST_DIFFERENCES, differences, folded
from sidecar.parking.record import Parked, State
from tests.parking.test_webhook import parked

NOW = 1_800_000_100.0
TAKEN = machine.Taken("c", "d", "r", ("gating/gated",), "n", "call", NOW + 20)
EVENTS: dict[str, machine.Event] = {
    "joined": machine.Joined("m"),
    "left": machine.Left("n"),
    "cancelled": machine.Left("n", cancelled=True),
    "polled": machine.Polled(),
    "dismissed": machine.Dismissed(),
    "approved": machine.Answered(True, "alice", "token", "ok", "r", NOW + 100),
    "denied": machine.Answered(False, "alice", "token", "no", "r", NOW + 100),
    "elapsed": machine.Elapsed(),
    "taken": TAKEN,
    "renewed": machine.Renewed("n", NOW + 30),
    "unsent": machine.Unsent("n", "gone"),
    "finished": machine.Finished("n", "ok", True),
    "lost track": machine.Finished("n", "lost", False),
    "voided": machine.Voided("reload"),
    "superseded": machine.Superseded("changed"),
    "revoked": machine.Revoked("token"),
    "removed": machine.Removed("server"),
    "delivered": machine.Delivered(),
}

# What each event makes of a record in each state; what is not here is a WrongState.
STEPS = {
    "waiting": {
        "joined": "waiting",
        "left": "cancelled",
        "cancelled": "cancelled",
        "polled": "waiting",
        "dismissed": "waiting",
        "approved": "approved",
        "denied": "denied",
        "elapsed": "waiting",
        "superseded": "cancelled",
        "revoked": "cancelled",
        "removed": "lost",
    },
    "approved": {
        "joined": "approved",
        "left": "approved",
        "cancelled": "approved",
        "elapsed": "approved",
        "taken": "taken",
        "voided": "void",
        "superseded": "void",
        "revoked": "void",
        "removed": "void",
    },
    "taken": {
        "left": "taken",
        "cancelled": "taken",
        "elapsed": "taken",
        "renewed": "taken",
        "unsent": "void",
        "finished": "done",
        "lost track": "unknown",
    },
    **{
        ended: {"left": ended, "cancelled": ended, "elapsed": ended}
        for ended in ("done", "denied", "expired", "cancelled", "lost", "void", "unknown")
    },
}
STEPS["denied"]["delivered"] = STEPS["expired"]["delivered"] = "told"


def at(state: str, **rest: Any) -> Parked:
    given: dict[str, Any] = {"state": State(state), "definition": "d", "nodes": ("n",)}
    if state in ("approved", "taken", "done", "void", "unknown"):
        given |= {"answered_at": NOW - 1, "answered_by": "alice", "revision": "r"}
    if state == "taken":
        given |= {"taken_by": "n", "lease": NOW + 10}
    if state in ("denied", "expired"):
        given |= {"polled": True, "ended_at": NOW - 1}
    return replace(parked(), **{**given, **rest})


@pytest.mark.parametrize("state", [state.value for state in State])
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_state(state: str, event: str) -> None:
    before = at(state)
    expected = STEPS[state].get(event)
    if expected is None:
        with pytest.raises(WrongState) as error:
            step(before, EVENTS[event], NOW)
        assert error.value.parked is before
        return
    after = step(before, EVENTS[event], NOW)
    if expected == "told":
        assert after.delivered and after.state == before.state
        with pytest.raises(WrongState):
            step(after, EVENTS[event], NOW)
    else:
        assert after.state == expected
    assert bool(after.ended_at) == (not after.open) or after.state == before.state


def test_the_table_has_every_state() -> None:
    assert STEPS.keys() == {state.value for state in State}


@pytest.mark.parametrize("state", ["waiting", "approved"])
def test_out_of_time_nothing_but_expiring_happens(state: str) -> None:
    late = at(state, expires_at=NOW)
    assert step(late, machine.Elapsed(), NOW).state is State.EXPIRED
    for name, event in EVENTS.items():
        if name not in ("elapsed", "delivered"):
            with pytest.raises(WrongState) as error:
                step(late, event, NOW)
            assert error.value.parked.state is State.EXPIRED


@pytest.mark.parametrize(
    "other",
    [
        {"claim": "x"},
        {"definition": "x"},
        {"revision": "x"},
        {"rules": ("gating/gated", "more")},
    ],
)
def test_a_ticket_is_for_one_thing(other: dict[str, Any]) -> None:
    from dataclasses import replace as with_

    with pytest.raises(WrongState):
        step(at("approved"), with_(TAKEN, **other), NOW)


def test_another_node_cannot_end_what_one_runs() -> None:
    for event in (
        machine.Finished("other", "ok", True),
        machine.Unsent("other", ""),
        machine.Renewed("other", NOW + 99),
    ):
        with pytest.raises(WrongState):
            step(at("taken"), event, NOW)


def test_a_node_that_gives_no_sign_of_life() -> None:
    running = at("taken")
    assert step(running, machine.Elapsed(), NOW + 9.9) is running
    assert step(running, machine.Elapsed(), NOW + 10).state is State.UNKNOWN
    renewed = step(running, machine.Renewed("n", NOW + 40), NOW + 9)
    assert step(renewed, machine.Elapsed(), NOW + 30) is renewed


def test_permissions_are_lost_with_their_agent() -> None:
    asked = at("waiting", kind="permission", lease=NOW + 10)
    assert step(asked, machine.Left("n"), NOW).state is State.LOST
    assert step(asked, machine.Elapsed(), NOW + 11).state is State.LOST
    polled = replace(asked, polled=True)
    assert step(polled, machine.Left("n"), NOW).state is State.LOST


def test_whoever_leaves_is_counted_by_node() -> None:
    both = step(at("waiting"), machine.Joined("m"), NOW)
    assert both.nodes == ("n", "m")
    assert step(both, machine.Joined("m"), NOW) is both
    one = step(both, machine.Left("n", cancelled=True), NOW)
    assert (one.state, one.nodes) == (State.WAITING, ("m",))
    polled = step(one, machine.Polled(), NOW)
    left = step(polled, machine.Left("m"), NOW)
    assert (left.state, left.nodes) == (State.WAITING, ())
    assert step(left, machine.Left("m", cancelled=True), NOW).state is State.CANCELLED


# ------------------------------------------------------------------------------- records


def test_a_record_comes_back_as_it_was() -> None:
    whole = at("taken", args=msgspec.Raw(b'{"n":123456789012345678901234567890}'))
    assert record.decode(record.encode(whole)) == whole
    assert bytes(record.decode(record.encode(whole)).args) == bytes(whole.args)


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"id":1}', b"\xff", b'{"state":"x"}'])
def test_what_is_no_record(value: bytes) -> None:
    with pytest.raises(ValueError, match="not a parked call"):
        record.decode(value)


def test_keys_of_a_newer_version_are_left_out() -> None:
    newer = record.encode(at("waiting"))[:-1] + b',"much_later":[1]}'
    assert record.decode(newer) == at("waiting")


# -------------------------------------------------------------------------------- claims


def call(params: dict[str, Any], **rest: Any) -> Call:
    given: dict[str, Any] = {
        "id": "i",
        "kind": Kind.MCP,
        "method": "tools/call",
        "server": "s",
        "target": "s__write",
        "upstream_name": "write",
        "params": params,
    }
    return Call(**{**given, **rest})


def digest(params: dict[str, Any], who: str = "agent", **rest: Any) -> str:
    return claim(call(params, **rest), Caller(Principal(who))).digest


def test_what_is_claimed() -> None:
    plain = {"name": "write", "arguments": {"a": 1, "b": [1, 2]}}
    same = {"arguments": {"b": [1, 2], "a": 1}, "_meta": {"progressToken": 9}, "name": "write"}
    assert digest(plain) == digest(same) == digest(plain, id="j")
    others = [
        digest({**plain, "arguments": {"a": 1, "b": [2, 1]}}),
        digest({**plain, "arguments": {"a": 1.0, "b": [1, 2]}}),
        digest({**plain, "arguments": {"a": "1", "b": [1, 2]}}),
        digest({**plain, "arguments": {"a": 1, "b": [1, 2], "c": None}}),
        digest({**plain, "task": {}}),
        digest(plain, who="bob"),
        digest(plain, target="t__write", server="t"),
        digest(plain, method="prompts/get", kind=Kind.PROMPT),
        digest({"name": "write"}),
        digest({"name": "write", "arguments": {}}),
        digest({"name": "write", "arguments": None}),
        digest(plain, kind=Kind.PERMISSION),
        digest(plain, kind=Kind.PERMISSION, id="j"),
    ]
    assert len({*others, digest(plain)}) == len(others) + 1


def test_what_is_shown() -> None:
    assert shown(call({"name": "x", "arguments": {"a": 1}, "_meta": {}})) == {"a": 1}
    assert shown(call({"name": "x"})) == {}
    read = call({"uri": "f:///x", "_meta": {}}, kind=Kind.RESOURCE, method="resources/read")
    assert shown(read) == {"uri": "f:///x"}


def test_what_is_hidden() -> None:
    args = {
        "Password": "a",
        "login": {"user": "u", "pin": 1, "deep": [{"token": "t"}, {"tokens": 2}]},
        "list": ["x", "y"],
        "a/b": {"pin": 2},
    }
    kept, hidden = hide(args, ("password", "login.*.0.token", "list.1", "*b.pin"))
    assert kept == {
        "Password": "[hidden]",
        "login": {"user": "u", "pin": 1, "deep": [{"token": "[hidden]"}, {"tokens": 2}]},
        "list": ["x", "[hidden]"],
        "a/b": {"pin": "[hidden]"},
    }
    assert hidden == ("/Password", "/login/deep/0/token", "/list/1", "/a~1b/pin")
    assert hide(args, ()) == (args, ())
    assert hide(args, ("*",))[0] == dict.fromkeys(args, "[hidden]")


# ------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, Found.PARK),
        (at("waiting"), Found.JOIN),
        (at("waiting", expires_at=NOW), Found.AGE),
        (at("approved"), Found.USE),
        (at("approved", expires_at=NOW), Found.AGE),
        (at("taken"), Found.PARK),
        (at("done"), Found.PARK),
        (at("denied"), Found.TELL),
        (at("expired"), Found.TELL),
        (at("denied", polled=False), Found.PARK),
        (at("denied", delivered=True), Found.PARK),
        (at("denied", ended_at=NOW - 1000), Found.PARK),
        (at("cancelled"), Found.PARK),
        (at("lost"), Found.PARK),
        (at("void"), Found.PARK),
        (at("unknown"), Found.PARK),
    ],
)
def test_what_a_call_does_with_the_last_one(last: Parked | None, expected: Found) -> None:
    assert found(last, NOW, 1000) is expected


ASK = Decision("ask", "gating/gated", ("gating/gated",), revision="r")


@pytest.mark.parametrize(
    ("decision", "revision", "why"),
    [
        (ASK, "r", ""),
        (Decision("allow", "default", revision="r"), "r", ""),
        (Decision("deny", "p/no", ("p/no",), revision="r"), "r", "p/no"),
        (ASK, "s", "policies have changed"),
        (Decision("ask", "x", ("gating/gated", "x"), revision="r"), "r", "a rule asks"),
        (Decision("ask", "x", (), revision="r"), "r", "a rule asks"),
        (Decision("ask", "gating/gated", ("gating/gated",), revision="s"), "r", "policies"),
    ],
)
def test_what_an_approval_covers(decision: Decision, revision: str, why: str) -> None:
    told = uncovered(at("approved"), Claim("c", "d", ""), decision, revision)
    assert (why in told) if why else told == ""


@pytest.mark.parametrize("claimed", [Claim("x", "d", ""), Claim("c", "x", "")])
def test_an_approval_of_another_thing(claimed: Claim) -> None:
    assert "definition" in uncovered(at("approved"), claimed, ASK, "r")


# --------------------------------------------------------------------------------- index


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.sampled_from([state.value for state in State]),
            st.integers(0, 30),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_the_index_counts_what_there_is(changes: list[tuple[int, str, int, bool]]) -> None:
    index, model = Index(), {}
    for version, (n, state, _, drop) in enumerate(changes, 1):
        id = f"id-{n}"
        if drop:
            index.drop(id)
            model.pop(id, None)
            continue
        now = at(state, id=id, principal=f"p{n % 2}", asked_at=NOW + n)
        index.put(now, version)
        model[id] = now
    assert len(index) == len(model)
    waiting = [row for row in model.values() if row.state is State.WAITING]
    for principal in ("p0", "p1"):
        assert index.waiting(principal) == sum(r.principal == principal for r in waiting)
    assert index.open == sum(row.open for row in model.values())
    rows, more = index.page(lambda _: True, after=None, limit=100)
    assert [row.parked.id for row in rows] == sorted(model, reverse=True)
    assert not more
    assert sum(index.counts().values()) == len(model)


def test_pages() -> None:
    index = Index()
    for n in range(10):
        state = "waiting" if n % 2 else "done"
        index.put(at(state, id=f"id-{n}", asked_at=NOW + n), n + 1)
    seen: list[str] = []
    after = None
    for _ in range(10):
        rows, more = index.page(lambda p: p.state is State.WAITING, after=after, limit=2)
        seen += [row.parked.id for row in rows]
        if not more:
            break
        after = rows[-1].parked.id
    assert seen == ["id-9", "id-7", "id-5", "id-3", "id-1"]
    oldest, _ = index.page(lambda _: True, after="id-3", limit=2, oldest_first=True)
    assert [row.parked.id for row in oldest] == ["id-4", "id-5"]


def test_an_older_version_changes_nothing() -> None:
    index = Index()
    index.put(at("approved"), 5)
    index.put(at("waiting"), 4)
    row = index.get("id-1")
    assert row is not None and row.parked.state is State.APPROVED
    assert bytes(row.parked.args) == b"{}"


def test_the_oldest_that_have_ended_go_first() -> None:
    index = Index()
    for n in range(6):
        index.put(at("waiting" if n in (0, 3) else "done", id=f"id-{n}", asked_at=NOW + n), n + 1)
    assert index.oldest_ended(2) == ["id-1", "id-2"]
    assert index.oldest_ended(10) == []


# -------------------------------------------------------------------------------- limits


def test_a_bucket_refills() -> None:
    now = 0.0
    buckets = Buckets(Rate(2, 60.0), lambda: now)
    assert [buckets.take("a") for _ in range(3)] == [True, True, False]
    assert buckets.take("b")
    now = 29.9
    assert not buckets.take("a")
    now = 30.1
    assert [buckets.take("a") for _ in range(2)] == [True, False]
    buckets.give_back("a")
    assert buckets.take("a")
    buckets.reconfigure(Rate(1, 1.0))
    assert [buckets.take("a") for _ in range(2)] == [True, False]


def test_buckets_are_bounded() -> None:
    buckets = Buckets(Rate(1, 3600.0), lambda: 0.0)
    for n in range(MOST + 100):
        buckets.take(str(n))
    assert len(buckets._levels) == MOST


# ------------------------------------------------------------------------------- pictures

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "password": {"type": "string", "writeOnly": True},
        "nested": {"properties": {"key": {"writeOnly": True}}},
        "list": {"items": {"$ref": "#/$defs/secret"}},
        "either": {"anyOf": [{"type": "string"}, {"writeOnly": True}]},
        "loop": {"$ref": "#/properties/loop"},
    },
    "additionalProperties": {"writeOnly": True},
    "$defs": {"secret": {"writeOnly": True}},
}


def test_what_is_folded() -> None:
    args = {
        "user": "u",
        "password": "p",
        "nested": {"key": 1, "other": 2},
        "list": ["a", "b"],
        "either": "x",
        "loop": {"a": 1},
        "more": 1,
    }
    assert folded(SCHEMA, args) == [
        "/password",
        "/nested/key",
        "/list/0",
        "/list/1",
        "/either",
        "/more",
    ]
    assert folded({"writeOnly": True}, args) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(JSON, JSON)
def test_no_schema_breaks_folding(schema: Any, args: Any) -> None:
    assert isinstance(folded(schema, args), list)


def test_a_schema_that_grows_without_end() -> None:
    wide: dict[str, Any] = {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 30}}}
    wide["additionalProperties"] = {"$ref": "#/$defs/a"}
    assert folded(wide, {str(n): {} for n in range(100)}) == []


@given(JSON, JSON)
def test_differences(before: Any, now: Any) -> None:
    told, more = differences(before, now)
    assert (told == []) == (msgspec.json.encode(before) == msgspec.json.encode(now)) or not more
    assert differences(now, now) == ([], False)


def test_differences_are_told_by_place() -> None:
    before = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "e": 1}
    now = {"a": 1.0, "b": {"c": [1], "d": "x"}, "f": None}
    assert differences(before, now) == (
        [
            {"path": "/a", "before": 1, "now": 1.0},
            {"path": "/b/c/1", "before": 2},
            {"path": "/e", "before": 1},
            {"path": "/f", "now": None},
        ],
        False,
    )
    told, more = differences({}, {str(n): n for n in range(200)})
    assert (len(told), more) == (MOST_DIFFERENCES, True)
