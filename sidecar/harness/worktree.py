"""One work's worktree: made, looked at, put back.

It is an ordinary worktree of the checkout, as ``git worktree add`` would make it, but made by
hand: git's own command runs the repository's hooks and filters. It is laid out where nobody is
and moved into place in one step, so that a worktree that can be seen is complete.

Source: gitrepository-layout(5), "worktrees".
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from sidecar.harness import handover
from sidecar.harness.git import GitError
from sidecar.harness.git_checkout import Commit, Repository
from sidecar.harness.naming import WorkKey
from sidecar.harness.records import WorkRecord, write_durably
from sidecar.harness.worktree_guard import (
    LOCK,
    Reason,
    Refused,
    check_admin,
    check_git_file,
    check_path,
    checked_out_elsewhere,
    exists,
    nested_worktrees,
    operation,
    own_refs,
    read_head,
    submodules,
)

__all__ = ["PRIVATE", "WorkState", "Worktree", "new_admin"]

PRIVATE = ".sidecar"
"""The directory below the root of worktrees that is ours alone; no slug begins with a dot."""
COMMITS = 100
"""Commits that a state tells, the newest."""


def new_admin(key: WorkKey) -> str:
    """A name for the administrative directory of a new worktree; no other one has it."""
    return f"{key.work[:30].rstrip('-')}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkState:
    """What there is of a work. ``branch`` is the one that is checked out, without
    ``refs/heads/``, and empty when HEAD is on none. ``commits`` are those that its base has
    not, oldest first, 100 at most. ``operation`` is the git operation that is not finished."""

    branch: str
    base: str
    head: str
    commits: tuple[Commit, ...]
    dirty: bool
    operation: str | None = None


class Worktree:
    """The worktree of one record. Every method blocks: call from a thread."""

    def __init__(self, root: Path, repository: Repository, record: WorkRecord) -> None:
        self.repository = repository
        self.record = record
        self.key = record.key
        self.path = root.joinpath(*record.key.parts)
        self.admin = repository.common / "worktrees" / record.admin
        self.aside = root / PRIVATE / "gone" / record.admin
        self._root = root
        self._staging = root / PRIVATE / "new" / record.admin
        self._index = repository.private / "index" / record.admin

    # ----------------------------------------------------------------------------- making

    def make(self, sha: str) -> None:
        """Make it, at a commit its branch must be at. Leaves nothing behind when it fails.

        Raises GitError, OSError, or Refused for a path that is in the way.
        """
        if check_path(self._root, self.key.parts):
            raise Refused(Reason.UNSAFE_PATH, f"{self.path} exists already; move it away")
        try:
            self._register()
            self._fill(self._staging, sha)
            pointer = self._staging / ".git"
            pointer.write_bytes(b"gitdir: " + os.fsencode(self.admin) + b"\n")
            write_durably(self.admin / "index", self._index.read_bytes(), 0o666 & ~_umask())
            if self.repository.owner is not None:
                common = self.repository.common
                handover.everything(common, self.repository.owner, "worktrees", self.admin.name)
            self._place(self._staging)
        except BaseException:
            self.unmake()
            raise

    def unmake(self) -> None:
        """Take away what ``make`` had made before it came to its end. No agent ever saw it."""
        shutil.rmtree(self._staging, ignore_errors=True)
        if not exists(self.path):
            self.unregister()

    def _register(self) -> None:
        self.admin.parent.mkdir(exist_ok=True)
        if self.admin.parent.is_symlink():
            raise Refused(Reason.ADMIN, f"{self.admin.parent} is a symlink")
        self.admin.mkdir()
        # Locked first: without its worktree it looks as if it could be pruned.
        (self.admin / "locked").write_bytes(LOCK)
        (self.admin / "commondir").write_text("../..\n")
        (self.admin / "gitdir").write_bytes(os.fsencode(self.path / ".git") + b"\n")
        (self.admin / "HEAD").write_text(f"ref: {self.key.branch}\n")

    def _fill(self, directory: Path, sha: str) -> None:
        git = self.repository.git
        directory.mkdir(mode=0o777, parents=True)
        self._index.unlink(missing_ok=True)
        git.run("read-tree", sha, index=self._index)
        git.run(
            "checkout-index", "--all", "--index", "--quiet",
            index=self._index, worktree=directory, inside=True, timeout=600,
        )  # fmt: skip

    def _place(self, directory: Path) -> None:
        """Move the complete directory where it belongs; never onto anything."""
        parent = self._root
        for part in self.key.parts[:-1]:
            parent /= part
            self._make_parent(parent)
        check_path(self._root, self.key.parts[:-1])
        if exists(self.path):
            raise Refused(Reason.UNSAFE_PATH, f"{self.path} exists already; move it away")
        if self.repository.owner is not None:
            handover.tree(directory, self.repository.owner)
        directory.rename(self.path)

    def _make_parent(self, parent: Path) -> None:
        with contextlib.suppress(FileExistsError):
            parent.mkdir()
            if self.repository.owner is not None:
                parent.chmod(0o711)  # whatever our umask is, they have to come through

    # ---------------------------------------------------------------------------- removing

    def put_aside(self) -> None:
        """Move it where nobody looks for it; who opens files by its path finds none any more."""
        self.aside.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.rename(self.aside)

    def put_back(self, restore: str = "") -> None:
        """Move it back; with ``restore``, the commit it held, what was deleted is written again
        and its branch made anew. Raises GitError, OSError, Refused when something is in the way.
        """
        if restore:
            if self.repository.branch(self.key.branch) is None:
                self.repository.create_branch(self.key.branch, restore)
            self._restore_files(restore)
        self._place(self.aside)

    def _restore_files(self, head: str) -> None:
        # Without --force: what is there stays as it is.
        git = self.repository.git
        self._index.unlink(missing_ok=True)
        git.run("read-tree", head, index=self._index)
        git.run(
            "checkout-index", "--all", "--quiet", ok=(0, 1, 128),
            index=self._index, worktree=self.aside, inside=True, timeout=600,
        )  # fmt: skip
        pointer = self.aside / ".git"
        if not exists(pointer):
            pointer.write_bytes(b"gitdir: " + os.fsencode(self.admin) + b"\n")

    def unregister(self) -> None:
        """Forget the worktree: its administrative directory, and our index of it."""
        if self.admin.is_dir() and not self.admin.is_symlink():
            shutil.rmtree(self.admin, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.admin.parent.rmdir()
        self._index.unlink(missing_ok=True)
        parent = self.path.parent
        with contextlib.suppress(OSError):
            while parent != self._root:
                parent.rmdir()
                parent = parent.parent

    # ----------------------------------------------------------------------------- looking

    def nothing_left(self) -> bool:
        """Whether there is nothing of it any more, as when somebody threw it away: no directory,
        no registration, no branch. Raises GitError."""
        if exists(self.path) or exists(self.aside) or exists(self.admin):
            return False
        return self.repository.branch(self.key.branch) is None

    def guard(self) -> bool:
        """Whether its directory is there. Raises Refused when it is not the one that was made."""
        there = check_path(self._root, self.key.parts)
        check_admin(self.admin, self.path)
        if there:
            check_git_file(self.path, self.admin)
        return there

    def check_quiet(self) -> str:
        """The commit of its branch, when nothing is unfinished in it and the branch is checked
        out. Raises Refused otherwise."""
        unfinished = operation(self.admin)
        if unfinished is not None:
            raise Refused(Reason.MID_OPERATION, f"a {unfinished} is not finished")
        head = read_head(self.admin)
        if head.sha:
            raise Refused(Reason.DETACHED, f"HEAD is on no branch, at {head.sha}")
        if head.ref != self.key.branch:
            name = head.ref.removeprefix("refs/heads/")
            raise Refused(Reason.OTHER_BRANCH, f"the branch {name} is checked out")
        branch = self.repository.branch(self.key.branch)
        if branch is None:
            raise Refused(Reason.BRANCH_GONE, "its branch does not exist")
        if branch.symbolic:
            raise Refused(Reason.BRANCH_SYMBOLIC, f"its branch is {branch.symbolic}")
        common = self.repository.common
        elsewhere = checked_out_elsewhere(common, self.admin, self.key.branch)
        if elsewhere is not None:
            raise Refused(Reason.CHECKED_OUT, f"its branch is checked out in {elsewhere}, too")
        if own_refs(self.admin):
            raise Refused(Reason.WORKTREE_REFS, "it has refs of its own (refs/worktree)")
        if submodules(self.admin):
            raise Refused(Reason.SUBMODULE, "submodules are checked out in it")
        nested = nested_worktrees(common, self.admin, self.path)
        if nested is not None:
            raise Refused(Reason.NESTED_WORKTREE, f"the worktree {nested} is inside it")
        return branch.sha

    def check_staged(self, head: str) -> None:
        """Refuse what is staged: content that may be in no file and no commit."""
        index = self.admin / "index"
        try:
            if not stat.S_ISREG(index.lstat().st_mode):
                raise Refused(Reason.DIRTY, "its index is not a file")
        except OSError:
            raise Refused(Reason.DIRTY, "its index is gone") from None
        try:
            done = self.repository.git.run(
                "diff-index", "--cached", "--quiet", "--no-ext-diff", "--ignore-submodules=none",
                head, "--", ok=(0, 1), index=index,
            )  # fmt: skip
        except GitError as error:
            raise Refused(Reason.DIRTY, f"its index cannot be read: {error.why}") from None
        if done.code:
            raise Refused(Reason.DIRTY, "something is staged")

    def quick_dirt(self, directory: Path, head: str) -> str | None:
        """What is not committed, or ``None``, by the time stamps of our own index of it.

        Nothing an agent can mark makes a change invisible here, but files with another content,
        the same size and the same times (ctime included) would be.
        """
        with self.repository.looking(self.record.admin):
            return self._quick_dirt(directory, head)

    def _quick_dirt(self, directory: Path, head: str) -> str | None:
        git = self.repository.git
        try:
            # Keeps what is known of files that are the same in both commits.
            git.run("read-tree", "-i", "-m", head, index=self._index)
        except GitError:
            self._index.unlink(missing_ok=True)
            git.run("read-tree", head, index=self._index)
        done = git.run(
            "update-index", "-q", "--ignore-submodules", "--refresh",
            ok=(0, 1), index=self._index, worktree=directory, inside=True, timeout=300,
        )  # fmt: skip
        changed = git.run(
            "diff-files", "--name-only", "-z", "--no-ext-diff", "--ignore-submodules=none",
            index=self._index, worktree=directory, inside=True, timeout=300,
        )  # fmt: skip
        first = changed.out.split(b"\0", 1)[0]
        if done.code or first:
            return f"{ascii(os.fsdecode(first))[1:-1] or 'a file'} was changed"
        new = git.run(
            "ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory",
            "-z", index=self._index, worktree=directory, inside=True, timeout=300,
        )  # fmt: skip
        first = new.out.split(b"\0", 1)[0]
        return f"{ascii(os.fsdecode(first))[1:-1]} is new" if first else None

    def state(self, base_ref: str | None) -> WorkState:
        """What there is of it now. Raises Refused, GitError."""
        if not self.guard():
            raise Refused(Reason.MISSING, f"{self.path} is gone")
        head = read_head(self.admin)
        sha = head.sha
        if head.ref:
            sha = self.repository.commit(head.ref) or ""
        tip = self.repository.commit(base_ref) if base_ref else None
        if not sha:
            branch = head.ref.removeprefix("refs/heads/")
            return WorkState(branch, self.record.base, "", (), True, operation(self.admin))
        commits = self.repository.commits(sha, self.record.base, tip or "", most=COMMITS)
        dirty = self.quick_dirt(self.path, sha) is not None
        if not dirty:
            try:
                self.check_staged(sha)
            except Refused:
                dirty = True
        return WorkState(
            head.ref.removeprefix("refs/heads/"),
            self.record.base,
            sha,
            tuple(commits),
            dirty,
            operation(self.admin),
        )


def _umask() -> int:
    # There is no way to read it but to set it, and threads share it.
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
