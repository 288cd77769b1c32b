"""A repository as people have one, worked in with plain git."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sidecar.events import Bus, Swept
from sidecar.harness.git_checkout import Checkout
from sidecar.harness.naming import WorkName
from sidecar.harness.works import Work, Works

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
}


def git(directory: Path, *args: str, ok: bool = True, env: Mapping[str, str] | None = None) -> str:
    """Plain git in a directory, as a person or an agent runs it; its output."""
    done = subprocess.run(
        ["git", *args],
        cwd=directory,
        env={**ENV, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not ok or done.returncode == 0, f"git {args}: {done.stdout}{done.stderr}"
    return done.stdout.rstrip("\n")


def lines(changes: Mapping[int, str] | None = None, prefix: str = "line") -> str:
    """Twelve lines, some of them changed."""
    found = [f"{prefix} {number}" for number in range(12)]
    for number, text in (changes or {}).items():
        found[number] = text
    return "\n".join(found) + "\n"


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def commit(directory: Path, message: str, *extra: str) -> str:
    """Commit everything there is; the new commit."""
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", message, *extra)
    return git(directory, "rev-parse", "HEAD")


def repository(directory: Path) -> Path:
    """A repository with one commit of two files on ``main``."""
    shutil.copytree(_template(), directory)
    return directory


@functools.cache
def _template() -> Path:
    """Made once, copied often: that is ten times faster."""
    directory = Path(tempfile.mkdtemp(prefix="template"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    git(directory, "init", "--quiet", "--initial-branch", "main", "--template=")
    write(directory / "a.txt", lines())
    write(directory / "b.txt", lines(prefix="other"))
    commit(directory, "init")
    return directory


NAME = WorkName("claude", "c", "alice", "fix")


class Desk:
    """A checkout ``repo`` and its works below ``worktrees``, in one directory."""

    def __init__(self, directory: Path, *, base: str | None = None, fetch: bool = False) -> None:
        self.directory = directory
        self.root = directory / "worktrees"
        self.repo = directory / "repo"
        self.checkout = Checkout("c", self.repo, base, fetch)
        self.bus = Bus()
        self.swept: list[Swept] = []
        self.bus.listen(Swept, self.swept.append)
        self.works = self.new()

    def new(self) -> Works:
        return Works(self.root, [self.checkout], bus=self.bus, name="box")

    async def open(self) -> Desk:
        if not self.repo.exists():
            repository(self.repo)
        await self.works.open()
        return self

    async def restart(self) -> None:
        """Another sidecar over the same directory."""
        await self.works.close()
        self.works = self.new()
        await self.works.open()

    async def work(self, name: str = "fix") -> Work:
        async with self.works.use(WorkName("claude", "c", "alice", name)) as work:
            return work

    async def landed(self, name: str = "fix") -> Work:
        """A work with one commit, squashed into the base."""
        work = await self.work(name)
        write(work.path / f"{name}.txt", "work\n")
        commit(work.path, "worked")
        self.land(work)
        return work

    def land(self, work: Work) -> None:
        git(self.repo, "merge", "--quiet", "--squash", work.branch)
        git(self.repo, "commit", "--quiet", "--message", "squashed")

    async def reasons(self) -> list[str]:
        """Why each work is kept by a sweep."""
        return [str(kept.reason) for kept in (await self.works.sweep()).kept]

    def admin(self, work: Work) -> Path:
        """The administrative directory of a work."""
        pointer = (work.path / ".git").read_text()
        return Path(pointer.removeprefix("gitdir: ").strip())

    def branch(self, work: Work) -> str:
        """Where its branch is, empty if it is gone."""
        return git(
            self.repo, "rev-parse", "--verify", "--quiet", f"refs/heads/{work.branch}", ok=False
        )
