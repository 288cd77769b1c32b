"""The real adapter of Claude Code, as an editor sees it through us."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import SecretRef
from tests.downstream.acp_kit import screen
from tests.harness.agent import real
from tests.harness.runs.kit import Box
from tests.peers import fakemodel, peers

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(bool(peers.why_no_agent("claude")), reason=peers.why_no_agent("claude")),
    pytest.mark.timeout(300),
]


async def test_an_editor_has_claude_work(tmp_path: Path) -> None:
    async with fakemodel.serving() as model:
        spec = real.spec("claude", tmp_path / "home", tmp_path / "cwd", model)
        harness = {
            "profile": "claude",
            "command": spec.command,
            "env": {name: SecretRef(literal=value) for name, value in spec.env.items()},
        }
        async with Box(tmp_path, harness=harness) as box, screen(box) as editor:
            session = await editor.open()
            work = box.root / "claude/repo/alice" / session.removeprefix("repo/")
            made = {"tool": "Write", "input": {"file_path": str(work / "a.py"), "content": "x"}}
            bash = {"tool": "Bash", "input": {"command": "rm a.py", "description": "d"}}
            prompt = editor.prompt(session, fakemodel.script(made, bash, {"text": "Gone."}))
            (parked,) = await box.waits()
            assert (work / "a.py").exists()
            (notice,) = await editor.until(editor.notices)
            assert notice == {"id": parked.id, "tool": "claude__execute"}
            calls = {
                update["toolCallId"]: update
                for update in editor.updates
                if update["sessionUpdate"] == "tool_call"
            }
            assert {call["kind"] for call in calls.values()} == {"edit", "execute"}
            await box.answer(parked.id)
            result = (await editor.answer(prompt))["result"]
            assert result["stopReason"] == "end_turn"
            assert not (work / "a.py").exists()
            assert editor.text.endswith("Gone.")
            ended = {
                update["toolCallId"]
                for update in editor.updates
                if update["sessionUpdate"] == "tool_call_update"
                and update.get("status") == "completed"
            }
            assert ended == set(calls)
