"""How work lands, or does not: one scene each, made with plain git in a repository of its own.

``REMOVE``: the base has all of it. ``KEEP``: something would be lost. ``EMPTY``: nothing was ever
committed. Each function begins on ``main`` and leaves a branch ``work``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.harness.kit import commit, git, lines, repository, write

REMOVE, KEEP, EMPTY = "remove", "keep", "empty"


class Scene:
    """A repository in which a branch ``work`` is made and lands on ``main``."""

    def __init__(self, directory: Path) -> None:
        self.path = repository(directory)
        self.began = self.head()

    def git(self, *args: str, ok: bool = True) -> str:
        return git(self.path, *args, ok=ok)

    def head(self, ref: str = "HEAD") -> str:
        return self.git("rev-parse", ref)

    def begin(self) -> None:
        self.began = self.head()
        self.git("checkout", "--quiet", "-b", "work")

    def on(self, branch: str) -> None:
        self.git("checkout", "--quiet", branch)

    def write(self, name: str, content: str | bytes) -> None:
        write(self.path / name, content)

    def commit(self, message: str, *extra: str) -> str:
        return commit(self.path, message, *extra)

    def edit(self, changes: dict[int, str], name: str = "a.txt") -> str:
        """Change lines of a file and commit that."""
        self.write(name, lines(changes, "line" if name == "a.txt" else "other"))
        return self.commit(f"edit {name} {sorted(changes)}")

    def add(self, name: str, content: str | bytes = "new\n") -> str:
        self.write(name, content)
        return self.commit(f"add {name}")

    def work(self) -> None:
        """The usual work: one line of one file."""
        self.begin()
        self.edit({1: "worked"})

    def squash(self) -> None:
        self.on("main")
        self.git("merge", "--quiet", "--squash", "work")
        self.git("commit", "--quiet", "--message", "squashed")

    def merge(self) -> None:
        self.on("main")
        self.git("merge", "--quiet", "--no-ff", "--message", "merged", "work")

    def revert(self, *extra: str) -> None:
        self.git("revert", "--no-edit", *extra, "HEAD")

    def submodule(self) -> None:
        """A submodule ``sub`` of three commits, the first of which is used."""
        other = self.path.with_name(self.path.name + "-sub")
        other.mkdir()
        git(other, "init", "--quiet", "--initial-branch", "main")
        for number in range(3):
            write(other / "file", str(number))
            commit(other, f"sub {number}")
        self.git(
            "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub"
        )
        self.bump("main~2")

    def bump(self, to: str) -> None:
        git(self.path / "sub", "checkout", "--quiet", to)
        self.commit(f"sub at {to}")


@dataclass(frozen=True)
class Landing:
    name: str
    expected: str
    make: Callable[[Scene], None]


LANDINGS: list[Landing] = []


def landing(expected: str) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    def register(make: Callable[[Scene], None]) -> Callable[[Scene], None]:
        LANDINGS.append(Landing(make.__name__, expected, make))
        return make

    return register


# ------------------------------------------------------------------------ merged one way or other


@landing(KEEP)
def unmerged(s: Scene) -> None:
    s.work()
    s.on("main")


@landing(REMOVE)
def merged_fast_forward(s: Scene) -> None:
    s.work()
    s.on("main")
    s.git("merge", "--quiet", "--ff-only", "work")


@landing(REMOVE)
def merged_with_a_commit(s: Scene) -> None:
    s.work()
    s.on("main")
    s.edit({1: "meanwhile"}, "b.txt")
    s.merge()


@landing(REMOVE)
def squashed(s: Scene) -> None:
    s.work()
    s.squash()


@landing(REMOVE)
def squashed_three_commits(s: Scene) -> None:
    s.begin()
    for last in range(3):
        s.edit({line: f"worked {line}" for line in range(last + 1)})
    s.squash()


@landing(REMOVE)
def cherry_picked(s: Scene) -> None:
    s.work()
    s.edit({1: "worked"}, "b.txt")
    s.on("main")
    s.add("c.txt")
    s.git("cherry-pick", "work~1", "work")


@landing(REMOVE)
def rebased_and_merged(s: Scene) -> None:
    s.work()
    s.edit({1: "worked", 2: "more"})
    s.on("main")
    s.add("c.txt")
    s.git("checkout", "--quiet", "--detach", "work")
    s.git("rebase", "--quiet", "main")
    rebased = s.head()
    s.on("main")
    s.git("merge", "--quiet", "--ff-only", rebased)


@landing(KEEP)
def partly_cherry_picked(s: Scene) -> None:
    s.work()
    s.edit({1: "worked"}, "b.txt")
    s.on("main")
    s.git("cherry-pick", "work~1")


@landing(REMOVE)
def squashed_then_other_lines_changed(s: Scene) -> None:
    s.work()
    s.squash()
    s.edit({1: "worked", 9: "later"})


@landing(REMOVE)
def squashed_then_same_lines_changed(s: Scene) -> None:
    s.work()
    s.squash()
    s.edit({1: "worked, and changed"})


@landing(REMOVE)
def merged_then_same_lines_changed(s: Scene) -> None:
    s.work()
    s.merge()
    s.edit({1: "worked, and changed"})


@landing(KEEP)
def squashed_then_reverted(s: Scene) -> None:
    s.work()
    s.squash()
    s.revert()


@landing(REMOVE)
def merged_then_reverted(s: Scene) -> None:
    """Its commits are in the base's history: git calls it merged, and nothing is lost."""
    s.work()
    s.merge()
    s.revert("--mainline", "1")


@landing(REMOVE)
def reverted_then_applied_again(s: Scene) -> None:
    s.work()
    s.squash()
    s.revert()
    s.revert()


# --------------------------------------------------------------------------------------- nothing


@landing(EMPTY)
def empty(s: Scene) -> None:
    s.begin()
    s.on("main")


@landing(EMPTY)
def empty_and_base_moved(s: Scene) -> None:
    s.begin()
    s.on("main")
    s.add("c.txt")


@landing(REMOVE)
def net_nothing(s: Scene) -> None:
    s.work()
    s.revert()
    s.on("main")


@landing(REMOVE)
def commit_without_changes(s: Scene) -> None:
    s.begin()
    s.commit("nothing", "--allow-empty")
    s.on("main")


# ------------------------------------------------------------------------------ renames, deletions


@landing(KEEP)
def rename_unmerged(s: Scene) -> None:
    s.begin()
    s.git("mv", "a.txt", "z.txt")
    s.commit("renamed")
    s.on("main")


@landing(REMOVE)
def rename_squashed(s: Scene) -> None:
    s.begin()
    s.git("mv", "a.txt", "z.txt")
    s.commit("renamed")
    s.write("z.txt", lines({1: "worked"}))
    s.commit("edited")
    s.squash()


@landing(KEEP)
def renamed_in_base_and_unmerged(s: Scene) -> None:
    s.work()
    s.on("main")
    s.git("mv", "a.txt", "z.txt")
    s.commit("renamed")


@landing(REMOVE)
def squashed_then_base_renamed(s: Scene) -> None:
    s.work()
    s.squash()
    s.git("mv", "a.txt", "z.txt")
    s.commit("renamed")


@landing(REMOVE)
def rename_squashed_then_base_renamed_again(s: Scene) -> None:
    s.begin()
    s.git("mv", "a.txt", "z.txt")
    s.commit("renamed")
    s.squash()
    s.git("mv", "z.txt", "y.txt")
    s.commit("renamed again")


@landing(REMOVE)
def deletion_squashed(s: Scene) -> None:
    s.begin()
    s.git("rm", "--quiet", "a.txt")
    s.commit("deleted")
    s.squash()


@landing(KEEP)
def deleted_here_changed_in_base(s: Scene) -> None:
    s.begin()
    s.git("rm", "--quiet", "a.txt")
    s.commit("deleted")
    s.on("main")
    s.edit({1: "meanwhile"})


@landing(KEEP)
def renamed_here_deleted_in_base(s: Scene) -> None:
    s.begin()
    s.git("mv", "a.txt", "z.txt")
    s.commit("renamed")
    s.on("main")
    s.git("rm", "--quiet", "a.txt")
    s.commit("deleted")


@landing(KEEP)
def conflicting(s: Scene) -> None:
    s.work()
    s.on("main")
    s.edit({1: "meanwhile"})


# ----------------------------------------------------------------- modes, bytes, white space, links


def _executable(s: Scene) -> None:
    s.begin()
    (s.path / "a.txt").chmod(0o755)
    s.commit("executable")


@landing(KEEP)
def mode_unmerged(s: Scene) -> None:
    _executable(s)
    s.on("main")


@landing(REMOVE)
def mode_squashed(s: Scene) -> None:
    _executable(s)
    s.squash()


@landing(KEEP)
def binary_unmerged(s: Scene) -> None:
    s.begin()
    s.add("x.bin", bytes(range(256)))
    s.on("main")


@landing(REMOVE)
def binary_squashed(s: Scene) -> None:
    s.begin()
    s.add("x.bin", bytes(range(256)))
    s.squash()


@landing(KEEP)
def binary_differs_in_base(s: Scene) -> None:
    s.begin()
    s.add("x.bin", bytes(range(256)))
    s.on("main")
    s.add("x.bin", bytes(reversed(range(256))))


@landing(KEEP)
def base_differs_in_white_space(s: Scene) -> None:
    s.begin()
    s.edit({1: "  x = 1"})
    s.on("main")
    s.edit({1: "        x = 1"})


@landing(KEEP)
def line_ends_unmerged(s: Scene) -> None:
    s.begin()
    s.add("a.txt", lines().replace("\n", "\r\n"))
    s.on("main")


@landing(KEEP)
def symlink_unmerged(s: Scene) -> None:
    s.begin()
    (s.path / "link").symlink_to("a.txt")
    s.commit("link")
    s.on("main")


# ------------------------------------------------------------------------------- in several steps


@landing(REMOVE)
def squashed_twice(s: Scene) -> None:
    s.work()
    s.squash()
    s.on("work")
    s.edit({1: "worked", 9: "more"})
    s.on("main")
    s.edit({1: "worked", 9: "more"})


@landing(KEEP)
def squashed_and_went_on(s: Scene) -> None:
    s.work()
    s.squash()
    s.on("work")
    s.edit({1: "more"}, "b.txt")
    s.on("main")


@landing(REMOVE)
def merged_base_then_squashed(s: Scene) -> None:
    s.work()
    s.on("main")
    s.edit({1: "meanwhile"}, "b.txt")
    s.on("work")
    s.git("merge", "--quiet", "--no-edit", "main")
    s.edit({1: "worked", 9: "more"})
    s.squash()


@landing(KEEP)
def only_change_is_in_a_merge_commit(s: Scene) -> None:
    s.begin()
    s.commit("nothing", "--allow-empty")
    s.on("main")
    s.edit({1: "meanwhile"}, "b.txt")
    s.on("work")
    s.git("merge", "--quiet", "--no-commit", "--no-ff", "main")
    s.edit({5: "hidden"})
    s.on("main")


@landing(KEEP)
def criss_cross(s: Scene) -> None:
    s.work()
    ours = s.head()
    s.on("main")
    theirs = s.edit({1: "meanwhile"}, "b.txt")
    s.git("merge", "--quiet", "--no-edit", ours)
    s.on("work")
    s.git("merge", "--quiet", "--no-edit", theirs)
    s.edit({1: "worked", 9: "more"})
    s.on("main")


@landing(REMOVE)
def criss_cross_squashed(s: Scene) -> None:
    criss_cross(s)
    s.squash()


@landing(REMOVE)
def base_made_the_same_change(s: Scene) -> None:
    s.work()
    s.on("main")
    s.edit({1: "worked", 9: "other"})


# --------------------------------------------------------------------------- histories with holes


@landing(KEEP)
def unrelated_history(s: Scene) -> None:
    s.git("checkout", "--quiet", "--orphan", "work")
    s.git("rm", "-r", "--quiet", "--force", ".")
    s.add("q.txt")
    s.on("main")


@landing(KEEP)
def base_rewritten_without_it(s: Scene) -> None:
    s.work()
    s.squash()
    s.git("reset", "--quiet", "--hard", "HEAD~1")
    s.add("c.txt")


@landing(KEEP)
def landed_where_nobody_fetched(s: Scene) -> None:
    s.work()
    s.git("checkout", "--quiet", "-b", "elsewhere", "main")
    s.git("merge", "--quiet", "--squash", "work")
    s.commit("squashed on the server")
    s.on("main")


def _shallow(s: Scene) -> None:
    (s.path / ".git" / "shallow").write_text(s.head("main") + "\n")


@landing(KEEP)
def shallow_base(s: Scene) -> None:
    s.work()
    s.on("main")
    s.add("c.txt")
    _shallow(s)


@landing(REMOVE)
def shallow_base_squashed(s: Scene) -> None:
    s.work()
    s.squash()
    _shallow(s)


# ------------------------------------------------------------------------ submodules and attributes


@landing(KEEP)
def submodule_unmerged(s: Scene) -> None:
    s.submodule()
    s.begin()
    s.bump("main~1")
    s.on("main")


@landing(REMOVE)
def submodule_squashed(s: Scene) -> None:
    s.submodule()
    s.begin()
    s.bump("main~1")
    s.squash()


@landing(REMOVE)
def submodule_further_in_base(s: Scene) -> None:
    s.submodule()
    s.begin()
    s.bump("main~1")
    s.on("main")
    s.bump("main")


@landing(KEEP)
def submodule_diverged_and_not_checked_out(s: Scene) -> None:
    submodule_further_in_base(s)
    shutil.rmtree(s.path / ".git" / "modules")
    shutil.rmtree(s.path / "sub")
    (s.path / "sub").mkdir()


_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 3\n"


def _large(s: Scene) -> None:
    s.add(".gitattributes", "*.big filter=lfs diff=lfs merge=lfs -text\n")
    s.begin()
    s.add("x.big", _POINTER)


@landing(KEEP)
def large_file_pointer_unmerged(s: Scene) -> None:
    _large(s)
    s.on("main")


@landing(REMOVE)
def large_file_pointer_squashed(s: Scene) -> None:
    _large(s)
    s.squash()


@landing(REMOVE)
def union_merge_squashed_then_changed(s: Scene) -> None:
    s.write(".gitattributes", "CHANGES merge=union\n")
    s.add("CHANGES", "1\n2\n3\n")
    s.begin()
    s.add("CHANGES", "new\n1\n2\n3\n")
    s.squash()
    s.add("CHANGES", "newer\nnew\n1\n2\n3\n")


@landing(KEEP)
def never_merged_by_attribute(s: Scene) -> None:
    s.add(".gitattributes", "a.txt -merge\n")
    s.work()
    s.on("main")
    s.edit({9: "meanwhile"})
