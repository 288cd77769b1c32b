"""A policy specialised for a tool decides as the whole does, and costs what applies to the tool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.model import Hints, JsonObject, Kind, Phase, Tool
from sidecar.policy import EngineOptions, load
from sidecar.policy.decide import MOST_PLANS, CelPolicy
from sidecar.policy.engine import CelEngine
from sidecar.policy.files import PolicyFile
from sidecar.policy.inputs import known, tool_input
from sidecar.policy.suites import merged
from tests.kit.examples import examples
from tests.policy.kit import GIVEN, RESULT, SERVER, Folder, decide, policy, rule

ATOMS = [
    'tool.server == "up"',
    'tool.name.startsWith("up__w")',
    "tool.hints.read_only",
    "tool.gated",
    "has(tool.title)",
    "has(tool.annotations.open_world) && tool.annotations.open_world",
    "tool.changed",
    "server.trusted",
    'server.transport in ["stdio", "sse"]',
    '"outside" in session.labels',
    "args.n > 3",
    'args.path.startsWith("/etc")',
    "variables.v",
    "variables.w",
    'agent.principal == "x"',
    "true",
    "false",
]

conditions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=5,
)
rules = st.lists(
    st.tuples(st.sampled_from(["deny", "ask", "allow"]), conditions, st.booleans()),
    min_size=1,
    max_size=6,
)
matches = st.sampled_from(
    ["", "match: {server: up}", "match: {server: 'o*'}", "match: {tool: [write, 'r*']}",
     "match: {kind: prompt}"]
)  # fmt: skip
tools = st.fixed_dictionaries(
    {
        "server": st.sampled_from(["up", "other"]),
        "upstream_name": st.sampled_from(["write", "read"]),
        "name": st.sampled_from(["up__write", "other__read"]),
        "kind": st.sampled_from(["mcp", "prompt"]),
        "gated": st.booleans(),
        "gate_set": st.booleans(),
        "hints": st.fixed_dictionaries({"read_only": st.booleans()}),
        "annotations": st.sampled_from([{}, {"open_world": True}, {"open_world": False}]),
    },
    optional={"title": st.just("A title")},
)
inputs = st.fixed_dictionaries(
    {
        "args": st.sampled_from([{}, {"n": 1}, {"n": 9}, {"n": "x", "path": "/etc/x"}]),
        "session": st.sampled_from([{"labels": []}, {"labels": ["outside"]}]),
        "agent": st.sampled_from([{"principal": "x"}, {"principal": "y"}]),
    }
)


def written(found: list[tuple[str, str, bool]], match: str) -> str:
    more = "variables:\n  - {name: v, expr: 'tool.gated'}\n  - {name: w, expr: 'args.n > 5'}"
    made = [
        rule(f"r{i}", effect, when, more="mode: audit" if audit else "")
        for i, (effect, when, audit) in enumerate(found)
    ]
    return policy(*made, more=f"{more}\n{match}".rstrip())


def compiled(text: str) -> CelPolicy:
    file = PolicyFile(path=Path("p.yaml"), shown="p", data=text.encode())
    return CelEngine(EngineOptions()).compile([file])


@settings(max_examples=examples(100))
@given(rules, matches, tools, inputs, st.booleans(), st.booleans())
def test_specialised_is_the_same(
    found: list[tuple[str, str, bool]],
    match: str,
    tool: JsonObject,
    some: JsonObject,
    changed: bool,
    trusted: bool,
) -> None:
    whole = compiled(written(found, match))
    server: JsonObject = {**SERVER, "trusted": trusted}
    special = whole.specialise(known(tool, server))
    given: JsonObject = {**some, "server": server, "tool": {**tool, "changed": changed}}
    one, other = special.decide(Phase.CALL, given), whole.decide(Phase.CALL, given)
    # What is known to be true of a tool needs no text of its own; nothing else may differ.
    assert replace(one, message="", message_constant=True) == replace(
        other, message="", message_constant=True
    )
    assert one.message == other.message
    always = special.always(Phase.CALL)
    if always is not None and always.decision == "deny":
        assert other.decision == "deny"
    if always is not None and always.decision != "deny":
        assert always.decision == other.decision
    assert special.refs(Phase.CALL) <= whole.refs(Phase.CALL)
    # The input may be as small as refs says.
    needed = {name.partition(".")[0] for name in special.refs(Phase.CALL)}
    small = {name: value for name, value in given.items() if name in needed}
    assert special.decide(Phase.CALL, small) == one


def test_a_tool_that_is_always_denied(folder: Folder) -> None:
    text = policy(
        rule("never", "deny", 'tool.name == "up__drop"', on="[list, call]"),
        rule("sometimes", "deny", "args.?force.orValue(false)"),
    )
    loaded = folder.load(text)
    drop = loaded.specialise({"tool.name": "up__drop"})
    keep = loaded.specialise({"tool.name": "up__keep"})
    denied = drop.always(Phase.CALL)
    assert denied is not None
    assert (denied.decision, denied.rule) == ("deny", "p/never")
    assert drop.always(Phase.LIST) == drop.decide(Phase.LIST, dict(GIVEN))
    assert keep.always(Phase.CALL) is None
    listed = keep.always(Phase.LIST)
    assert listed is not None
    assert (listed.decision, listed.rule) == ("allow", "default")
    assert loaded.always(Phase.CALL) is None


def test_what_an_audited_rule_would_deny_is_not_always_denied(folder: Folder) -> None:
    loaded = folder.load(policy(rule("r", "deny", "tool.gated"), more="mode: audit"))
    found = loaded.specialise({"tool.gated": True}).always(Phase.CALL)
    assert found is not None
    assert (found.decision, found.would) == ("allow", "deny")


def test_refs_shrink_to_what_is_left(folder: Folder) -> None:
    text = policy(
        rule("a", "deny", 'tool.server == "other" && args.x == 1'),
        rule("b", "ask", "tool.gated && session.calls > 3"),
        rule("c", "deny", 'url.host == "x"', on="connect"),
        more="match: {server: [up, other]}",
    )
    loaded = folder.load(text)
    match = {"tool.server", "tool.upstream_name", "tool.kind"}
    assert loaded.refs(Phase.CALL) == {"args.x", "session.calls", "tool.gated", *match}
    assert loaded.refs(Phase.CONNECT) == {"url.host", "server.name", "server.runtime", "verdict"}
    assert loaded.refs(Phase.LIST) == frozenset()
    about = {"tool.server": "up", "tool.upstream_name": "w", "tool.kind": "mcp"}
    assert loaded.specialise({**about, "tool.gated": True}).refs(Phase.CALL) == {"session.calls"}
    assert loaded.specialise({**about, "tool.gated": False}).refs(Phase.CALL) == frozenset()


def test_a_partly_known_tool_is_still_matched_at_the_call(folder: Folder) -> None:
    loaded = folder.load(policy(rule("r", "deny", "tool.gated"), more="match: {server: up}"))
    special = loaded.specialise({"tool.gated": True})
    assert decide(special).decision == "deny"
    assert decide(special, tool={"server": "other"}, server={"name": "other"}).decision == "allow"


def test_whole_variables_may_be_known(folder: Folder) -> None:
    loaded = folder.load(policy(rule("r", "deny", "tool.gated"), more="match: {server: up}"))
    special = loaded.specialise({"tool": dict(GIVEN["tool"])})  # type: ignore[call-overload]
    found = special.always(Phase.CALL)
    assert found is not None
    assert found.decision == "deny"


def test_nothing_is_asked_where_no_rule_is_left(folder: Folder) -> None:
    loaded = folder.load(
        policy(*(rule(f"r{i}", "deny", f'tool.server == "s{i}" && args.x') for i in range(100)))
    )
    special = loaded.specialise(known(dict(GIVEN["tool"]), SERVER))  # type: ignore[call-overload]
    assert isinstance(special.policy, CelPolicy)
    assert special.policy.rules(Phase.CALL) == []
    assert special.decide(Phase.CALL, {}) is special.decide(Phase.CALL, {"args": {}})


def test_plans_are_bounded(folder: Folder) -> None:
    loaded = folder.load(policy(rule("r", "deny", "true"), more="match: {server: 's*'}"))
    assert isinstance(loaded.policy, CelPolicy)
    for i in range(MOST_PLANS + 10):
        tool = {"tool": {"server": f"s{i}", "upstream_name": "t", "kind": "mcp"}}
        assert loaded.decide(Phase.CALL, tool).decision == "deny"  # type: ignore[arg-type]
    assert len(loaded.policy._plans) <= MOST_PLANS


# -------------------------------------------------------------------------- inputs of tools


def tool(name: str = "up__write", **over: object) -> Tool:
    made = Tool(
        name=name,
        server="up",
        upstream_name="write",
        annotations=MappingProxyType({"read_only": True, "title": "Write"}),
        hints=Hints(read_only=False),
        gated=True,
        gate_set=False,
        trusted=False,
        digest="d",
        json=b"{}",
        own_json=b"{}",
    )
    return replace(made, **over)  # type: ignore[arg-type]


def test_the_input_of_a_tool() -> None:
    assert tool_input(tool()) == {
        "name": "up__write",
        "server": "up",
        "upstream_name": "write",
        "title": "Write",
        "kind": "mcp",
        "annotations": {"read_only": True, "title": "Write"},
        "hints": {
            "read_only": False,
            "destructive": True,
            "idempotent": False,
            "open_world": True,
        },
        "gated": True,
        "gate_set": False,
        "digest": "d",
    }
    assert "title" not in tool_input(tool(annotations={}))
    assert tool_input(tool(), Kind.ACP)["kind"] == "acp"


def test_result_and_list_are_specialised_too(folder: Folder) -> None:
    text = policy(
        rule("hide", "deny", "tool.gated", on="list"),
        rule("mark", "label", "!server.trusted", on="result", more="label: outside"),
    )
    special = folder.load(text).specialise(known(tool_input(tool()), SERVER))
    assert special.decide(Phase.LIST, {}).rule == "p/hide"
    assert special.decide(Phase.RESULT, {"result": RESULT}).labels == ("outside",)
    assert special.refs(Phase.RESULT) == frozenset()


@pytest.mark.parametrize("over", [{}, {"gated": False}, {"hints": {"read_only": True}}])
def test_the_shipped_policies_specialised(over: JsonObject) -> None:
    loaded = load()
    given = merged(GIVEN, {"tool": over, "session": {"labels": ["outside"]}})
    about = known({k: v for k, v in given["tool"].items() if k != "changed"}, SERVER)  # type: ignore[attr-defined]
    special = loaded.specialise(about)
    for phase in (Phase.LIST, Phase.CALL, Phase.RESULT):
        one = special.decide(phase, {**given, "result": RESULT})
        other = loaded.decide(phase, {**given, "result": RESULT})
        assert (one.decision, one.rules, one.labels) == (
            other.decision,
            other.rules,
            other.labels,
        )
