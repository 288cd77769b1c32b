"""A work is gone on with, whatever ended what was there before."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

from sidecar.harness.naming import WorkKey, WorkName
from tests.harness.kit import commit, git, write
from tests.harness.runs.kit import Box, meta, plain, script, soon

KEY = WorkKey("claude", "repo", "alice", "fix")
ASK = {"toolCallId": "t", "title": "make it", "kind": "execute", "rawInput": {"command": "make"}}


async def continued(box: Box, task: str = "go on") -> tuple[object, str]:
    told = plain(await box.call(task))["structuredContent"]
    return told["continued"], told["last_message"]


async def test_the_agent_is_kept_for_the_next_task(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        assert await continued(box, "begin") == (None, "echo: begin")
        assert box.runs.occupation(KEY) == "idle"
        assert await continued(box, "go on") == ("kept", "echo: go on")


async def test_an_agent_without_a_task_ends_after_a_while(tmp_path: Path) -> None:
    async with Box(tmp_path, idle=0.1) as box:
        await continued(box, "begin")
        await soon(lambda: box.runs.occupation(KEY) == "none")
        assert await continued(box) == ("resumed", "echo: go on")


async def test_of_many_idle_agents_the_longest_idle_end(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        for number in range(6):
            await box.call("x", f"w{number}")
        keys = [WorkKey("claude", "repo", "alice", f"w{number}") for number in range(6)]
        await soon(lambda: [box.runs.occupation(key) for key in keys].count("none") == 2)
        assert [box.runs.occupation(key) for key in keys] == ["none"] * 2 + ["idle"] * 4


async def test_a_session_is_resumed_after_a_restart(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
    async with Box(tmp_path) as box:
        assert await continued(box) == ("resumed", "echo: go on")
        methods = [message.get("method") for message in box.heard()]
        assert methods.count("session/new") == 1
        assert methods.count("session/resume") == 1


async def test_or_loaded_and_what_it_replays_is_not_its_answer(tmp_path: Path) -> None:
    async with Box(tmp_path, habits={"resume": False}) as box:
        await continued(box, "begin")
    async with Box(tmp_path, habits={"resume": False}) as box:
        assert await continued(box) == ("loaded", "echo: go on")


async def test_or_a_new_one_is_told_what_happened(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "rename the thing")
        work = tmp_path / "worktrees/claude/repo/alice/fix"
        write(work / "new.txt", "x\n")
        commit(work, "renamed it")
        write(work / "more.txt", "x\n")
    (tmp_path / "sessions.json").unlink()
    async with Box(tmp_path, habits={"resume": False}) as box:
        how, message = await continued(box, "now test it")
        assert how == "summary"
        for known in (
            "rename the thing",
            "echo: rename the thing",
            "ended with end_turn",
            "renamed it",
            "not committed",
            "work/claude/alice/fix",
        ):
            assert known in message
        assert message.endswith("The task now:\nnow test it")


async def test_another_kind_of_agent_begins_with_a_summary(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
    memory = tmp_path / "worktrees/.sidecar/sessions/claude/repo/alice/fix.json"
    memory.write_text(memory.read_text().replace('"generic"', '"claude"'))
    async with Box(tmp_path) as box:
        how, message = await continued(box)
        assert how == "summary"
        assert "echo: begin" in message


async def test_a_damaged_memory_costs_the_conversation_and_no_work(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
    memory = tmp_path / "worktrees/.sidecar/sessions/claude/repo/alice/fix.json"
    memory.write_text('{"name":')
    async with Box(tmp_path) as box:
        assert (await continued(box))[0] == "summary"


async def test_a_work_that_was_removed_and_made_again_is_new(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
        git(box.repo, "worktree", "remove", "-f", "-f", "../worktrees/claude/repo/alice/fix")
        # Only its directory is gone: the agent that was in it is of no use.
        assert await continued(box) == ("resumed", "echo: go on")
        git(box.repo, "worktree", "remove", "-f", "-f", "../worktrees/claude/repo/alice/fix")
        git(box.repo, "branch", "-D", "work/claude/alice/fix")
        assert await continued(box) == (None, "echo: go on")


async def test_an_agent_that_died_while_idle_is_started_again(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
        agent = box.runs._agents._idle[KEY].agent
        os.kill(agent.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        await soon(lambda: not agent.idle)
        assert (await continued(box))[0] == "resumed"


async def test_a_run_that_was_interrupted_goes_on_in_its_work(tmp_path: Path) -> None:
    """The sidecar ends in the middle; the same call, which named no work, goes on there."""
    task = script({"write": "half.txt", "text": "half"}, {"ask": ASK}, {"say": "done"})
    async with Box(tmp_path, hold=0.2) as box:
        work = meta(await box.call(task, None), "running")["work"]
    (state,) = [parked.state for parked in box.parked()]
    assert state == "lost"
    async with Box(tmp_path) as box:
        assert [known["work"] for known in await box.runs.works()] == [work]
        call = box.call(task, None)
        (waiting,) = await box.waits()
        assert "was interrupted" in box.prompts()[-1]
        await box.answer(waiting.id)
        told = plain(await call)["structuredContent"]
        assert (told["work"], told["continued"], told["dirty"]) == (work, "resumed", True)


async def test_what_is_remembered_goes_with_its_work(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
        memory = tmp_path / "worktrees/.sidecar/sessions/claude/repo/alice/fix.json"
        assert json.loads(memory.read_text())["episodes"][0]["task"] == "begin"
        assert oct(memory.stat().st_mode & 0o777) == "0o600"
    shutil.rmtree(tmp_path / "worktrees/claude")
    shutil.rmtree(tmp_path / "repo/.git/worktrees")
    git(tmp_path / "repo", "branch", "-D", "work/claude/alice/fix")
    (tmp_path / "worktrees/.sidecar/works/claude/repo/alice/fix.json").unlink()
    async with Box(tmp_path) as box:
        assert not memory.exists()
        assert (await continued(box))[0] is None


async def test_a_sweep_ends_idle_agents_and_removes_what_landed(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
        work = tmp_path / "worktrees/claude/repo/alice/fix"
        write(work / "new.txt", "x\n")
        commit(work, "worked")
        kept = await box.runs.sweep()
        assert [row["reason"] for row in kept["kept"]] == ["not_landed"]  # type: ignore[index, attr-defined]
        assert box.runs.occupation(KEY) == "idle"
        git(box.repo, "merge", "--quiet", "--squash", "work/claude/alice/fix")
        git(box.repo, "commit", "--quiet", "--message", "squashed")
        dry = await box.runs.sweep(dry_run=True)
        assert dry["removed"] == [str(work)]
        assert box.runs.occupation(KEY) == "idle"
        assert await box.runs.sweep() == {"removed": [str(work)], "kept": [], "dry_run": False}
        assert await box.runs.sweep() == {"removed": [], "kept": [], "dry_run": False}
        assert box.runs.occupation(KEY) == "none"
        assert not (tmp_path / "worktrees/.sidecar/sessions/claude").exists()
        assert (await continued(box, "begin"))[0] is None


async def test_a_sweep_leaves_what_works_and_what_waits(tmp_path: Path) -> None:
    async with Box(tmp_path, habits={"store": ""}) as box:
        waits = box.call(script({"ask": ASK}), "waits")
        works = box.call(script({"hang": True}), "works")
        await box.waits()
        await soon(lambda: len(box.prompts()) == 2)
        kept = await box.runs.sweep()
        reasons = [row["reason"] for row in kept["kept"]]  # type: ignore[index, attr-defined]
        assert reasons == ["waiting", "in_use"]
        for call in (waits, works):
            call.cancel()
        await asyncio.gather(waits, works, return_exceptions=True)


async def test_it_is_swept_at_start_and_again_and_again(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await continued(box, "begin")
    write(tmp_path / "worktrees/claude/repo/alice/fix/new.txt", "x\n")
    commit(tmp_path / "worktrees/claude/repo/alice/fix", "worked")
    git(tmp_path / "repo", "merge", "--quiet", "--squash", "work/claude/alice/fix")
    git(tmp_path / "repo", "commit", "--quiet", "--message", "squashed")
    async with Box(tmp_path, sweep=0.3) as box:
        work = tmp_path / "worktrees/claude/repo/alice/fix"
        await soon(lambda: not work.exists())
        await continued(box, "begin")
        write(work / "again.txt", "x\n")
        commit(work, "worked again")
        git(tmp_path / "repo", "merge", "--quiet", "--squash", "work/claude/alice/fix")
        git(tmp_path / "repo", "commit", "--quiet", "--message", "squashed again")
        await soon(lambda: not work.exists())


async def test_a_work_whose_agent_never_came_is_used_by_the_next_call(tmp_path: Path) -> None:
    """P11: the sidecar died between making the worktree and opening a session."""
    async with Box(tmp_path) as box:
        async with box.works.use(WorkName("claude", "repo", "alice", "fix")) as work:
            assert work.new
        assert (await continued(box))[0] == "summary"
        assert len(await box.runs.works()) == 1
        assert await box.runs.sweep() == await box.runs.sweep()


async def test_one_that_cannot_begin_leaves_nothing_running(tmp_path: Path) -> None:
    async with Box(tmp_path, habits={"greet": 0.3, "auth": "login"}) as box:
        told = plain(await box.call("begin"))["structuredContent"]
        assert told["stop_reason"] == "failed"
        assert box.runs.occupation(KEY) == "none"
        assert box.runs._agents._ending == set()
