"""The sidecar as the agent's MCP server: with a token for the run, and no more than its caller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.config.types import Limits, Listen
from sidecar.downstream import AgentListener, Authenticator
from sidecar.harness.naming import WorkKey
from sidecar.harness.tokens import RunTokens, agent_principal
from sidecar.model import Principal
from tests.downstream.kit import JSON_HEADERS
from tests.gateway.test_spans import Spans
from tests.harness.kit import commit, write
from tests.harness.runs.kit import ALICE, Box, meta, plain, script, soon

KEY = WorkKey("claude", "repo", "alice", "fix")
AGENT = "harness:claude/repo/alice/fix"


@asynccontextmanager
async def reachable(folder: Path, **rest: Any) -> AsyncIterator[Box]:
    """A box whose gateway listens for its own agents, and for nobody else."""
    where: list[str] = []
    box = Box(folder, mcp_url=lambda: where[0], **rest)
    auth = Authenticator([("operator", Principal("op"))], runs=box.tokens)
    listener = AgentListener(box.gateway, auth, box.bus, name="box", version="1", limits=Limits())
    async with box:
        bound = await listener.start(Listen("127.0.0.1", 0))
        where.append(f"http://{bound}/mcp")
        try:
            yield box
        finally:
            await listener.close()


def servers(box: Box) -> list[dict[str, Any]]:
    """The MCP servers that the agents were given, session by session."""
    opened = ("session/new", "session/resume", "session/load")
    return [m["params"]["mcpServers"] for m in box.heard() if m.get("method") in opened]


async def test_an_agents_own_calls_pass_the_same_gate(tmp_path: Path) -> None:
    """P12: parked as the agent's, for its caller; the answer labels the agent and then it."""
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "apiVersion: sidecar/v1\nkind: Policy\nname: mine\nmatch: {kind: mcp}\nrules:\n"
        "  - id: agents\n    on: call\n    effect: ask\n"
        "    when: agent.?on_behalf_of.orValue('') == 'alice'\n"
    )
    async with reachable(tmp_path, harness={"mcp": ("*",)}, policies=(rules,)) as box:
        run = box.call(script({"mcp": "s__write", "args": {"a": 1}}))
        (waiting,) = await box.waits()
        assert (waiting.tool, waiting.principal) == ("s__write", AGENT)
        assert set(waiting.rules) == {"gating/gated", "mine/agents"}
        await box.answer(waiting.id)
        done = plain(await run)
        assert '"text": "ok"' in done["structuredContent"]["last_message"]
        ((method, params, caller),) = box.server.asked
        assert (method, params) == ("tools/call", {"name": "write", "arguments": {"a": 1}})
        assert caller.principal.on_behalf_of == "alice"
        assert done["_meta"]["sidecar/labels"] == ["outside"]


async def test_the_token_ends_with_the_run(tmp_path: Path) -> None:
    import aiohttp

    async with reachable(tmp_path, harness={"mcp": ("*",)}) as box:
        await box.done({"say": "x"})
        await box.done({"say": "y"})
        given = [session[0] for session in servers(box)]
        assert [(s["type"], s["name"]) for s in given] == [("http", "box")] * 2
        tokens = [s["headers"][0]["value"] for s in given]
        assert len(set(tokens)) == 2
        assert box.runs.occupation(KEY) == "none"
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        async with aiohttp.ClientSession() as client:
            for token in tokens:
                headers = {**JSON_HEADERS, "Authorization": token}
                async with client.post(given[0]["url"], json=body, headers=headers) as answer:
                    assert answer.status == 401


@pytest.mark.parametrize(
    ("mcp", "who"), [((), ALICE), (("t*",), ALICE), (("*",), Principal("a", (), ("*",), ("*",)))]
)
async def test_without_anything_to_reach_there_is_no_token(
    tmp_path: Path, mcp: tuple[str, ...], who: Principal
) -> None:
    async with reachable(tmp_path, harness={"mcp": mcp}) as box:
        await box.done({"say": "x"}, who=who)
        assert servers(box) == [[]]
        assert box.tokens._principals == {}


def test_an_agent_has_no_more_than_its_caller_and_never_a_harness() -> None:
    there = ["github", "git", "linear", "shell"]
    caller = Principal("alice", ("git*", "linear"), ("*",), ("*",))
    agent = agent_principal(KEY, caller, ("github", "linear", "shell"), there)
    assert agent == Principal(AGENT, ("github", "linear"), (), (), "alice")


def test_a_token_is_found_until_it_is_revoked() -> None:
    tokens, told = RunTokens(), []
    tokens.listen(lambda: told.append(1))
    one, two = tokens.mint(Principal("a")), tokens.mint(Principal("b"))
    assert tokens.find(one.digest) == Principal("a")
    assert one.value not in repr(one)
    tokens.revoke(one)
    tokens.revoke(one)
    assert (tokens.find(one.digest), tokens.find(two.digest)) == (None, Principal("b"))
    assert told == [1]


async def test_a_run_is_one_span_with_what_happened_below_it(tmp_path: Path) -> None:
    spans = Spans()
    call = {"toolCallId": "t", "title": "make", "kind": "execute", "rawInput": {"command": "make"}}
    read = {"toolCallId": "r", "title": "Read", "kind": "read", "name": "Read"}
    async with Box(tmp_path, tracer=spans) as box:
        run = box.call(
            script(
                {"tool": {**read, "status": "pending"}},
                {"tool": {"toolCallId": "r", "status": "completed"}, "as": "tool_call_update"},
                {"tool": {**call, "status": "pending"}},
                {"ask": call},
                {"say": "x"},
            )
        )
        (waiting,) = await box.waits()
        work = tmp_path / "worktrees/claude/repo/alice/fix"
        write(work / "new.txt", "x\n")
        head = commit(work, "made")
        await box.answer(waiting.id)
        await run
        (whole,) = [span for span in spans.started if span.name == "invoke_agent claude"]
        server = next(span for span in spans.started if span.name == "tools/call claude")
        client = [span for span in spans.started if span.name == "tools/call claude"][1]
        assert client.parent == server.context
        assert whole.parent == client.context
        assert whole.ended == [None]
        below = [span for span in spans.started if span.parent == whole.context]
        assert [span.name for span in below] == [
            "execute_tool read",
            "execute_tool execute",
            "session/request_permission",
            "sidecar.commit",
        ]
        read_span, execute, asked, made = below
        assert read_span.ended == [None]
        assert execute.ended == ["interrupted"]
        assert asked.attributes["sidecar.permission.answer"] == "allow"
        assert asked.attributes["sidecar.rule"] == "coding-agents/execute"
        assert made.attributes == {"vcs.ref.head.revision": head}
        assert whole.attributes["gen_ai.operation.name"] == "invoke_agent"
        assert whole.attributes["sidecar.stop_reason"] == "end_turn"
        assert whole.attributes["vcs.ref.head.name"] == "work/claude/alice/fix"
        assert whole.attributes["gen_ai.conversation.id"]
        # The agent is told where its trace goes on.
        (prompt,) = [m for m in box.heard() if m.get("method") == "session/prompt"]
        assert prompt["params"]["_meta"] == {"traceparent": whole.context.traceparent}
        assert {update.trace for update in box.updates} == {whole.context}


async def test_a_principal_that_may_not_call_any_more_has_no_runs(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"hold": 0.3}) as box:
        told = meta(await box.call(script({"hang": True})), "running")
        assert told["work"] == "fix"
        await soon(box.prompts)
        box.runs.revoked("somebody else")
        assert box.runs.occupation(KEY) == "working"
        box.runs.revoked("alice")
        await soon(lambda: not box.runs._active)
        await soon(lambda: "session/cancel" in {each.get("method") for each in box.heard()})


async def test_a_harness_that_is_gone_has_none_either(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"hold": 0.3}) as box:
        await box.call(script({"hang": True}))
        box.runs.reconfigure({}, ["repo"], hold=1.0, sweep=None)
        assert box.runs.upstreams() == ()
        await soon(lambda: not box.runs._active)


async def test_one_that_did_not_change_is_the_same(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        (before,) = box.runs.upstreams()
        box.runs.reconfigure({"claude": before.config}, ["repo"], hold=1.0, sweep=None)
        assert box.runs.upstreams() == (before,)
        box.runs.reconfigure({"claude": before.config}, ["repo", "more"], hold=1.0, sweep=None)
        (after,) = box.runs.upstreams()
        assert after is not before
        (tool,) = after.entries().tools
        assert json.loads(tool.json)["inputSchema"]["properties"]["checkout"]["enum"] == [
            "repo",
            "more",
        ]
