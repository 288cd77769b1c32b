"""Sweeping one work: may it go, and if so, without losing anything.

``judge`` is cheap and changes nothing. ``take`` rests on nothing that ``judge`` saw: it moves the
worktree aside, where no path leads, looks at every file of it once more, and only then deletes
the branch (if it is still where it was) and exactly the files that were looked at. Whatever is
found on the way brings everything back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sidecar.harness.git import GitError
from sidecar.harness.git_landed import Verdict, verdict
from sidecar.harness.records import Stage, WorkRecord
from sidecar.harness.sweep_usage import Usage
from sidecar.harness.worktree import Worktree
from sidecar.harness.worktree_contents import Changed, look, remove
from sidecar.harness.worktree_guard import Reason, Refused, check_git_file

__all__ = ["Candidate", "Kept", "Sweep", "judge", "judge_untouched", "recover", "take"]

log = logging.getLogger(__name__)

Put = Callable[[WorkRecord], None]

_REASONS = {
    Verdict.EMPTY: (Reason.EMPTY, "nothing was committed in it yet"),
    Verdict.NOT_LANDED: (Reason.NOT_LANDED, "its base does not have all of its changes"),
    Verdict.CONFLICTS: (Reason.CONFLICTS, "merging it into its base would conflict"),
    Verdict.LANDED_THEN_CHANGED: (
        Reason.LANDED_THEN_CHANGED,
        "it landed, and then its base changed the same lines",
    ),
    Verdict.UNRELATED: (Reason.UNRELATED, "its base has no history in common with it"),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A worktree that was kept: ``reason`` is for scripts, ``detail`` for people."""

    path: Path
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep did, or with ``dry_run`` would have done."""

    removed: tuple[Path, ...]
    kept: tuple[Kept, ...]
    dry_run: bool = False

    def as_json(self) -> dict[str, object]:
        """``{removed: [path], kept: [{path, reason, detail}], dry_run}``."""
        return {
            "removed": [str(path) for path in self.removed],
            "kept": [
                {"path": str(kept.path), "reason": str(kept.reason), "detail": kept.detail}
                for kept in self.kept
            ],
            "dry_run": self.dry_run,
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """A work that may go: its branch and its base were at these commits. ``there``: its
    directory exists."""

    head: str
    base: str
    base_ref: str
    there: bool


def judge(worktree: Worktree, base_ref: str, usage: Usage | None) -> Candidate:
    """Whether the work may go, by what can be told without reading all of it.

    Raises Refused with the first reason to keep it.
    """
    there = worktree.guard()
    if there and usage is not None:
        _check_unused(usage, worktree.path)
    head = worktree.check_quiet()
    try:
        base = _check_landed(worktree, base_ref, head)
    except Refused as refused:
        if there or refused.reason is Reason.NO_BASE:
            raise
        raise Refused(
            Reason.MISSING, f"its directory is gone, but its branch is not done: {refused.detail}"
        ) from None
    if there:
        dirt = worktree.quick_dirt(worktree.path, head)
        if dirt is not None:
            raise Refused(Reason.DIRTY, dirt)
    worktree.check_staged(head)
    if there:
        look(worktree.repository, worktree.path, head)
    return Candidate(head, base, base_ref, there)


def judge_untouched(worktree: Worktree, usage: Usage) -> Candidate:
    """Whether nothing was done in a work since it was made. Its commit is still its base's, so
    that no commit is lost with its branch. Raises Refused when anything says otherwise."""
    if not worktree.guard():
        raise Refused(Reason.MISSING, "its directory is gone")
    _check_unused(usage, worktree.path)
    began, base_ref = worktree.record.base, worktree.record.base_ref
    head = worktree.check_quiet()
    if head != began:
        raise Refused(Reason.CHANGED_MEANWHILE, "its branch moved")
    if base_ref == worktree.key.branch or worktree.repository.commit(base_ref) != began:
        raise Refused(Reason.CHANGED_MEANWHILE, "its base moved since it was made")
    dirt = worktree.quick_dirt(worktree.path, head)
    if dirt is not None:
        raise Refused(Reason.DIRTY, dirt)
    worktree.check_staged(head)
    look(worktree.repository, worktree.path, head)
    return Candidate(head, began, base_ref, there=True)


def take(worktree: Worktree, candidate: Candidate, put: Put) -> None:
    """Remove the worktree, its branch and its registration. Raises Refused when it was kept.

    ``put`` stores a record durably. The record itself is the caller's to delete.
    """
    record = replace(worktree.record, head=candidate.head)
    if not candidate.there:
        _check_again(worktree, candidate)
        put(replace(record, stage=Stage.DELETING))
        _delete_branch(worktree, candidate.head)
        worktree.unregister()
        return
    put(replace(record, stage=Stage.REMOVING))
    try:
        worktree.put_aside()
        # Whoever got in before the move is seen here; after it there is no way in.
        _check_unused(Usage(), worktree.aside)
        _check_again(worktree, candidate)
        check_git_file(worktree.aside, worktree.admin)
        contents = look(worktree.repository, worktree.aside, candidate.head)
        put(replace(record, stage=Stage.DELETING))
        _delete_branch(worktree, candidate.head)
    except BaseException as error:
        _put_back(worktree, put, "")
        if isinstance(error, OSError):
            raise Refused(Reason.GIT_FAILED, f"it cannot be moved: {error}") from None
        raise
    try:
        remove(worktree.aside, contents)
    except Changed as change:
        _put_back(worktree, put, candidate.head)
        raise Refused(Reason.CHANGED_MEANWHILE, f"{change} appeared while removing") from None
    worktree.unregister()


def recover(worktree: Worktree, put: Put) -> bool:
    """Take up a removal that was interrupted: bring the worktree back, or bring it to its end.

    Whether the work is gone. Raises Refused when it cannot be brought back.
    """
    record = worktree.record
    deleting = record.stage is Stage.DELETING
    if worktree.aside.is_dir() and not worktree.aside.is_symlink():
        _put_back(worktree, put, record.head if deleting else "")
        return False
    if worktree.path.exists() or not deleting:
        put(replace(record, stage=Stage.READY, head=""))
        return False
    worktree.repository.delete_branch(record.key.branch, record.head)
    worktree.unregister()
    return True


def _check_unused(usage: Usage, directory: Path) -> None:
    pid = usage.of(directory)
    if pid is not None:
        raise Refused(Reason.IN_USE, f"process {pid} uses it")


def _check_landed(worktree: Worktree, base_ref: str, head: str) -> str:
    """The base's commit, when the work has landed in it."""
    repository = worktree.repository
    base = repository.commit(base_ref)
    if base is None:
        raise Refused(Reason.NO_BASE, f"{base_ref} does not exist")
    if base_ref == worktree.key.branch:
        raise Refused(Reason.NO_BASE, "its base is its own branch")
    found = verdict(repository, base, head, worktree.record.base)
    if found is not Verdict.LANDED:
        raise Refused(*_REASONS[found])
    return base


def _check_again(worktree: Worktree, candidate: Candidate) -> None:
    """All of what was judged by the repository alone, at this moment."""
    if worktree.check_quiet() != candidate.head:
        raise Refused(Reason.CHANGED_MEANWHILE, "its branch moved")
    if worktree.repository.commit(candidate.base_ref) != candidate.base:
        _check_landed(worktree, candidate.base_ref, candidate.head)
    worktree.check_staged(candidate.head)


def _delete_branch(worktree: Worktree, head: str) -> None:
    if not worktree.repository.delete_branch(worktree.key.branch, head):
        raise Refused(Reason.CHANGED_MEANWHILE, "its branch moved")


def _put_back(worktree: Worktree, put: Put, restore: str) -> None:
    record = worktree.record
    if worktree.aside.exists():
        try:
            worktree.put_back(restore)
        except (GitError, OSError, Refused) as error:
            log.error("%s stays at %s: %s", record.key, worktree.aside, error)
            raise Refused(
                Reason.CHANGED_MEANWHILE,
                f"it could not be put back and is at {worktree.aside}: {error}",
            ) from None
    put(replace(record, stage=Stage.READY, head=""))
