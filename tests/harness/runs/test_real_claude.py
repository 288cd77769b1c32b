"""The real adapter of Claude Code as a tool: asked, approved, gone on with, landed, swept."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import SecretRef
from tests.harness.agent import real
from tests.harness.kit import git
from tests.harness.runs.kit import Box, plain
from tests.peers import fakemodel, peers

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(bool(peers.why_no_agent("claude")), reason=peers.why_no_agent("claude")),
    pytest.mark.timeout(300),
]
COMMIT = (
    "echo fixed > login.txt && git add login.txt && "
    "git -c user.name=a -c user.email=a@example.org commit -qm 'Fix the login'"
)


def bash(command: str) -> dict[str, object]:
    return {"tool": "Bash", "input": {"command": command, "description": "d"}}


async def test_from_a_task_to_a_sweep(tmp_path: Path) -> None:
    async with fakemodel.serving() as model:
        spec = real.spec("claude", tmp_path / "home", tmp_path / "cwd", model)
        harness = {
            "profile": "claude",
            "command": spec.command,
            "env": {name: SecretRef(literal=value) for name, value in spec.env.items()},
        }
        work = tmp_path / "worktrees/claude/repo/alice/fix-login"
        async with Box(tmp_path, harness=harness) as box:
            write = {"tool": "Write", "input": {"file_path": str(work / "a.py"), "content": "x"}}
            elsewhere = {"file_path": str(tmp_path / "repo" / "a.py"), "content": "x"}
            outside = {"tool": "Write", "input": elsewhere}
            steps = (write, outside, bash("rm a.py"), bash(COMMIT), {"text": "The login works."})
            call = box.call(fakemodel.script(*steps), "fix-login")
            (removing,) = await box.waits()
            await box.answer(removing.id)
            (committing,) = [parked for parked in await box.waits() if parked.id != removing.id]
            whole = plain({"args": (await box.parking.book.get(committing.id)).args})["args"]
            assert whole["permission"]["command"] == COMMIT
            await box.answer(committing.parent)
            told = plain(await call)["structuredContent"]
            assert told["last_message"] == "The login works."
            assert (told["stop_reason"], told["dirty"], told["continued"]) == (
                "end_turn",
                False,
                None,
            )
            assert [commit["subject"] for commit in told["commits"]] == ["Fix the login"]
            assert [(ask["tool"], ask["answer"]) for ask in told["asks"]] == [
                ("claude__edit", "allow"),
                ("claude__edit", "reject"),
                ("claude__execute", "allow"),
                ("claude__execute", "allow"),
            ]
            assert told["asks"][1]["rule"] == "coding-agents/outside"
            assert not (tmp_path / "repo" / "a.py").exists()
        async with Box(tmp_path, harness=harness) as box:
            again = plain(await box.call(fakemodel.script({"text": "Yes."}), "fix-login"))
            told = again["structuredContent"]
            assert (told["continued"], told["last_message"]) == ("resumed", "Yes.")
            git(box.repo, "merge", "--quiet", "--squash", told["branch"])
            git(box.repo, "commit", "--quiet", "--message", "Fix the login (#1)")
            assert (await box.runs.sweep())["removed"] == [str(work)]
