"""An agent that never came to work leaves nothing, unless there is anything to lose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kit import commit, git, write
from tests.harness.runs.kit import Box

MISSING = ("/no/such/agent",)
BRANCH = "work/claude/alice/fix"


def exits(code: str) -> tuple[str, ...]:
    """An agent that does this and ends before it has answered ``initialize``."""
    return (sys.executable, "-S", "-E", "-c", f"import os, pathlib; {code}; os._exit(3)")


def branches(box: Box) -> str:
    return git(box.repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/work")


async def failed(box: Box, **rest: Any) -> dict[str, Any]:
    answer = await box.done({"say": "x"}, **rest)
    assert answer["isError"] is True
    assert answer["structuredContent"]["stop_reason"] in ("failed", "died")
    return answer["structuredContent"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("command", [MISSING, exits("pass")])
async def test_a_work_that_it_made_and_nobody_touched_goes_at_once(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    async with Box(tmp_path, harness={"command": command}) as box:
        told = await failed(box)
        assert "its worktree and branch are removed again" in told["error"]
        assert (told["head"], told["commits"], told["dirty"]) == (None, [], False)
        assert "unknown" not in told
        assert await box.works.works() == []
        assert branches(box) == ""
        assert len(git(box.repo, "worktree", "list").splitlines()) == 1
        assert not (tmp_path / "worktrees/claude").exists()
        assert list(box.root.glob(".sidecar/sessions/**/*.json")) == []
    async with Box(tmp_path) as box:
        again = (await box.done({"say": "x"}))["structuredContent"]
        assert (again["stop_reason"], again["continued"]) == ("end_turn", None)


@pytest.mark.parametrize(("name", "text"), [("new", "x"), (".gitignore", "*")])
async def test_one_in_which_it_left_something_stays(tmp_path: Path, name: str, text: str) -> None:
    code = f"pathlib.Path('{name}').write_text('{text}')"
    async with Box(tmp_path, harness={"command": exits(code)}) as box:
        told = await failed(box)
        assert told["dirty"] is (name == "new")
        assert told["head"] == git(box.repo, "rev-parse", "main")
        assert "removed" not in told["error"]
        assert branches(box) == BRANCH


async def test_one_with_ignored_files_stays(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"command": exits("pathlib.Path('.env').touch()")}) as box:
        write(box.repo / ".gitignore", ".env\n")
        commit(box.repo, "ignore")
        assert "removed" not in (await failed(box))["error"]
        assert (tmp_path / "worktrees/claude/repo/alice/fix/.env").exists()


async def test_one_that_was_there_before_stays(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await box.done({"say": "x"})
    async with Box(tmp_path, harness={"command": MISSING}) as box:
        assert "removed" not in (await failed(box))["error"]
        assert branches(box) == BRANCH


async def test_one_whose_base_moved_meanwhile_stays(tmp_path: Path) -> None:
    move = (
        "import subprocess; subprocess.run(['git', '-c', 'user.name=a', '-c', 'user.email=a@b', "
        f"'-C', '{tmp_path / 'repo'}', 'commit', '-q', '--allow-empty', '-m', 'more'], check=True)"
    )
    async with Box(tmp_path, harness={"command": exits(move)}) as box:
        assert "removed" not in (await failed(box))["error"]
        assert branches(box) == BRANCH
