"""P1: what cannot be decided is denied. Each phase is asked once, of everything there is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sidecar.model import (
    Caller,
    Client,
    Decision,
    JsonObject,
    Phase,
    PolicyError,
    RpcError,
)
from sidecar.policy.guard import Guarded
from sidecar.ports.policy import PolicyErrors
from tests.gate.conftest import Begin
from tests.gate.kit import World, denial, policy, rules
from tests.gateway.scripted import ALL, caller, offers, prompt, resource, result, template, tool

DENY_ETC = rules(
    "id: no-etc, on: call, effect: deny, when: 'args.path.startsWith(\"/etc\")', "
    "message: '\"not there\"'"
)


@pytest.mark.parametrize(
    ("arguments", "denied"),
    [
        ({"path": "/etc/passwd"}, True),
        ({"path": "/home"}, False),
        ({}, True),
        ({"path": 7}, True),
        ({"path": None}, True),
        ({"path": ["/etc"]}, True),
    ],
)
async def test_a_rule_that_fails_is_a_rule_that_denies(
    begin: Begin, arguments: dict[str, object], denied: bool
) -> None:
    world = await begin(DENY_ETC)
    server = world.serve("s", offers(["read"]))
    answer = await world.call("s__read", caller(), arguments)
    assert (denial(answer) is not None) is denied
    assert len(server.asked) == (0 if denied else 1)
    call, *more = [each for each in world.decided if each.phase == "call"]
    assert not more
    assert call.decision.decision == ("deny" if denied else "allow")
    if denied:
        assert denial(answer)["rule"] == "p0/no-etc"
        failed = arguments.get("path") != "/etc/passwd"
        assert (call.decision.error is not None) is failed
        if call.decision.error is not None:
            assert call.decision.error.line == 5
            assert call.decision.error.column > 0


async def test_a_rule_that_exceeds_its_budget_denies(begin: Begin) -> None:
    rule = (
        "id: slow, on: call, effect: deny, when: "
        "'args.a.exists(x, args.a.exists(y, args.a.exists(z, x + y + z < 0)))'"
    )
    world = await begin(rules(rule))
    server = world.serve("s", offers(["x"]))
    answer = await world.call("s__x", caller(), {"a": list(range(300))})
    assert denial(answer)["rule"] == "p0/slow"
    assert server.asked == []
    assert world.decided[0].decision.error is not None
    assert "300" not in str(world.decided[0].decision)


def test_an_unknown_variable_does_not_load(tmp_path: Any) -> None:
    with pytest.raises(PolicyErrors, match="argz"):
        policy(tmp_path, rules("id: x, on: call, effect: deny, when: 'argz.path == \"\"'"))


async def test_a_denial_says_which_rule_and_why(begin: Begin) -> None:
    world = await begin(
        rules("id: refuse, on: call, effect: deny, when: 'true', message: '\"for \" + args.who'")
    )
    world.serve("s", offers(["x"]))
    answer = await world.call("s__x", caller(), {"who": "SECRET"})
    assert answer["isError"] is True
    assert answer["content"] == [{"type": "text", "text": "denied: for SECRET (rule p0/refuse)"}]
    assert denial(answer) == {"rule": "p0/refuse", "message": "for SECRET"}
    # What is recorded never quotes the caller; what the caller is told may.
    assert "SECRET" not in str(world.decided)


async def test_a_rule_without_a_message_is_named_once(begin: Begin) -> None:
    world = await begin(rules("id: refuse, on: call, effect: deny, when: 'true'"))
    world.serve("s", offers(["x"]))
    answer = await world.call("s__x", caller())
    assert answer["content"] == [{"type": "text", "text": "denied by rule p0/refuse"}]


async def test_an_ask_is_denied_and_says_what_to_do(begin: Begin) -> None:
    world = await begin(shipped=("gating",))
    server = world.serve("s", offers([tool("w"), tool("r", annotations={"readOnlyHint": True})]))
    refused = await world.call("s__w", caller())
    assert denial(refused)["rule"] == "gating/gated"
    assert "approval is needed" in denial(refused)["message"]
    assert "gated: false" in denial(refused)["message"]
    assert denial(await world.call("s__r", caller())) is None
    assert [params["name"] for _, params, _ in server.asked] == ["r"]


# ------------------------------------------------------------------ every kind is decided

EVERYTHING = {
    "prompts": (prompt("greet"),),
    "resources": (resource("f:///x"),),
    "templates": (template("f:///{p}"),),
}
OTHERS: list[tuple[str, JsonObject, str]] = [
    ("prompts/get", {"name": "s__greet"}, "prompt"),
    ("resources/read", {"uri": "f:///x"}, "resource"),
    ("resources/subscribe", {"uri": "f:///x"}, "resource"),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/prompt", "name": "s__greet"},
            "argument": {"name": "a", "value": "b"},
        },
        "completion",
    ),
    (
        "completion/complete",
        {
            "ref": {"type": "ref/resource", "uri": "f:///{p}"},
            "argument": {"name": "p", "value": ""},
        },
        "completion",
    ),
]


@pytest.mark.parametrize(("method", "params", "kind"), OTHERS)
async def test_every_kind_of_call_is_decided(
    begin: Begin, method: str, params: JsonObject, kind: str
) -> None:
    world = await begin(
        rules(
            f"id: refuse, on: call, effect: deny, when: 'tool.kind == \"{kind}\"', "
            "message: '\"no\"'"
        )
    )
    server = world.serve("s", offers(["x"], ALL, **EVERYTHING))
    with pytest.raises(RpcError) as refused:
        await world.gateway.request(method, params, caller())
    assert refused.value.code == -32003
    assert refused.value.data == {"reason": "denied", "rule": "p0/refuse", "message": "no"}
    assert server.asked == []
    assert server.watched == []
    (decided,) = world.decided
    assert (decided.kind, decided.phase) == (kind, "call")


async def test_what_a_rule_reads_of_things_that_are_no_tools(begin: Begin) -> None:
    world = await begin(
        rules(
            "id: a, on: call, effect: deny, when: "
            '\'tool.name == "f:///x" && tool.hints.read_only && !tool.gated '
            '&& server.name == "s" && args == {}\'',
            'id: b, on: call, effect: deny, when: \'args.value == "b" && call.method != ""\'',
            "id: c, on: call, effect: deny, when: 'tool.name == \"s__greet\" && args.n == 1'",
        ),
        "match: {kind: [prompt, resource, completion]}\n"
        + rules("id: d, on: call, effect: deny, when: 'tool.upstream_name == \"f:///y\"'"),
    )
    world.serve("s", offers(["x"], ALL, **EVERYTHING))
    told = []
    for method, params in (
        ("resources/read", {"uri": "f:///x"}),
        ("completion/complete", OTHERS[3][1]),
        ("prompts/get", {"name": "s__greet", "arguments": {"n": 1}}),
        ("resources/read", {"uri": "f:///y"}),
    ):
        with pytest.raises(RpcError) as refused:
            await world.gateway.request(method, params, caller())
        told.append(refused.value.data)
    rule: Any = [each["rule"] for each in told]  # type: ignore[index]
    assert rule == ["p0/a", "p0/b", "p0/c", "p1/d"]


async def test_what_a_rule_reads_of_a_call(begin: Begin) -> None:
    world = await begin(
        rules(
            "id: refuse, on: call, effect: deny, when: "
            '\'agent.principal == "bot" && agent.client.name == "c" && session.id == "s9" '
            '&& session.calls == 2 && call.method == "tools/call" && call.id.size() == 36 '
            '&& args.n == 5 && tool.name == "s__x" && tool.digest.size() == 64 '
            "&& tool.annotations.destructive && !tool.hints.read_only && tool.gated "
            '&& !tool.gate_set && !tool.changed && server.transport == "stdio" '
            "&& !server.trusted && !server.runtime && session.labels == [] "
            '&& now > timestamp("2020-01-01T00:00:00Z")\''
        )
    )
    world.serve("s", offers([tool("x", annotations={"destructiveHint": True})]))
    who = caller(name="bot", session="s9", client=Client("c", "1"))
    answers = [await world.call("s__x", who, {"n": 5}) for _ in range(4)]
    assert [denial(each) is not None for each in answers] == [False, False, True, False]


async def test_each_phase_asks_once_a_call(begin: Begin) -> None:
    asked: list[tuple[Phase, JsonObject]] = []

    class Engine:
        revision = "r"

        def decide(self, phase: Phase, given: JsonObject) -> Decision:
            asked.append((phase, given))
            return Decision("allow", "default", revision="r")

        def refs(self, phase: Phase) -> frozenset[str]:
            return frozenset({"args"})

        def specialise(self, known: object) -> Engine:
            return self

    world = await begin()
    world.holder.current = Guarded(Engine())
    world.serve("s", offers(["x"], ALL, **EVERYTHING))
    await world.call("s__x", caller(), {"n": 1})
    assert [phase for phase, _ in asked] == [Phase.LIST, Phase.CALL, Phase.RESULT]
    # Only what is read is made, at call and result; lists are asked once for all calls.
    assert asked[1][1] == {"args": {"n": 1}}
    assert asked[2][1] == {"args": {"n": 1}}
    asked.clear()
    await world.call("s__x", caller(), {"n": 1})
    assert [phase for phase, _ in asked] == [Phase.CALL, Phase.RESULT]


# --------------------------------------------------------------- engines that misbehave


class Bad:
    """An engine that does ``what`` when it is asked at ``phase``."""

    revision = "bad"

    def __init__(self, phase: Phase, what: object) -> None:
        self.phase = phase
        self.what = what

    def decide(self, phase: Phase, given: JsonObject) -> Any:
        if phase is not self.phase:
            return Decision("allow", "default", revision="bad")
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what() if callable(self.what) else self.what

    def refs(self, phase: Phase) -> frozenset[str]:
        return frozenset()

    def specialise(self, known: object) -> Bad:
        return self


def hang() -> Decision:
    import time

    time.sleep(0.4)
    return Decision("allow", "default")


@pytest.mark.parametrize("phase", [Phase.LIST, Phase.CALL, Phase.RESULT])
@pytest.mark.parametrize(
    "what",
    [
        ValueError("SECRET"),
        SystemExit(3),
        RecursionError(),
        None,
        "allow",
        True,
        {"decision": "allow"},
        Decision("maybe", "x"),  # type: ignore[arg-type]
        Decision("allow", None),  # type: ignore[arg-type]
        Decision("allow", "x", labels="outside"),  # type: ignore[arg-type]
        hang,
    ],
    ids=lambda answer: getattr(answer, "__name__", str(answer)),
)
async def test_whatever_an_engine_does_wrong_is_a_deny(
    begin: Begin, phase: Phase, what: object
) -> None:
    world = await begin()
    world.holder.current = Guarded(Bad(phase, what), timeout=0.1)
    server = world.serve("s", offers(["x"]))
    server.answers["tools/call"] = result("SECRET")
    answer = await world.call("s__x", caller())
    assert denial(answer)["rule"].startswith("engine/")
    assert "SECRET" not in json.dumps(answer)
    assert len(server.asked) == (1 if phase is Phase.RESULT else 0)
    denied = world.decided[-1].decision
    assert isinstance(denied.error, PolicyError)
    assert world.decided[-1].phase == phase.value


async def test_an_input_that_cannot_be_made_denies(begin: Begin) -> None:
    world = await begin(rules("id: r, on: result, effect: deny, when: 'result.structured.a == 1'"))
    server = world.serve("s", offers(["x"]))
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    server.answers["tools/call"] = result(structuredContent={"a": deep})
    answer = await world.call("s__x", caller())
    assert denial(answer)["rule"] == "gate/input"
    assert world.decided[-1].decision.error == PolicyError(
        "input",
        0,
        0,
        "it cannot be decided: it cannot be read: the JSON is nested too deeply",
        "gate/input",
    )


async def test_records_say_everything_but_the_arguments(begin: Begin) -> None:
    world = await begin(
        rules(
            "id: permit, on: call, effect: allow, when: 'args.n == 1'",
            "id: listed, on: list, effect: allow, when: 'true'",
        ),
        default="deny",
    )
    world.serve("s", offers(["x"]))
    await world.call("s__x", caller(name="bot"), {"n": 1})
    call, answer = world.decided
    assert (call.phase, answer.phase) == ("call", "result")
    assert call.call == answer.call != ""
    assert (call.server, call.target, call.principal, call.session) == ("s", "s__x", "bot", "s1")
    assert call.kind == "mcp"
    assert call.decision.rules == ("p0/permit",)
    assert call.decision.revision == world.holder.current.revision
    assert len(call.definition) == 64
    assert 0 < call.microseconds < 1e6
    again = await world.call("s__x", caller(name="bot"), {"n": 1})
    assert denial(again) is None
    assert world.decided[2].arguments() == call.arguments() != ""
    refused = await world.call("s__x", caller(name="bot"), {"n": 2})
    assert denial(refused) == {"rule": "default", "message": "denied: no policy allows this"}
    assert world.decided[-1].arguments() != call.arguments()


# -------------------------------------------------------------------------- in flight


async def test_a_call_ends_under_the_revision_that_admitted_it(begin: Begin, tmp_path: Any) -> None:
    old = rules("id: old, on: result, effect: label, label: old, when: 'true'")
    new = rules("id: new, on: result, effect: deny, when: 'true'")
    world = await begin(old)
    server = world.serve("s", offers(["x"]))
    go, came = asyncio.Event(), asyncio.Event()

    async def slow(method: str, params: JsonObject, who: Caller) -> Any:
        came.set()
        await go.wait()
        return result()

    server.answer = slow
    running = asyncio.create_task(world.call("s__x", caller()))
    await came.wait()
    before = world.holder.current.revision
    world.holder.current = policy(tmp_path / "new", new)
    go.set()
    finished = await running
    assert finished["_meta"]["sidecar/labels"] == ["old"]  # type: ignore[index]
    assert {each.decision.revision for each in world.decided} == {before}
    assert denial(await world.call("s__x", caller()))["rule"] == "p0/new"
    assert world.decided[-1].decision.revision == world.holder.current.revision != before


async def test_specialised_rules_go_with_the_policy_and_with_the_tool(
    begin: Begin, tmp_path: Any
) -> None:
    gated = rules("id: g, on: call, effect: deny, when: '!tool.hints.read_only'")
    world = await begin(gated)
    server = world.serve("s", offers([tool("x")]))
    assert denial(await world.call("s__x", caller())) is not None
    server.lists(offers([tool("x", annotations={"readOnlyHint": True})]))
    assert denial(await world.call("s__x", caller())) is None
    world.holder.current = policy(
        tmp_path / "new", rules("id: nope, on: call, effect: deny, when: 'true'")
    )
    assert denial(await world.call("s__x", caller()))["rule"] == "p0/nope"
    world.gateway.attach(server, _untrusted_gated(server))
    world.holder.current = policy(
        tmp_path / "new2", rules("id: t, on: call, effect: deny, when: 'server.trusted'")
    )
    assert denial(await world.call("s__x", caller()))["rule"] == "p0/t"


def _untrusted_gated(server: Any) -> Any:
    from tests.gateway.scripted import config

    return config(server.name, trusted=True)


async def test_worlds_hold(begin: Begin) -> None:
    world: World = await begin()
    world.serve("s", offers(["x"]))
    assert denial(await world.call("s__x", caller())) is None
