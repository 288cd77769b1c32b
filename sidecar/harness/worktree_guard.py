"""Looks at a worktree before anything is done with it: is it still the one that was made?

Everything looked at here can be written by an agent. Nothing is followed: a symlink, a ``.git``
or an administrative directory that leads elsewhere is refused, not resolved.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sidecar.harness.git import plain_file

__all__ = [
    "LOCK",
    "Head",
    "Reason",
    "Refused",
    "check_admin",
    "check_path",
    "checked_out_elsewhere",
    "exists",
    "nested_worktrees",
    "operation",
    "read_head",
]

LOCK = b"sidecar keeps this worktree; `sidecar works sweep` removes it once its work has landed\n"
"""Why a worktree of ours is locked: so that no `git worktree prune` or `remove` takes it away."""

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OPERATIONS = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
    "BISECT_START": "bisect",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or am",
    "sequencer": "cherry-pick or revert of several",
    "index.lock": "git command (index.lock is there)",
    "HEAD.lock": "git command (HEAD.lock is there)",
}
_MOST = 10_000
"""Worktrees of one repository that are looked through."""


class Reason(enum.StrEnum):
    """Why a work was kept. These are read by scripts: they stay as they are."""

    IN_USE = "in_use"
    """Its agent works, or another process uses its worktree."""
    WAITING = "waiting"
    """Its agent waits for a person."""
    UNSAFE_PATH = "unsafe_path"
    """A symlink, or something that is no directory, on the way to it."""
    GIT_FILE = "git_file"
    """Its ``.git`` is not what was made."""
    ADMIN = "admin"
    """Its directory inside the repository is gone, damaged, or leads elsewhere."""
    MOVED = "moved"
    """It was moved to another path."""
    MISSING = "missing"
    """Its directory is gone, and its work has not landed."""
    LOCKED = "locked"
    """Somebody locked it."""
    MID_OPERATION = "mid_operation"
    """A merge, rebase, cherry-pick, revert or bisect is going on in it."""
    DETACHED = "detached"
    """HEAD is on no branch."""
    OTHER_BRANCH = "other_branch"
    """Another branch is checked out in it."""
    CHECKED_OUT = "checked_out"
    """Its branch is checked out elsewhere, too, where it would be left without its history."""
    BRANCH_GONE = "branch_gone"
    """Its branch does not exist."""
    BRANCH_SYMBOLIC = "branch_symbolic"
    """Its branch is only another name of a branch."""
    WORKTREE_REFS = "worktree_refs"
    """It has refs of its own."""
    NO_BASE = "no_base"
    """What it would land in cannot be told."""
    FETCH_FAILED = "fetch_failed"
    """The base could not be brought up to date."""
    EMPTY = "empty"
    """Nothing was committed in it yet."""
    NOT_LANDED = "not_landed"
    CONFLICTS = "conflicts"
    """Merging it would conflict, and it has not landed before."""
    LANDED_THEN_CHANGED = "landed_then_changed"
    """It landed, and then the base changed the same lines."""
    UNRELATED = "unrelated"
    """It has no history in common with its base, or the clone is too shallow to tell."""
    DIRTY = "dirty"
    """Files changed, staged, deleted or new."""
    IGNORED_FILES = "ignored_files"
    """Files that git ignores and nobody can make again."""
    NESTED_REPOSITORY = "nested_repository"
    NESTED_WORKTREE = "nested_worktree"
    SUBMODULE = "submodule"
    """A submodule is checked out in it."""
    MOUNT = "mount"
    """Another file system is mounted in it."""
    TOO_LARGE = "too_large"
    """More in it than is looked through in ten minutes."""
    CHANGED_MEANWHILE = "changed_meanwhile"
    """It changed between looking and removing; it is as it was."""
    CHECKOUT_GONE = "checkout_gone"
    """Its checkout is not configured any more, or cannot be opened."""
    GIT_FAILED = "git_failed"
    """Git, or the file system, gave no answer."""


class Refused(Exception):
    """A worktree is not as it has to be."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def exists(path: Path) -> bool:
    """Whether there is anything, a dangling symlink included."""
    return os.path.lexists(path)


def check_path(root: Path, parts: Iterable[str]) -> bool:
    """Whether the worktree's directory is there. Refuses what is no plain directory on the way."""
    path = root
    for part in ("", *parts):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(mode):
            raise Refused(Reason.UNSAFE_PATH, f"{path} is a symlink")
        if not stat.S_ISDIR(mode):
            raise Refused(Reason.UNSAFE_PATH, f"{path} is not a directory")
    return True


def check_admin(admin: Path, path: Path) -> None:
    """Refuse an administrative directory that is not the one of the worktree at ``path``."""
    try:
        for directory in (admin.parent, admin):
            if not stat.S_ISDIR(directory.lstat().st_mode):
                raise Refused(Reason.ADMIN, f"{directory} is not a directory")
        common = plain_file(admin / "commondir")
        gitdir = plain_file(admin / "gitdir")
        lock = plain_file(admin / "locked")
    except FileNotFoundError:
        raise Refused(Reason.ADMIN, f"{admin} is gone") from None
    except OSError as error:
        raise Refused(Reason.ADMIN, str(error)) from None
    if common is None or common.rstrip(b"\n") != b"../..":
        raise Refused(Reason.ADMIN, f"{admin}/commondir leads elsewhere")
    if gitdir is None:
        raise Refused(Reason.ADMIN, f"{admin}/gitdir is gone")
    if gitdir.rstrip(b"\n") != os.fsencode(path / ".git"):
        raise Refused(Reason.MOVED, f"{admin}/gitdir leads elsewhere")
    if lock is not None and lock.strip() != LOCK.strip():
        raise Refused(Reason.LOCKED, "it is locked; `git worktree unlock` it when you are done")


def check_git_file(path: Path, admin: Path) -> None:
    """Refuse a worktree whose ``.git`` is anything but the pointer that was written there."""
    try:
        pointer = plain_file(path / ".git")
    except OSError as error:
        raise Refused(Reason.GIT_FILE, str(error)) from None
    if pointer is None:
        raise Refused(Reason.GIT_FILE, f"{path}/.git is gone")
    if pointer.rstrip(b"\n") != b"gitdir: " + os.fsencode(admin):
        raise Refused(Reason.GIT_FILE, f"{path}/.git leads elsewhere")


@dataclass(frozen=True, slots=True)
class Head:
    """What a worktree's HEAD says: a branch's full ref, or the commit of a detached one."""

    ref: str = ""
    sha: str = ""


def read_head(admin: Path) -> Head:
    """The worktree's HEAD. Refuses one that is neither a branch nor a commit."""
    try:
        data = plain_file(admin / "HEAD")
    except OSError as error:
        raise Refused(Reason.ADMIN, str(error)) from None
    text = (data or b"").decode("utf-8", "replace").strip()
    if text.startswith("ref: refs/heads/"):
        return Head(ref=text.removeprefix("ref: "))
    if _SHA.fullmatch(text):
        return Head(sha=text)
    raise Refused(Reason.ADMIN, f"{admin}/HEAD names neither a branch nor a commit")


def operation(admin: Path) -> str | None:
    """What is going on in the worktree that is not finished, or ``None``."""
    for name, what in _OPERATIONS.items():
        if exists(admin / name):
            return what
    return None


def own_refs(admin: Path) -> bool:
    """Whether the worktree has refs that no other one sees (``refs/worktree``, a bisection)."""
    return any(files for _, _, files in os.walk(admin / "refs"))


def submodules(admin: Path) -> bool:
    """Whether repositories of submodules live in the worktree's administrative directory."""
    try:
        with os.scandir(admin / "modules") as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def nested_worktrees(common: Path, admin: Path, path: Path) -> str | None:
    """The path of another worktree of the repository inside this one, or ``None``."""
    inside = os.fsencode(path) + b"/"
    for other in _others(common, admin):
        try:
            gitdir = plain_file(other / "gitdir")
        except OSError:
            continue
        if gitdir is not None and gitdir.startswith(inside):
            return os.fsdecode(gitdir.strip().removesuffix(b"/.git"))
    return None


def checked_out_elsewhere(common: Path, admin: Path, branch: str) -> str | None:
    """Where ``branch`` (a full ref) is checked out, or being rebased or bisected, besides in this
    worktree; ``None`` when nowhere. Git itself deletes no branch of which it says that."""
    if _holds(common, branch):
        return str(common)
    for other in _others(common, admin):
        if _holds(other, branch):
            try:
                gitdir = plain_file(other / "gitdir")
            except OSError:
                gitdir = None
            return os.fsdecode((gitdir or b"").strip().removesuffix(b"/.git")) or str(other)
    return None


_HEADS = ("HEAD", "rebase-merge/head-name", "rebase-apply/head-name", "BISECT_START")


def _holds(admin: Path, branch: str) -> bool:
    wanted = os.fsencode(branch)
    for name in _HEADS:
        try:
            data = (plain_file(admin / name) or b"").strip()
        except OSError:
            continue
        if data.removeprefix(b"ref:").strip() == wanted:
            return True
        # A bisection says it without the beginning.
        if name == "BISECT_START" and data == wanted.removeprefix(b"refs/heads/"):
            return True
    return False


def _others(common: Path, admin: Path) -> Iterator[Path]:
    """The administrative directories of the other worktrees of a repository."""
    try:
        with os.scandir(common / "worktrees") as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST:
                    raise Refused(Reason.ADMIN, f"{common} has more than {_MOST} worktrees")
                if entry.name != admin.name:
                    yield Path(entry.path)
    except FileNotFoundError:
        pass
