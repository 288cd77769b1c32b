"""Whether a work has landed: whether merging its branch into its base would change nothing.

That covers what was merged, squashed, cherry-picked and rebased alike, and is the only method
of those measured (ancestry, ``git cherry``, patch ids, diffs) that never said so of work that
was lost. It is asked on commit ids only, without a worktree or attributes.
"""

from __future__ import annotations

import enum

from sidecar.harness.git import GitError
from sidecar.harness.git_checkout import Repository

__all__ = ["Verdict", "verdict"]

_REMEMBERED = 10_000
_WALK = 500
"""How many commits of the base are looked through for the one that landed the work."""


class Verdict(enum.StrEnum):
    """What merging would do."""

    LANDED = "landed"
    EMPTY = "empty"
    """Nothing was ever committed."""
    NOT_LANDED = "not_landed"
    CONFLICTS = "conflicts"
    LANDED_THEN_CHANGED = "landed_then_changed"
    """It conflicts now, and did nothing at an earlier commit of the base."""
    UNRELATED = "unrelated"
    """No common history, or not enough of it (a shallow clone)."""


def verdict(repository: Repository, base: str, head: str, began: str) -> Verdict:
    """Of the commits ``base`` and ``head``; ``began`` is where the work began, empty if unknown.

    Raises GitError when git cannot tell. What was told of the same commits before is told again.
    """
    if head == began:
        return Verdict.EMPTY
    asked = (base, head, began)
    known = repository.verdicts.get(asked)
    if known is not None:
        return Verdict(known)
    if len(repository.verdicts) >= _REMEMBERED:
        repository.verdicts.clear()
    found = _verdict(repository, base, head, began)
    repository.verdicts[asked] = found
    return found


def _verdict(repository: Repository, base: str, head: str, began: str) -> Verdict:
    common = repository.merge_base(base, head)
    if common is None:
        return Verdict.UNRELATED
    if not began and common == head:
        # Merged, or never begun: without a record there is no telling.
        return Verdict.EMPTY
    if common == head:
        return Verdict.LANDED
    clean, same = _merge(repository, base, head)
    if clean:
        return Verdict.LANDED if same else Verdict.NOT_LANDED
    if _was_contained(repository, common, base, head):
        return Verdict.LANDED_THEN_CHANGED
    return Verdict.CONFLICTS


def _merge(repository: Repository, base: str, head: str) -> tuple[bool, bool]:
    """Whether merging is clean, and whether it then changes nothing."""
    done = repository.bare("merge-tree", "--write-tree", "--no-messages", base, head, ok=(0, 1))
    if done.code == 1 and not done.out:
        raise GitError("merge-tree", done.err.strip() or "said nothing", 1)
    tree = repository.git.run("rev-parse", "--verify", f"{base}^{{tree}}").text
    return done.code == 0, done.text.split("\n", 1)[0] == tree


def _was_contained(repository: Repository, common: str, base: str, head: str) -> bool:
    """Whether at some commit since ``common`` the base had all of ``head``."""
    done = repository.git.run(
        "log", "--first-parent", "--no-show-signature", f"--max-count={_WALK}", "--format=%H %T",
        base, f"^{common}", "--",
    )  # fmt: skip
    pairs = [line.split() for line in reversed(done.text.splitlines())]
    if not pairs:
        return False
    asked = "".join(f"{sha} {head}\n" for sha, _ in pairs).encode()
    merged = repository.bare(
        "merge-tree", "--write-tree", "--stdin", "--no-messages", "--name-only", stdin=asked
    )
    # One answer a merge, each ended by an empty field: `1 NUL tree NUL NUL` for a clean one.
    answers = merged.out.split(b"\0\0")
    return any(
        answer == f"1\0{tree}".encode() for (_, tree), answer in zip(pairs, answers, strict=False)
    )
