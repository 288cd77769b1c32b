"""What is written between looking and removing is not lost."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.harness import sweep
from sidecar.harness.git_checkout import Repository
from sidecar.harness.works import Work
from sidecar.harness.worktree import Worktree
from tests.harness.kit import Desk, commit, git, lines, write

Write = Callable[[Path], object]

WRITES: dict[str, Write] = {
    "new file": lambda path: write(path / "late.txt", "precious"),
    "changed file": lambda path: write(path / "a.txt", lines({3: "precious"})),
    "new file deep down": lambda path: write(path / "deep/er/late.txt", "precious"),
    "deleted file": lambda path: (path / "a.txt").unlink(),
    "staged": lambda path: (write(path / "late.txt", "precious"), git(path, "add", "late.txt")),
    "committed": lambda path: (write(path / "late.txt", "precious"), commit(path, "late")),
    "detached": lambda path: git(path, "checkout", "--quiet", "--detach"),
    "pointer": lambda path: write(path / ".git", "gitdir: /etc"),
}


def content(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


async def _interrupted(
    desk: Desk,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    then: Callable[[], object],
) -> str:
    """Sweep; ``then`` happens right before ``owner.name`` is called for the first time."""
    real = getattr(owner, name)
    done = []

    def first(*args: object, **kwargs: object) -> object:
        if not done:
            done.append(True)
            then()
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, first)
        swept = await desk.works.sweep()
    assert done
    assert swept.removed == ()
    assert [kept.path for kept in swept.kept] == [work.path]
    return str(swept.kept[0].reason)


@pytest.mark.parametrize("name", WRITES)
async def test_written_after_it_was_judged(
    name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await desk.landed()
    after: dict[str, bytes] = {}

    def late() -> None:
        WRITES[name](work.path)
        after.update(content(work.path))

    reason = await _interrupted(desk, work, monkeypatch, Worktree, "put_aside", late)
    assert reason in {"dirty", "detached", "git_file", "changed_meanwhile"}
    assert content(work.path) == after
    assert desk.branch(work)


@pytest.mark.parametrize("owner", ["look", "_delete_branch"])
async def test_written_by_a_process_that_is_in_it(
    owner: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came in by a path, before the move; the path is gone, its directory is not."""
    work = await desk.landed()
    inside = os.open(work.path, os.O_RDONLY)

    def late() -> None:
        fd = os.open("late.txt", os.O_WRONLY | os.O_CREAT, dir_fd=inside)
        os.write(fd, b"precious")
        os.close(fd)

    try:
        # Ours is not looked for; so it stands for a process that nobody can see.
        target = "remove" if owner == "_delete_branch" else "look"
        real = sweep.look

        def second(*args: object) -> object:
            if Path(str(args[1])) != work.path:
                late()
            return real(*args)  # type: ignore[arg-type]

        if target == "look":
            with monkeypatch.context() as patch:
                patch.setattr(sweep, "look", second)
                swept = await desk.works.sweep()
            assert [str(kept.reason) for kept in swept.kept] == ["dirty"]
        else:
            reason = await _interrupted(desk, work, monkeypatch, sweep, "remove", late)
            assert reason == "changed_meanwhile"
    finally:
        os.close(inside)
    assert (work.path / "late.txt").read_text() == "precious"
    assert desk.branch(work)
    assert git(work.path, "status", "--porcelain") == "?? late.txt"
    git(desk.repo, "fsck")
    (work.path / "late.txt").unlink()
    assert (await desk.works.sweep()).removed == (work.path,)


async def test_changed_while_it_is_being_deleted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it is gone when something turns up: all of it comes back."""
    write(desk.repo / "z/z.txt", "last\n")
    write(desk.repo / "run.sh", "#!/bin/sh\n")
    (desk.repo / "run.sh").chmod(0o755)
    (desk.repo / "link").symlink_to("a.txt")
    commit(desk.repo, "more")
    work = await desk.landed()
    before = content(work.path)
    real = os.unlink
    count = 0

    def unlink(path: object, *, dir_fd: int | None = None) -> None:
        nonlocal count
        count += 1
        if count == 3:
            fd = os.open("late.txt", os.O_WRONLY | os.O_CREAT, dir_fd=dir_fd)
            os.write(fd, b"precious")
            os.close(fd)
        real(path, dir_fd=dir_fd)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr("sidecar.harness.worktree_contents.os.unlink", unlink)
        swept = await desk.works.sweep()
    assert [str(kept.reason) for kept in swept.kept] == ["changed_meanwhile"]
    late = next(work.path.rglob("late.txt"))
    assert late.read_bytes() == b"precious"
    late.unlink()
    assert content(work.path) == before
    assert os.access(work.path / "run.sh", os.X_OK)
    assert (work.path / "link").readlink() == Path("a.txt")
    assert git(work.path, "status", "--porcelain") == ""
    assert (await desk.works.sweep()).removed == (work.path,)


async def test_the_branch_moves_at_the_last_moment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await desk.landed()
    moved = git(desk.repo, "commit-tree", "-p", work.branch, "-m", "late", "main^{tree}")

    def late() -> None:
        git(desk.repo, "update-ref", f"refs/heads/{work.branch}", moved)

    reason = await _interrupted(desk, work, monkeypatch, Repository, "delete_branch", late)
    assert reason == "changed_meanwhile"
    assert desk.branch(work) == moved
    assert (work.path / "a.txt").exists()


async def test_the_base_loses_it_at_the_last_moment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await desk.landed()

    def late() -> None:
        git(desk.repo, "reset", "--quiet", "--hard", "HEAD~1")

    reason = await _interrupted(desk, work, monkeypatch, Worktree, "put_aside", late)
    assert reason == "not_landed"
    assert desk.branch(work) and (work.path / "fix.txt").exists()


async def test_the_path_is_taken_meanwhile(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be put back there: both are kept, and a later sweep tries again."""
    work = await desk.landed()
    real = Worktree.put_aside

    def aside(self: Worktree) -> None:
        write(self.path / "late.txt", "precious")
        real(self)
        write(self.path / "mine.txt", "also precious")

    with monkeypatch.context() as patch:
        patch.setattr(Worktree, "put_aside", aside)
        swept = await desk.works.sweep()
    assert swept.removed == ()
    assert ".sidecar/gone/" in swept.kept[0].detail
    assert (work.path / "mine.txt").read_text() == "also precious"
    assert len(await desk.reasons()) == 1
    await desk.restart()
    assert (work.path / "mine.txt").read_text() == "also precious"
    (work.path / "mine.txt").unlink()
    work.path.rmdir()
    assert await desk.reasons() == ["dirty"]
    assert (work.path / "late.txt").read_text() == "precious"


async def test_a_sweep_that_is_cancelled_ends_what_it_began(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await desk.landed("first"), await desk.landed("second")
    real = Worktree.put_aside
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(self: Worktree) -> None:
        loop.call_soon_threadsafe(began.set)
        time.sleep(0.1)
        real(self)

    monkeypatch.setattr(Worktree, "put_aside", slow)
    task = asyncio.create_task(desk.works.sweep())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not first.path.exists() and desk.branch(first) == ""
    assert second.path.exists() and not desk.works.held(second.key)
    assert [work.path for work in await desk.works.works()] == [second.path]
    assert (await desk.works.sweep()).removed == (second.path,)


WRITER = """
import sys, time
for line in sys.stdin:
    delay, path = line.rstrip("\\n").split(" ", 1)
    time.sleep(float(delay))
    try:
        with open(path, "x") as file:
            file.write("precious")
        print("written", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def writer() -> Iterator[Callable[[float, Path], Callable[[], str]]]:
    """Another process that writes a file after a while; the function it gives waits for that."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        into, out = process.stdin, process.stdout

        def write_later(delay: float, path: Path) -> Callable[[], str]:
            into.write(f"{delay} {path}\n")
            into.flush()
            return lambda: out.readline().strip()

        yield write_later
        into.close()


async def test_an_agent_that_writes_when_it_likes(
    desk: Desk, writer: Callable[[float, Path], Callable[[], str]]
) -> None:
    """Whatever the moment: a write that came through is there afterwards."""
    chance = random.Random(7)
    wanted = {("written", False), ("FileNotFoundError", True)}
    seen: set[tuple[str, bool]] = set()
    longest = 0.1
    number = 0
    while number < 16 or (number < 40 and not seen >= wanted):
        number += 1
        work = await desk.landed(f"w{number}")
        late = work.path / "late.txt"
        answer = writer(chance.uniform(0.0, longest), late)
        began = time.monotonic()
        swept = await desk.works.sweep()
        # A sweep that removes ends when it has done so: that is the time to meet.
        longest = time.monotonic() - began if work.path in swept.removed else longest * 1.3
        told = await asyncio.to_thread(answer)
        if work.path in swept.removed:
            assert told != "written" or late.read_text() == "precious"
            assert told == "FileNotFoundError"
        elif told == "written":
            assert late.read_text() == "precious"
        seen.add((told, work.path in swept.removed))
        if late.exists():
            late.unlink()
        assert work.path in swept.removed or work.path in (await desk.works.sweep()).removed
    # Both must have come up, or nothing was raced.
    assert seen >= wanted
