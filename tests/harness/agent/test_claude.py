"""The real adapter of Claude Code, driven by a fake model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.harness.agent import Agent
from tests.harness.agent import real
from tests.harness.agent.kit import Ear
from tests.peers import fakemodel, peers

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(bool(peers.why_no_agent("claude")), reason=peers.why_no_agent("claude")),
    pytest.mark.timeout(300),
]


@pytest.fixture
async def model() -> AsyncIterator[fakemodel.FakeModel]:
    async with fakemodel.serving() as found:
        yield found


async def test_it_asks_and_does_what_it_may(tmp_path: Path, model: fakemodel.FakeModel) -> None:
    ear = Ear("allow")
    spec = real.spec("claude", tmp_path / "home", tmp_path / "work", model)
    agent = await Agent.start(spec, ear)
    try:
        opened = await agent.open(None)
        assert (opened.how, opened.mode) == ("new", "default")
        made = {"tool": "Bash", "input": {"command": "touch made && echo ok", "description": "d"}}
        turn = await agent.prompt(fakemodel.script(made, {"text": "done it"}))
        assert (turn.stop_reason, turn.last_message) == ("end_turn", "done it")
        assert (tmp_path / "work" / "made").exists()
        [request] = ear.requests
        assert (request.kind, request.command) == ("execute", "touch made && echo ok")
    finally:
        await agent.stop()
