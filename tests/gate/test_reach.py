"""P4, P5, P7: audit mode, hints, and every way that leads to a tool."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sidecar.gateway import Gateway
from sidecar.model import Caller, Era, RpcError, TraceContext
from sidecar.policy.testing import check
from tests.gate.conftest import Begin
from tests.gate.kit import World, denial, plain, policy, rules
from tests.gateway.scripted import caller, offers, tool
from tests.gateway.test_spans import Spans

# -------------------------------------------------------------------------------------- P4

AUDITED = """mode: audit
rules:
  - {id: refuse, on: call, effect: deny, when: 'tool.upstream_name == "x"'}
"""
TESTS = """apiVersion: sidecar/v1
kind: PolicyTest
tests:
  - name: x is denied
    input: {tool: {name: s__x, server: s, upstream_name: x, kind: mcp}}
    expect: {decision: deny, rule: refuse}
"""


async def test_audit_records_what_would_be_and_enforce_does_it(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spans = Spans()
    world = await begin(AUDITED, tracer=spans)
    server = world.serve("s", offers(["x", "y"]))
    caplog.set_level(logging.INFO, "sidecar.gate")
    assert denial(await world.call("s__x", caller())) is None
    assert len(server.asked) == 1
    decided = world.decided[0].decision
    assert (decided.decision, decided.mode, decided.would) == ("allow", "audit", "deny")
    assert decided.would_rule == "p0/refuse"
    (line,) = [r.getMessage() for r in caplog.records if "s__x" in r.getMessage()]
    assert "in force it would be deny by p0/refuse" in line
    attributes = spans.started[0].attributes
    assert attributes["sidecar.decision"] == "allow"
    assert attributes["sidecar.would"] == "deny"
    assert attributes["sidecar.would_rule"] == "p0/refuse"
    folder = tmp_path / "policies"
    (folder / "p0_test.yaml").write_text(TESTS)
    assert check([folder], engine="cel") == []
    world.holder.current = policy(folder, AUDITED.replace("audit", "enforce"))
    (folder / "p0_test.yaml").write_text(TESTS)
    assert check([folder], engine="cel") == []
    assert denial(await world.call("s__x", caller()))["rule"] == "p0/refuse"
    assert len(server.asked) == 1
    denied = spans.started[-1].attributes
    assert (denied["sidecar.decision"], denied["sidecar.rule"]) == ("deny", "p0/refuse")
    assert denied["sidecar.policy.revision"] == world.holder.current.revision


async def test_results_are_audited_too(begin: Begin) -> None:
    world = await begin(
        "mode: audit\n" + rules("id: r, on: result, effect: deny, when: 'true'"),
        "mode: audit\n" + rules("id: l, on: result, effect: label, label: z, when: 'true'"),
    )
    world.serve("s", offers(["x"]))
    answer = await world.call("s__x", caller())
    assert denial(answer) is None
    assert "sidecar/labels" not in answer["_meta"]  # type: ignore[operator]
    assert world.decided[-1].decision.would == "deny"
    assert world.house.ledger.of(caller()) == ()


# -------------------------------------------------------------------------------------- P5

READ = {"readOnlyHint": True, "destructiveHint": False}


@pytest.mark.parametrize(
    ("claimed", "configured", "gated"),
    [
        (READ, {"hints": "restrict"}, True),
        (READ, {"hints": "trust"}, False),
        ({}, {"hints": "trust"}, True),
        (READ, {"hints": "restrict", "gated": False}, False),
        (READ, {"hints": "trust", "gated": True}, True),
        (READ, {"hints": "trust", "gated": ("x",)}, True),
        ({}, {"gated": ("y",)}, False),
    ],
)
async def test_hints_restrict_and_the_operator_decides(
    begin: Begin, claimed: Any, configured: Any, gated: bool
) -> None:
    world = await begin(shipped=("gating",))
    world.serve("s", offers([tool("x", annotations=claimed)]), **configured)
    refused = denial(await world.call("s__x", caller()))
    assert (refused is not None) is gated


async def test_missing_hints_are_the_strict_ones(begin: Begin) -> None:
    world = await begin(
        rules(
            "id: refuse, on: call, effect: deny, when: 'tool.hints.destructive "
            "&& tool.hints.open_world && !tool.hints.read_only && !tool.hints.idempotent "
            "&& !has(tool.annotations.destructive)'"
        )
    )
    world.serve("s", offers(["x", tool("y", annotations={"destructiveHint": False})]))
    assert denial(await world.call("s__x", caller())) is not None
    assert denial(await world.call("s__y", caller())) is None


# -------------------------------------------------------------------------------------- P7

WHOAMI = rules("id: refuse, on: call, effect: deny, when: 'tool.name == \"up__whoami\"'")
LONG = "w" * 61


async def ways(gateway: Gateway, who: Caller) -> dict[str, Any]:
    """Every way to up__whoami, and what came of it."""

    async def asked(**params: Any) -> Any:
        return await gateway.request("tools/call", {"arguments": {}, **params}, who)

    alone = caller(session=who.session)
    alone.server = "up"
    block = {"type": "tool_use", "id": "t", "name": "up__whoami", "input": {}}
    function = {"type": "function", "function": {"name": "up__whoami", "arguments": "{}"}}
    return {
        "name": await asked(name="up__whoami"),
        "alone": await gateway.request("tools/call", {"name": "whoami"}, alone),
        "rest": await gateway.call("up__whoami", {}, who),
        "separator": await gateway.call("up.whoami", {}, who, separator="."),
        "anthropic": await gateway.call_block(block, who),
        "openai": await gateway.call_block(function, who),
    }


@pytest.mark.parametrize("era", list(Era))
async def test_no_way_leads_around_a_denial(begin: Begin, era: Era) -> None:
    spans = Spans()
    world = await begin(WHOAMI, tracer=spans)
    server = world.serve("up", offers(["whoami", "echo"]))
    for session in ("s1", "s2"):
        for way, answer in (await ways(world.gateway, caller(session=session, era=era))).items():
            assert denial(plain(answer)) is not None, way
    assert server.asked == []
    assert {each.target for each in world.decided} == {"up__whoami"}
    assert {span.attributes["gen_ai.tool.name"] for span in spans.started} == {"up__whoami"}
    assert {span.name for span in spans.started} == {"tools/call up__whoami"}


async def test_a_renamed_tool_is_matched_by_its_own_name(begin: Begin) -> None:
    world = await begin(
        f"match: {{server: up, tool: '{LONG}'}}\n"
        + rules("id: refuse, on: call, effect: deny, when: 'args == {}'")
    )
    world.serve("up", offers([LONG]))
    (name,) = await world.names(caller())
    assert name != f"up__{LONG}"
    assert len(name) <= 64
    assert denial(await world.call(name, caller())) is not None
    dotted = await world.gateway.call(f"up.{LONG}", {}, caller(), separator=".")
    assert denial(plain(dotted)) is not None


# ----------------------------------------------------------------------------------- lists

HIDDEN = rules(
    "id: gone, on: list, effect: deny, when: 'tool.upstream_name == \"secret\"'",
    "id: mine, on: list, effect: deny, when: "
    '\'tool.upstream_name == "bots" && agent.principal != "bot"\'',
)


async def test_what_is_denied_at_list_is_neither_listed_nor_called(begin: Begin) -> None:
    world = await begin(HIDDEN)
    server = world.serve("s", offers(["secret", "bots", "x"]))
    assert await world.names(caller()) == ["s__x"]
    assert await world.names(caller(name="bot")) == ["s__bots", "s__x"]
    for format in ("mcp", "anthropic", "openai"):
        told = plain(await world.gateway.tools_as(format, caller()))  # type: ignore[arg-type]
        assert "secret" not in json.dumps(told)
        assert "bots" not in json.dumps(told)
    alone = caller()
    alone.server = "s"
    assert await world.names(alone) == ["x"]
    assert denial(await world.call("s__secret", caller()))["rule"] == "p0/gone"
    assert denial(await world.call("s__bots", caller()))["rule"] == "p0/mine"
    assert server.asked == []
    assert [each.phase for each in world.decided] == ["list", "list"]
    assert denial(await world.call("s__bots", caller(name="bot"))) is None


async def test_prompts_and_resources_are_hidden_too(begin: Begin) -> None:
    from tests.gateway.scripted import ALL, prompt, resource, template

    world = await begin(
        rules("id: gone, on: list, effect: deny, when: 'tool.upstream_name.contains(\"secret\")'")
    )
    server = world.serve(
        "s",
        offers(
            [],
            ALL,
            prompts=(prompt("secret"), prompt("p")),
            resources=(resource("f:///secret"), resource("f:///r")),
            templates=(template("s:///secret/{x}"), template("s:///t/{x}")),
        ),
    )
    for method, key, field, left in (
        ("prompts/list", "prompts", "name", ["s__p"]),
        ("resources/list", "resources", "uri", ["f:///r"]),
        ("resources/templates/list", "resourceTemplates", "uriTemplate", ["s:///t/{x}"]),
    ):
        listed: Any = plain(await world.gateway.request(method, {}, caller()))
        assert [each[field] for each in listed[key]] == left
    for method, params in (
        ("prompts/get", {"name": "s__secret"}),
        ("resources/read", {"uri": "f:///secret"}),
    ):
        with pytest.raises(RpcError) as refused:
            await world.gateway.request(method, dict(params), caller())
        assert refused.value.data["rule"] == "p0/gone"  # type: ignore[index]
    assert server.asked == []


async def test_what_is_always_denied_is_not_listed(begin: Begin) -> None:
    world = await begin(
        "match: {server: s, tool: 'delete_*'}\n"
        + rules("id: never, on: call, effect: deny, when: 'true', message: '\"never\"'"),
        rules(
            "id: some, on: call, effect: deny, when: 'args.a == 1'",
            "id: who, on: call, effect: deny, when: 'agent.principal == \"x\"'",
            "id: hint, on: call, effect: deny, when: 'tool.hints.idempotent'",
        ),
        "mode: audit\n" + rules("id: all, on: call, effect: deny, when: 'true'"),
    )
    server = world.serve(
        "s", offers(["delete_all", "x", tool("i", annotations={"idempotentHint": True})])
    )
    world.serve("t", offers(["delete_all"]))
    assert await world.names(caller()) == ["s__x", "t__delete_all"]
    assert denial(await world.call("s__delete_all", caller())) == {
        "rule": "p0/never",
        "message": "never",
    }
    assert server.asked == []


async def test_a_reload_changes_what_is_listed(begin: Begin, tmp_path: Path) -> None:
    world: World = await begin(HIDDEN)
    world.serve("s", offers(["secret", "x"]))
    assert await world.names(caller()) == ["s__x"]
    world.holder.current = policy(tmp_path / "new")
    assert await world.names(caller()) == ["s__secret", "s__x"]
    assert denial(await world.call("s__secret", caller())) is None


async def test_with_default_deny_only_what_is_allowed_is_there(begin: Begin) -> None:
    world = await begin(
        rules(
            "id: listed, on: list, effect: allow, when: 'tool.hints.read_only'",
            "id: called, on: call, effect: allow, when: 'tool.hints.read_only'",
        ),
        default="deny",
    )
    world.serve("s", offers(["w", tool("r", annotations=READ)]))
    assert await world.names(caller()) == ["s__r"]
    assert denial(await world.call("s__r", caller())) is None
    assert denial(await world.call("s__w", caller()))["rule"] == "default"


async def test_the_trace_of_a_call_is_on_its_decision(begin: Begin) -> None:
    world = await begin(tracer=Spans())
    world.serve("s", offers(["x"]))
    await world.call("s__x", caller(trace=TraceContext("00-parent")))
    assert all(each.trace.traceparent for each in world.decided)
