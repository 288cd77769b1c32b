"""An agent of ACP's own Python SDK behind ours."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sidecar.harness.agent import Agent, AgentSpec
from tests.harness.agent.kit import LIMITS, PROFILE, Ear

AGENT = Path(__file__).with_name("sdk_agent.py")


async def test_an_agent_of_the_sdk(tmp_path: Path) -> None:
    ear = Ear("allow")
    spec = AgentSpec("sdk", PROFILE, (sys.executable, str(AGENT)), tmp_path, limits=LIMITS)
    agent = await Agent.start(spec, ear)
    try:
        opened = await agent.open(None)
        assert (opened.how, opened.session_id, opened.mode) == ("new", "sdk-1", "default")
        turn = await agent.prompt("make it")
        assert (turn.stop_reason, turn.last_message) == ("end_turn", "made it")
        assert (tmp_path / "made").read_text() == "hello"
        # The question says nothing but which call it is about: the rest was said before.
        [request] = ear.requests
        assert (request.kind, request.title) == ("edit", "Make a file")
        assert request.paths == (str(tmp_path / "made"),)
        [plan] = [u.plan for u in ear.updates if u.plan is not None]
        assert [entry["content"] for entry in plan] == ["make it", "say so"]

        ear.answer = "reject"
        assert (await agent.prompt("again")).last_message == "was denied"

        count = len(ear.updates)
        waiting = asyncio.create_task(agent.prompt("wait"))
        await ear.until(lambda: len(ear.updates) > count)
        await agent.cancel()
        assert (await waiting).ended_by == "cancel"
        assert agent.complaints == 0
    finally:
        await agent.stop()

    again = await Agent.start(spec, Ear("reject"))
    try:
        opened = await again.open("sdk-1")
        assert (opened.how, opened.mode) == ("loaded", "default")
        assert (await again.prompt("x")).last_message == "was denied"
    finally:
        await again.stop()
