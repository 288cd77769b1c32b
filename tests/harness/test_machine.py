"""Agents and people do anything, in any order; a sweep never takes what could be lost.

Two judges of its own say whether a removal was right: a real merge in another clone, which has to
change nothing, and a look for every text that the work had, which has to be in the base's
history. ``SIDECAR_MACHINE=200`` runs that many rounds.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sidecar.harness.works import Work
from tests.harness.kit import Desk, commit, git, lines, write

ROUNDS = int(os.environ.get("SIDECAR_MACHINE", "6"))
FILES = st.sampled_from(["a.txt", "b.txt", "c.txt"])
LINES = st.integers(0, 11)
SLOTS = st.integers(0, 2)
WAYS = ["squash", "squash", "merge", "pick", "pick all", "rebase"]


def changed(path: Path) -> str:
    """What plain git sees there, ignored files included."""
    return git(path, "status", "--porcelain", "--untracked-files=all", "--ignored")


def snapshot(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


class Sweeping(RuleBasedStateMachine):
    total_made = total_removed = 0

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="machine"))
        self.runner = asyncio.Runner()
        self.desk = Desk(self.directory)
        self.made = 0
        self.token = 0
        self.alive: dict[str, Work] = {}
        self.removed = 0

    @initialize()
    def begin(self) -> None:
        self.runner.run(self.desk.open())
        write(self.desk.repo / ".gitignore", "*.ignored\nnode_modules/\n")
        commit(self.desk.repo, "ignores")
        git(self.directory, "clone", "--quiet", "--shared", str(self.desk.repo), "judge")

    def teardown(self) -> None:
        Sweeping.total_made += self.made
        Sweeping.total_removed += self.removed
        self.runner.run(self.desk.works.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    def text(self) -> str:
        """A text that is nowhere else."""
        self.token += 1
        return f"token-{self.token}-end"

    def change(self, directory: Path, name: str, line: int) -> None:
        path = directory / name
        found = path.read_text().splitlines() if path.is_file() else lines().splitlines()
        found[line] = self.text()
        write(path, "\n".join(found) + "\n")

    # --------------------------------------------------------------------------- in a work

    def work(self, which: int) -> Work:
        """The work of a slot, made anew when it was swept."""
        work = self.runner.run(self.desk.work(f"w{which}"))
        self.made += work.branch not in self.alive
        self.alive[work.branch] = work
        return work

    @rule(which=SLOTS, name=FILES, line=LINES, committed=st.sampled_from([True, True, False]))
    def edit(self, which: int, name: str, line: int, committed: bool) -> None:
        work = self.work(which)
        self.change(work.path, name, line)
        if committed:
            commit(work.path, "edit")

    @rule(which=SLOTS, name=st.sampled_from(["x.ignored", "new.txt", "node_modules/y", "d/z"]))
    def add(self, which: int, name: str) -> None:
        work = self.work(which)
        write(work.path / name, self.text())

    @rule(which=SLOTS)
    def clean(self, which: int) -> None:
        """A person throws away what is not committed."""
        work = self.work(which)
        git(work.path, "reset", "--quiet", "--hard")
        git(work.path, "clean", "--quiet", "-d", "-x", "--force")

    @rule(which=SLOTS, name=FILES)
    def rename(self, which: int, name: str) -> None:
        work = self.work(which)
        if (work.path / name).is_file():
            git(work.path, "mv", "--force", name, f"moved-{name}", ok=False)
            commit(work.path, "rename", "--allow-empty")

    @rule(which=SLOTS)
    def stage_and_undo(self, which: int) -> None:
        """What is staged is nowhere else."""
        work = self.work(which)
        path = work.path / "a.txt"
        if path.is_file():
            before = path.read_bytes()
            self.change(work.path, "a.txt", 0)
            git(work.path, "add", "a.txt")
            path.write_bytes(before)

    @rule(which=SLOTS)
    def revert_own(self, which: int) -> None:
        work = self.work(which)
        if not changed(work.path):
            git(work.path, "revert", "--no-edit", "HEAD", ok=False)
            git(work.path, "revert", "--abort", ok=False)

    @rule(which=SLOTS, how=st.sampled_from(["merge", "rebase"]))
    def take_base(self, which: int, how: str) -> None:
        work = self.work(which)
        if not changed(work.path):
            quiet = ("--no-edit",) if how == "merge" else ()
            git(work.path, how, "--quiet", *quiet, "main", ok=False)
            git(work.path, how, "--abort", ok=False)

    @rule(which=SLOTS, detached=st.sampled_from([False, False, False, True]))
    def switch(self, which: int, detached: bool) -> None:
        work = self.work(which)
        if detached:
            git(work.path, "checkout", "--quiet", "--detach")
        else:
            git(work.path, "checkout", "--quiet", work.branch, ok=False)

    # ------------------------------------------------------------------------- on the base

    @rule(name=FILES, line=LINES)
    def edit_base(self, name: str, line: int) -> None:
        self.change(self.desk.repo, name, line)
        commit(self.desk.repo, "base")

    @rule(
        which=SLOTS,
        how=st.sampled_from(WAYS),
    )
    def land(self, which: int, how: str) -> None:
        work = self.work(which)
        repo = self.desk.repo
        head = git(repo, "rev-parse", work.branch)
        match how:
            case "squash":
                git(repo, "merge", "--quiet", "--squash", head, ok=False)
                git(repo, "commit", "--quiet", "--message", "squashed", ok=False)
            case "merge":
                git(repo, "merge", "--quiet", "--no-ff", "--no-edit", head, ok=False)
            case "pick":
                git(repo, "cherry-pick", head, ok=False)
            case "pick all":
                git(repo, "cherry-pick", f"main..{head}", ok=False)
            case _:
                git(repo, "checkout", "--quiet", "--detach", head)
                git(repo, "rebase", "--quiet", "main", ok=False)
                git(repo, "rebase", "--abort", ok=False)
                rebased = git(repo, "rev-parse", "HEAD")
                git(repo, "checkout", "--quiet", "main")
                git(repo, "merge", "--quiet", "--ff-only", rebased, ok=False)
        git(repo, "reset", "--quiet", "--hard")
        git(repo, "cherry-pick", "--quit", ok=False)

    @rule(which=SLOTS, name=FILES, line=LINES, how=st.sampled_from(WAYS), sweep=st.booleans())
    def end_well(self, which: int, name: str, line: int, how: str, sweep: bool) -> None:
        """The usual course of a work."""
        self.clean(which)
        self.switch(which, detached=False)
        self.edit(which, name, line, committed=True)
        self.land(which, how)
        if sweep:
            self.sweep(dry_run=False)

    @rule(which=SLOTS, name=FILES, line=LINES)
    def end_well_and_sweep(self, which: int, name: str, line: int) -> None:
        """More often than chance would have it: this is what sweeping is for."""
        self.end_well(which, name, line, "squash", sweep=True)

    @rule()
    def revert_base(self) -> None:
        git(self.desk.repo, "revert", "--no-edit", "HEAD", ok=False)
        git(self.desk.repo, "revert", "--abort", ok=False)
        git(self.desk.repo, "reset", "--quiet", "--hard")

    @rule()
    def rewrite_base(self) -> None:
        """Somebody pushes by force: the last commit is gone."""
        if int(git(self.desk.repo, "rev-list", "--count", "main")) > 2:
            git(self.desk.repo, "reset", "--quiet", "--hard", "HEAD~1")

    # ---------------------------------------------------------------------------- sweeping

    def would_change_nothing(self, base: str, head: str) -> bool:
        """A real merge, by plain git, in a worktree of another repository."""
        judge = self.directory / "judge"
        git(judge, "checkout", "--quiet", "--force", "--detach", base)
        git(judge, "merge", "--quiet", "--no-ff", "--no-commit", head, ok=False)
        clean = not git(judge, "ls-files", "--unmerged")
        tree = git(judge, "write-tree", ok=False)
        git(judge, "merge", "--abort", ok=False)
        git(judge, "reset", "--quiet", "--hard")
        return clean and tree == git(judge, "rev-parse", f"{base}^{{tree}}")

    @rule(dry_run=st.sampled_from([False, False, True]))
    def sweep(self, dry_run: bool) -> None:
        repo = self.desk.repo
        base = git(repo, "rev-parse", "main")
        before = {
            branch: (
                git(repo, "rev-parse", branch),
                changed(work.path),
                snapshot(work.path),
                git(work.path, "rev-parse", "--symbolic-full-name", "HEAD"),
            )
            for branch, work in self.alive.items()
        }
        swept = self.runner.run(self.desk.works.sweep(dry_run=dry_run))
        reasons = {kept.path: str(kept.reason) for kept in swept.kept}
        assert set(reasons) | set(swept.removed) == {work.path for work in self.alive.values()}
        for branch, (head, dirt, files, at) in before.items():
            work = self.alive[branch]
            gone = work.path in swept.removed
            nothing = self.would_change_nothing(base, head)
            began = head == work.base
            if gone:
                assert dirt in ("", "!! node_modules/y"), dirt
                assert at == f"refs/heads/{branch}"
                assert nothing and not began
                self.nothing_lost(base, head, work.base)
            else:
                reason = reasons[work.path]
                expected = not dirt and nothing and not began and at == f"refs/heads/{branch}"
                assert not expected, f"kept for no reason: {reason}"
            if gone and not dry_run:
                assert not work.path.exists()
                del self.alive[branch]
                self.removed += 1
            else:
                assert snapshot(work.path) == files
                assert git(repo, "rev-parse", branch) == head
        if not dry_run:
            again = self.runner.run(self.desk.works.sweep())
            assert again.removed == ()
            assert {kept.path: str(kept.reason) for kept in again.kept} == reasons

    def nothing_lost(self, base: str, head: str, began: str) -> None:
        """Every text of its own that the work ended with is somewhere in the base's history."""
        repo = self.desk.repo
        own = git(repo, "diff", f"{began}...{head}")
        tokens = {word[1:] for word in own.splitlines() if word.startswith("+token-")}
        if tokens:
            history = git(
                repo, "log", "--patch", "--diff-merges=first-parent", "--full-history", base
            )
            assert all(f"+{token}" in history for token in tokens)

    @rule()
    def restart(self) -> None:
        self.runner.run(self.desk.restart())

    @rule(which=SLOTS)
    def open_again(self, which: int) -> None:
        work = self.work(which)
        assert self.runner.run(self.desk.work(work.key.work)).path == work.path

    @invariant()
    def registered(self) -> None:
        for branch, work in self.alive.items():
            assert (work.path / ".git").is_file(), branch


@pytest.mark.timeout(3600)
def test_anything_in_any_order() -> None:
    Sweeping.total_made = Sweeping.total_removed = 0
    rounds = settings(
        max_examples=ROUNDS,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Sweeping, settings=rounds)
    # Were nothing ever removed, all of this would say nothing.
    assert Sweeping.total_removed >= ROUNDS // 6, (Sweeping.total_removed, Sweeping.total_made)
