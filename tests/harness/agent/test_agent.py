"""A scripted agent through ``Agent``: turns, permissions, sessions, modes."""

from __future__ import annotations

from pathlib import Path

from tests.harness.agent.kit import Ear, running, script, sent


async def test_a_prompt_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (agent, ear):
        turn = await agent.prompt("hello")
        assert (turn.stop_reason, turn.last_message, turn.ended_by) == (
            "end_turn",
            "echo: hello",
            "agent",
        )
        states = [u.state for u in ear.updates if u.kind == "state_update"]
        assert states == ["running", "idle"]
        assert agent.mode == "default"
        assert agent.idle


async def test_a_permission_is_asked_and_what_was_allowed_runs(tmp_path: Path) -> None:
    call = {"toolCallId": "t1", "kind": "execute", "rawInput": {"command": "touch made"}}
    steps = {"ask": call, "run": "touch made && echo done"}
    async with running(tmp_path, Ear("allow"), log=str(tmp_path / "log")) as (agent, ear):
        turn = await agent.prompt(script({"say": "first"}, steps))
        assert turn.last_message == "firstran it: done"
    assert (tmp_path / "made").exists()
    [request] = ear.requests
    assert (request.kind, request.command, request.allowable) == ("execute", "touch made", True)
    assert sent(tmp_path / "log")[-1] == {
        "jsonrpc": "2.0",
        "id": 0,
        "result": {"outcome": {"outcome": "selected", "optionId": "yes"}},
    }
    states = [u.state for u in ear.updates if u.kind == "state_update"]
    assert states == ["running", "requires_action", "running", "idle"]
