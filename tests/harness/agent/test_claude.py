"""The real adapter of Claude Code, driven by a fake model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.harness.agent import Agent, AgentFailed, AgentGone
from sidecar.harness.check import check
from sidecar.harness.profiles import PROFILES
from tests.harness.agent import real
from tests.harness.agent.kit import Ear, forever
from tests.kit.processes import alive, descendants
from tests.peers import fakemodel, peers

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(bool(peers.why_no_agent("claude")), reason=peers.why_no_agent("claude")),
    pytest.mark.timeout(300),
]


def bash(command: str) -> dict[str, object]:
    return {"tool": "Bash", "input": {"command": command, "description": "d"}}


@pytest.fixture
async def model() -> AsyncIterator[fakemodel.FakeModel]:
    async with fakemodel.serving() as found:
        yield found


async def test_it_asks_obeys_is_cancelled_and_goes_on(
    tmp_path: Path, model: fakemodel.FakeModel
) -> None:
    work = tmp_path / "work"
    # What lies in a worktree may not run code, nor silence its questions.
    (work / ".claude").mkdir(parents=True)
    hook = {"type": "command", "command": f"touch {tmp_path}/hook"}
    settings = {
        "hooks": {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]},
        "permissions": {"allow": ["Bash(touch:*)"], "defaultMode": "acceptEdits"},
    }
    (work / ".claude" / "settings.json").write_text(json.dumps(settings))
    (work / ".claude" / "settings.local.json").write_text(json.dumps(settings))
    server = {"command": "touch", "args": [f"{tmp_path}/server"]}
    (work / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": server}}))

    ear = Ear("allow")
    spec = real.spec("claude", tmp_path / "home", work, model)
    agent = await Agent.start(spec, ear)
    try:
        assert agent.about is not None
        package = PROFILES["claude"].package
        assert package is not None
        assert (agent.about.name, agent.about.version) == (package.name, package.version)
        opened = await agent.open(None)
        assert (opened.how, opened.mode) == ("new", "default")

        # Allowed.
        turn = await agent.prompt(
            fakemodel.script(bash("touch made && echo ok"), {"text": "done it"})
        )
        assert (turn.stop_reason, turn.last_message) == ("end_turn", "done it")
        assert (work / "made").exists()
        assert [(r.kind, r.command, r.tool) for r in ear.requests] == [
            ("execute", "touch made && echo ok", "Bash")
        ]
        tools = [u.tool for u in ear.updates if u.tool is not None]
        assert {tool.id for tool in tools} == {ear.requests[0].tool_call["toolCallId"]}
        assert tools[-1].status == "completed"
        systems = [str(asked["body"]["system"]) for asked in model.asked]
        assert any("CLAUDE.md and AGENTS.md are not loaded" in text for text in systems)
        assert not (tmp_path / "hook").exists()
        assert not (tmp_path / "server").exists()

        # A file, and a denial, after which the model goes on.
        ear.answer = "reject"
        write = {"tool": "Write", "input": {"file_path": str(work / "new"), "content": "x"}}
        turn = await agent.prompt(fakemodel.script(write, {"text": "then not"}))
        assert (turn.last_message, turn.ended_by) == ("then not", "agent")
        assert not (work / "new").exists()
        request = ear.requests[-1]
        assert (request.kind, request.paths, request.diffs[0].new) == (
            "edit",
            (str(work / "new"),),
            "x",
        )

        # Tools that would leave the worktree are not there.
        turn = await agent.prompt(
            fakemodel.script({"tool": "EnterWorktree", "input": {}}, {"text": "stayed"})
        )
        assert not (work / ".claude" / "worktrees").exists()

        # The model fails, and that is all.
        with pytest.raises(AgentFailed, match="API Error: 400") as failed:
            await agent.prompt(fakemodel.script({"status": 400}))
        assert failed.value.reason == "error"
        assert agent.idle

        # Cancelled while a question waits: it takes the question back.
        ear.answer = forever
        count = len(ear.requests)
        running = asyncio.create_task(
            agent.prompt(fakemodel.script(bash("touch no"), {"text": "no"}))
        )
        await ear.until(lambda: len(ear.requests) > count)
        await agent.cancel()
        turn = await running
        assert (turn.stop_reason, turn.ended_by) == ("cancelled", "cancel")
        assert not (work / "no").exists()
        assert agent.complaints == 0

        # Killed, and taken up by the next.
        below = descendants(agent.pid)
        assert below
        os.kill(agent.pid, signal.SIGKILL)
        with pytest.raises(AgentGone, match="ended by signal 9"):
            await agent.prompt(fakemodel.script({"text": "never"}))
    finally:
        await agent.stop()
    assert not [pid for pid in below if alive(pid)]

    again = await Agent.start(spec, Ear("allow"))
    try:
        reopened = await again.open(opened.session_id)
        assert (reopened.how, reopened.mode) == ("resumed", "default")
        turn = await again.prompt(fakemodel.script({"text": "still here"}))
        assert turn.last_message == "still here"
        remembered = [str(asked["body"]["messages"]) for asked in model.asked]
        assert any("done it" in text and "still here" in text for text in remembered)
    finally:
        await again.stop()


async def test_the_canary(tmp_path: Path, model: fakemodel.FakeModel) -> None:
    spec = real.spec("claude", tmp_path / "home", tmp_path / "work", model)
    result = await check(
        spec, prompt=lambda command: fakemodel.script(bash(command), {"text": "I stop"})
    )
    assert [(s.name, s.state) for s in result.steps] == [
        ("start", "ok"),
        ("asking mode", "ok"),
        ("asks", "ok"),
        ("denied", "ok"),
        ("unasked", "note"),
    ]
