"""What keeps a worktree, state by state, and that what goes goes whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.harness.naming import WorkKey, WorkName
from sidecar.harness.works import Occupation, Work, WorkError
from tests.harness.kit import Desk, commit, git, lines, repository, write


async def test_a_landed_work_goes_with_its_branch(desk: Desk) -> None:
    work = await desk.landed()
    other = await desk.work("other")
    head = desk.branch(work)
    dry = await desk.works.sweep(dry_run=True)
    assert dry.removed == (work.path,)
    assert work.path.exists() and desk.branch(work) == head
    assert desk.swept == []

    swept = await desk.works.sweep()
    assert swept.removed == (work.path,)
    assert [(kept.path, kept.reason) for kept in swept.kept] == [(other.path, "empty")]
    assert swept.as_json() == {
        "removed": [str(work.path)],
        "kept": [
            {
                "path": str(other.path),
                "reason": "empty",
                "detail": "nothing was committed in it yet",
            }
        ],
        "dry_run": False,
    }
    event = desk.swept[0]
    assert event.name == "box"
    assert event.removed == (str(work.path),)
    assert event.kept == ((str(other.path), "empty"),)
    assert not work.path.exists()
    assert desk.branch(work) == ""
    assert "fix" not in git(desk.repo, "worktree", "list")
    assert git(desk.repo, "worktree", "prune", "--verbose") == ""
    assert git(desk.repo, "fsck", "--no-dangling") == ""
    assert [one.key for one in await desk.works.works()] == [other.key]
    # What is left of it: nothing.
    assert not [path for path in desk.directory.rglob("*fix*") if path.name != "fix.txt"]

    again = await desk.works.sweep()
    assert again.removed == ()
    assert again.kept == swept.kept


async def test_a_landed_work_can_be_begun_again(desk: Desk) -> None:
    await desk.landed()
    await desk.works.sweep()
    work = await desk.work()
    assert work.new
    assert (work.path / "fix.txt").read_text() == "work\n"
    assert (await desk.works.sweep()).removed == ()


async def test_works_that_land_in_other_ways(desk: Desk) -> None:
    for how in ("merge", "cherry-pick", "rebase"):
        work = await desk.work(how)
        write(work.path / f"{how}.txt", how)
        commit(work.path, how)
        write(desk.repo / f"before-{how}.txt", how)
        commit(desk.repo, f"before {how}")
        if how == "merge":
            git(desk.repo, "merge", "--quiet", "--no-ff", "--message", "merged", work.branch)
        elif how == "cherry-pick":
            git(desk.repo, "cherry-pick", work.branch)
        else:
            git(work.path, "rebase", "--quiet", "main")
            git(desk.repo, "merge", "--quiet", "--ff-only", work.branch)
    assert len((await desk.works.sweep()).removed) == 3


# ------------------------------------------------------------------------- states of a worktree

State = Callable[[Desk, Work], object]


def ignored(desk: Desk, work: Work, name: str, content: str = "secret\n") -> None:
    """A file that the repository ignores; its .gitignore has landed with the work."""
    write(work.path / name, content)


def _rebase_that_stopped(desk: Desk, work: Work) -> None:
    git(work.path, "rebase", "--exec", "false", "HEAD~1", ok=False)
    assert git(work.path, "status", "--porcelain") == ""


def _merge_of_nothing(desk: Desk, work: Work) -> None:
    git(desk.repo, "branch", "side", work.branch)
    git(work.path, "checkout", "--quiet", "--detach")
    git(work.path, "commit", "--quiet", "--allow-empty", "--message", "x")
    git(work.path, "branch", "--force", "side")
    git(work.path, "checkout", "--quiet", work.branch)
    git(work.path, "merge", "--no-commit", "--no-ff", "side")
    assert git(work.path, "status", "--porcelain") == ""


def _submodule(desk: Desk, work: Work) -> None:
    other = repository(desk.directory / "other")
    git(
        work.path,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(other),
        "sub",
    )
    commit(work.path, "sub")
    desk.land(work)


def _submodule_given_up(desk: Desk, work: Work) -> None:
    """Its repository is left in the administrative directory."""
    _submodule(desk, work)
    git(work.path, "submodule", "--quiet", "deinit", "--force", "sub")


def _nested_worktree_hidden(desk: Desk, work: Work) -> None:
    write(desk.repo / ".git" / "info" / "exclude", "inner\n")
    git(work.path, "worktree", "add", "--quiet", "inner", "main", "--force")


def _nested_repository_ignored(desk: Desk, work: Work) -> None:
    repository(work.path / "node_modules" / "forked")


def _bare_repository_ignored(desk: Desk, work: Work) -> None:
    (work.path / "node_modules").mkdir()
    git(work.path, "clone", "--quiet", "--bare", str(desk.repo), "node_modules/bare")


def _hidden_by_index(flag: str) -> State:
    def hide(desk: Desk, work: Work) -> None:
        git(work.path, "update-index", flag, "a.txt")
        write(work.path / "a.txt", lines({3: "hidden"}))
        assert git(work.path, "status", "--porcelain") == ""

    return hide


def _hidden_by_time(desk: Desk, work: Work) -> None:
    """Same size, same times: git that trusts its index sees nothing."""
    path = work.path / "a.txt"
    git(desk.repo, "config", "core.trustctime", "false")
    os.utime(path, (1e9, 1e9))
    git(work.path, "status")
    before = path.stat()
    path.write_text(path.read_text().replace("line", "LINE"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert git(work.path, "status", "--porcelain") == ""


def _staged_and_undone(desk: Desk, work: Work) -> None:
    """The only copy of it is in the index."""
    before = (work.path / "a.txt").read_text()
    write(work.path / "a.txt", lines({3: "precious"}))
    git(work.path, "add", "a.txt")
    write(work.path / "a.txt", before)


def _untracked_not_shown(desk: Desk, work: Work) -> None:
    git(work.path, "config", "status.showUntrackedFiles", "no")
    write(work.path / "notes.md", "precious")


def _excluded(desk: Desk, work: Work) -> None:
    write(desk.repo / ".git" / "info" / "exclude", "notes.md\n")
    write(work.path / "notes.md", "precious")
    assert git(work.path, "status", "--porcelain") == ""


def _detached_with_commits(desk: Desk, work: Work) -> None:
    git(work.path, "checkout", "--quiet", "--detach")
    write(work.path / "lost.txt", "precious")
    commit(work.path, "on no branch")


def _other_branch(desk: Desk, work: Work) -> None:
    git(work.path, "checkout", "--quiet", "-b", "agents-own")


def _checked_out_again(desk: Desk, work: Work) -> None:
    git(desk.repo, "worktree", "add", "--quiet", "--force", str(desk.directory / "x"), work.branch)


def _checked_out_in_the_checkout(desk: Desk, work: Work) -> None:
    git(desk.repo, "checkout", "--quiet", "--ignore-other-worktrees", work.branch)


def _rebased_elsewhere(desk: Desk, work: Work) -> None:
    _checked_out_again(desk, work)
    git(desk.directory / "x", "rebase", "--force-rebase", "--exec", "false", "HEAD~1", ok=False)


def _bisected_elsewhere(desk: Desk, work: Work) -> None:
    _checked_out_again(desk, work)
    git(desk.directory / "x", "bisect", "start")
    git(desk.directory / "x", "checkout", "--quiet", "--detach")


def _symbolic(desk: Desk, work: Work) -> None:
    git(desk.repo, "branch", "real", work.branch)
    git(desk.repo, "symbolic-ref", f"refs/heads/{work.branch}", "refs/heads/real")


def _git_file(content: str) -> State:
    def replace(desk: Desk, work: Work) -> None:
        write(work.path / ".git", content)

    return replace


def _git_directory(desk: Desk, work: Work) -> None:
    (work.path / ".git").unlink()
    git(work.path, "init", "--quiet")


def _git_link(desk: Desk, work: Work) -> None:
    (work.path / ".git").rename(work.path.parent / "pointer")
    (work.path / ".git").symlink_to(work.path.parent / "pointer")


def _moved_by_git(desk: Desk, work: Work) -> None:
    git(desk.repo, "worktree", "unlock", str(work.path))
    git(desk.repo, "worktree", "move", str(work.path), str(desk.directory / "elsewhere"))


def _linked(desk: Desk, work: Work) -> None:
    work.path.rename(desk.directory / "elsewhere")
    work.path.symlink_to(desk.directory / "elsewhere")


def _linked_above(desk: Desk, work: Work) -> None:
    (desk.root / "claude").rename(desk.directory / "elsewhere")
    (desk.root / "claude").symlink_to(desk.directory / "elsewhere")


def _deep(desk: Desk, work: Work) -> None:
    path = work.path / "node_modules"
    for _ in range(300):
        path /= "d"
    path.mkdir(parents=True)
    write(path / "file", "x")


def _edit(name: str, content: str | bytes) -> State:
    return lambda desk, work: write(work.path / name, content)


STATES: dict[str, tuple[str, State]] = {
    "modified": ("dirty", _edit("a.txt", lines({3: "changed"}))),
    "staged": ("dirty", lambda d, w: (write(w.path / "n", "x"), git(w.path, "add", "n"))),
    "untracked": ("dirty", _edit("notes.md", "precious")),
    "untracked below a directory": ("dirty", _edit("docs/notes.md", "precious")),
    "deleted": ("dirty", lambda d, w: (w.path / "a.txt").unlink()),
    "mode changed": ("dirty", lambda d, w: (w.path / "a.txt").chmod(0o755)),
    "file made a link": (
        "dirty",
        lambda d, w: ((w.path / "a.txt").unlink(), (w.path / "a.txt").symlink_to("b.txt")),
    ),
    "file made a directory": (
        "dirty",
        lambda d, w: ((w.path / "a.txt").unlink(), (w.path / "a.txt").mkdir()),
    ),
    "file made a pipe": (
        "dirty",
        lambda d, w: ((w.path / "a.txt").unlink(), os.mkfifo(w.path / "a.txt")),
    ),
    "socket or pipe": ("dirty", lambda d, w: os.mkfifo(w.path / "pipe")),
    "dangling link": ("dirty", lambda d, w: (w.path / "link").symlink_to("nowhere")),
    "line ends": ("dirty", _edit("a.txt", lines().replace("\n", "\r\n"))),
    "assume-unchanged": ("dirty", _hidden_by_index("--assume-unchanged")),
    "skip-worktree": ("dirty", _hidden_by_index("--skip-worktree")),
    "same size and times": ("dirty", _hidden_by_time),
    "staged and undone": ("dirty", _staged_and_undone),
    "showUntrackedFiles=no": ("dirty", _untracked_not_shown),
    "info/exclude": ("dirty", _excluded),
    "index gone": ("dirty", lambda d, w: (d.admin(w) / "index").unlink()),
    "index damaged": ("dirty", lambda d, w: write(d.admin(w) / "index", "DIRC nonsense")),
    "ignored file": ("ignored_files", _edit(".env", "TOKEN=1")),
    "ignored below a directory": ("ignored_files", _edit("docs/.env", "TOKEN=1")),
    "ignored directory": ("ignored_files", _edit("build/out.bin", "x")),
    "cache without its tag": ("ignored_files", _edit("target/notes.md", "x")),
    "source among bytecode": ("ignored_files", _edit("__pycache__/a.py", "x")),
    "environment without its mark": ("ignored_files", _edit(".venv/notes.md", "x")),
    "deeper than anybody looks": ("dirty", _deep),
    "repository inside": ("dirty", lambda d, w: repository(w.path / "inner")),
    "repository in node_modules": ("nested_repository", _nested_repository_ignored),
    "bare repository in node_modules": ("nested_repository", _bare_repository_ignored),
    "worktree inside": ("nested_worktree", _nested_worktree_hidden),
    "submodule": ("submodule", _submodule),
    "submodule given up": ("submodule", _submodule_given_up),
    "locked": ("locked", lambda d, w: write(d.admin(w) / "locked", "agent running")),
    "merge": ("mid_operation", _merge_of_nothing),
    "rebase": ("mid_operation", _rebase_that_stopped),
    "bisect": ("mid_operation", lambda d, w: git(w.path, "bisect", "start")),
    "git runs": ("mid_operation", lambda d, w: write(d.admin(w) / "index.lock", "")),
    "detached": ("detached", lambda d, w: git(w.path, "checkout", "--quiet", "--detach")),
    "detached with commits": ("detached", _detached_with_commits),
    "other branch": ("other_branch", _other_branch),
    "checked out elsewhere too": ("checked_out", _checked_out_again),
    "checked out in the checkout too": ("checked_out", _checked_out_in_the_checkout),
    "rebased elsewhere": ("checked_out", _rebased_elsewhere),
    "bisected elsewhere": ("checked_out", _bisected_elsewhere),
    "branch gone": (
        "branch_gone",
        lambda d, w: git(d.repo, "update-ref", "-d", f"refs/heads/{w.branch}"),
    ),
    "branch symbolic": ("branch_symbolic", _symbolic),
    "refs of its own": (
        "worktree_refs",
        lambda d, w: git(w.path, "update-ref", "refs/worktree/mine", "HEAD"),
    ),
    ".git leads elsewhere": ("git_file", _git_file("gitdir: /etc\n")),
    ".git says nothing": ("git_file", _git_file("nonsense")),
    ".git is a directory": ("git_file", _git_directory),
    ".git is a link": ("git_file", _git_link),
    ".git is gone": ("git_file", lambda d, w: (w.path / ".git").unlink()),
    "commondir leads elsewhere": ("admin", lambda d, w: write(d.admin(w) / "commondir", "/etc")),
    "HEAD is nonsense": ("admin", lambda d, w: write(d.admin(w) / "HEAD", "x")),
    "registration gone": ("admin", lambda d, w: shutil.rmtree(d.admin(w))),
    "moved by git": ("moved", _moved_by_git),
    "replaced by a link": ("unsafe_path", _linked),
    "a link above it": ("unsafe_path", _linked_above),
}  # fmt: skip

IGNORES = ".env\nbuild/\nnode_modules/\ntarget/\n__pycache__/\n.venv/\n*.log\n"


def everything(directory: Path) -> dict[str, str]:
    """Every file and link with its content: what must not be lost."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and not name.endswith("index"):
            found[name] = path.read_bytes().hex()
    return found


@pytest.mark.parametrize("name", STATES)
async def test_kept(name: str, desk: Desk) -> None:
    reason, make = STATES[name]
    write(desk.repo / ".gitignore", IGNORES)
    commit(desk.repo, "ignores")
    work = await desk.landed()
    assert (await desk.works.sweep(dry_run=True)).removed == (work.path,)
    make(desk, work)
    before = everything(work.path)
    refs = git(desk.repo, "for-each-ref")
    swept = await desk.works.sweep()
    assert swept.removed == ()
    assert [(kept.path, str(kept.reason)) for kept in swept.kept] == [(work.path, reason)]
    assert swept.kept[0].detail
    assert everything(work.path) == before
    assert git(desk.repo, "for-each-ref") == refs
    assert await desk.reasons() == [reason]


def _disposable(desk: Desk, work: Work) -> None:
    tag = "Signature: 8a477f597d28d172789f06886806bc55\n# cache\n"
    write(work.path / "node_modules/left-pad/index.js", "x")
    (work.path / "node_modules/.bin").mkdir()
    (work.path / "node_modules/.bin/left-pad").symlink_to("../left-pad/index.js")
    write(work.path / "target/CACHEDIR.TAG", tag)
    write(work.path / "target/debug/app", "x")
    write(work.path / ".venv/pyvenv.cfg", "home = /usr")
    write(work.path / ".venv/lib/x.py", "x")
    write(work.path / "docs/__pycache__/a.cpython-311.pyc", "x")
    # A cache that ignores itself.
    write(work.path / ".pytest_cache/.gitignore", "*\n")
    write(work.path / ".pytest_cache/CACHEDIR.TAG", tag)
    write(work.path / ".pytest_cache/v/last", "x")
    (work.path / "empty/below").mkdir(parents=True)


async def test_what_can_be_made_again_goes(desk: Desk) -> None:
    write(desk.repo / ".gitignore", IGNORES)
    commit(desk.repo, "ignores")
    work = await desk.landed()
    _disposable(desk, work)
    swept = await desk.works.sweep()
    assert swept.kept == ()
    assert not work.path.exists()


async def test_a_link_into_the_world_is_removed_not_followed(desk: Desk) -> None:
    write(desk.repo / ".gitignore", IGNORES)
    commit(desk.repo, "ignores")
    work = await desk.landed()
    write(desk.directory / "world" / "file", "precious")
    (work.path / "node_modules").mkdir()
    (work.path / "node_modules" / "world").symlink_to(desk.directory / "world")
    assert (await desk.works.sweep()).removed == (work.path,)
    assert (desk.directory / "world" / "file").read_text() == "precious"


async def test_line_ends_that_attributes_ask_for_are_no_change(desk: Desk) -> None:
    write(desk.repo / ".gitattributes", "*.bat text eol=crlf\n")
    write(desk.repo / "run.bat", "one\r\ntwo\r\n")
    commit(desk.repo, "batch")
    work = await desk.landed()
    assert (work.path / "run.bat").read_bytes() == b"one\r\ntwo\r\n"
    write(work.path / "run.bat", b"one\r\n2\r\n")
    assert await desk.reasons() == ["dirty"]
    write(work.path / "run.bat", b"one\r\ntwo\r\n")
    assert (await desk.works.sweep()).removed == (work.path,)


async def test_names_that_are_hard_to_write(desk: Desk) -> None:
    work = await desk.work()
    for name in (b"new\nline", b"tab\t", b"quote\"'", b"\xff\xfe", b" space ", b"-dash", b"a\\b"):
        (Path(os.fsdecode(os.fsencode(work.path) + b"/" + name))).write_text("x")
    commit(work.path, "names")
    desk.land(work)
    Path(os.fsdecode(os.fsencode(work.path) + b"/\xff\x1b[31m")).write_text("x")
    swept = await desk.works.sweep()
    assert [kept.reason for kept in swept.kept] == ["dirty"]
    assert swept.kept[0].detail.isascii() and "\x1b" not in swept.kept[0].detail
    Path(os.fsdecode(os.fsencode(work.path) + b"/\xff\x1b[31m")).unlink()
    assert (await desk.works.sweep()).removed == (work.path,)


async def test_a_directory_deleted_by_hand(desk: Desk) -> None:
    landed, unlanded = await desk.landed(), await desk.work("unlanded")
    write(unlanded.path / "n", "x")
    commit(unlanded.path, "n")
    head = desk.branch(unlanded)
    shutil.rmtree(landed.path)
    shutil.rmtree(unlanded.path)
    swept = await desk.works.sweep()
    assert swept.removed == (landed.path,)
    assert [kept.reason for kept in swept.kept] == ["missing"]
    assert desk.branch(landed) == "" and desk.branch(unlanded) == head
    # The branch is all there is of it, and enough to go on.
    again = await desk.work("unlanded")
    assert (again.path / "n").read_text() == "x"
    assert git(again.path, "status", "--porcelain") == ""
    assert (again.base, again.created) == (unlanded.base, unlanded.created)


async def test_a_checkout_that_was_moved_away(desk: Desk) -> None:
    work = await desk.landed()
    desk.repo.rename(desk.directory / "elsewhere")
    swept = await desk.works.sweep()
    assert [kept.reason for kept in swept.kept] == ["checkout_gone"]
    assert swept.kept[0].detail == f"there is no repository at {desk.repo}/.git any more"
    with pytest.raises(WorkError, match=r"there is no repository at .*/\.git any more"):
        await desk.work("other")
    (desk.directory / "elsewhere").rename(desk.repo)
    assert (await desk.works.sweep()).removed == (work.path,)


async def test_a_work_of_which_nothing_is_left_is_forgotten(desk: Desk) -> None:
    """As after `git worktree remove -f -f` and `git branch -D`: the way to throw a work away."""
    work, half = await desk.work(), await desk.work("half")
    for one in (work, half):
        write(one.path / "n", "not wanted")
        commit(one.path, "n")
        git(desk.repo, "worktree", "remove", "--force", "--force", str(one.path))
    git(desk.repo, "branch", "--delete", "--force", work.branch)
    dry = await desk.works.sweep(dry_run=True)
    assert dry.removed == (work.path,)
    assert len(await desk.works.works()) == 2
    swept = await desk.works.sweep()
    assert swept.removed == (work.path,)
    assert [(kept.path, kept.reason) for kept in swept.kept] == [(half.path, "admin")]
    assert [one.key for one in await desk.works.works()] == [half.key]
    assert desk.branch(half) != ""
    assert (await desk.work()).new


async def test_deleted_by_hand_with_something_staged(desk: Desk) -> None:
    work = await desk.landed()
    write(work.path / "n", "precious")
    git(work.path, "add", "n")
    shutil.rmtree(work.path)
    assert await desk.reasons() == ["dirty"]


async def test_more_than_can_be_looked_at(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    work = await desk.landed()
    monkeypatch.setattr("sidecar.harness.worktree_contents._MOST", 3)
    assert await desk.reasons() == ["too_large"]
    monkeypatch.undo()
    monkeypatch.setattr("sidecar.harness.worktree_contents._LONGEST", 0)
    assert await desk.reasons() == ["too_large"]
    monkeypatch.undo()
    assert (await desk.works.sweep()).removed == (work.path,)


async def test_stashes_outlive_the_worktree(desk: Desk) -> None:
    work = await desk.landed()
    write(work.path / "a.txt", lines({3: "stashed"}))
    git(work.path, "stash")
    assert (await desk.works.sweep()).removed == (work.path,)
    assert "stashed" in git(desk.repo, "stash", "show", "--patch")


async def test_landed_then_changed_and_conflicting_are_told_apart(desk: Desk) -> None:
    landed = await desk.work("landed")
    write(landed.path / "a.txt", lines({1: "worked"}))
    commit(landed.path, "worked")
    desk.land(landed)
    write(desk.repo / "a.txt", lines({1: "worked, and changed"}))
    commit(desk.repo, "changed")
    never = await desk.work("never")
    write(never.path / "b.txt", lines({1: "worked"}, "other"))
    commit(never.path, "worked")
    write(desk.repo / "b.txt", lines({1: "meanwhile"}, "other"))
    commit(desk.repo, "meanwhile")
    assert await desk.reasons() == ["landed_then_changed", "conflicts"]


# ------------------------------------------------------------------------------------ who is in it


USES = {
    "directory": "",
    "open file": "f = open('a.txt'); os.chdir('/')",
    "mapping": "f = open('a.txt', 'r+'); m = mmap.mmap(f.fileno(), 0); f.close(); os.chdir('/')",
}


@contextlib.contextmanager
def process_in(directory: Path, does: str) -> Iterator[int]:
    """A process that began in a directory and waits there for its end; its number."""
    code = f"import mmap, os; {does}\nprint(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate(b"\n", timeout=60)


@pytest.mark.parametrize("does", USES)
async def test_a_process_in_the_worktree_keeps_it(does: str, desk: Desk) -> None:
    work = await desk.landed()
    with process_in(work.path, USES[does]) as pid:
        swept = await desk.works.sweep()
        assert [kept.reason for kept in swept.kept] == ["in_use"]
        assert swept.kept[0].detail == f"process {pid} uses it"
    assert (await desk.works.sweep()).removed == (work.path,)


class Agents:
    """Agents that are said to be somewhere."""

    def __init__(self, occupation: Occupation) -> None:
        self.now: Occupation = occupation
        self.stopped: list[WorkKey] = []

    def occupation(self, key: WorkKey) -> Occupation:
        return self.now

    async def stop(self, key: WorkKey) -> None:
        self.stopped.append(key)


async def test_agents(desk: Desk) -> None:
    work = await desk.landed()
    agents = desk.works.occupants = Agents("working")
    assert await desk.reasons() == ["in_use"]
    agents.now = "waiting"
    assert await desk.reasons() == ["waiting"]
    agents.now = "idle"
    write(work.path / "n", "x")
    assert await desk.reasons() == ["dirty"]
    assert agents.stopped == [], "an agent is only stopped when its work goes"
    (work.path / "n").unlink()
    assert (await desk.works.sweep(dry_run=True)).removed == (work.path,)
    assert agents.stopped == []
    assert (await desk.works.sweep()).removed == (work.path,)
    assert agents.stopped == [work.key]


async def test_a_run_keeps_its_work(desk: Desk) -> None:
    work = await desk.landed()
    async with desk.works.use(WorkName("claude", "c", "alice", "fix")) as used:
        assert used.path == work.path and not used.new
        assert desk.works.held(work.key)
        assert await desk.reasons() == ["in_use"]
    assert not desk.works.held(work.key)
    assert (await desk.works.sweep()).removed == (work.path,)


# -------------------------------------------------------------------------------------- the base


async def test_bases_that_cannot_be_told(desk: Desk) -> None:
    await desk.landed()
    desk.checkout = type(desk.checkout)("c", desk.repo, base="nowhere")
    await desk.restart()
    swept = await desk.works.sweep()
    assert [kept.reason for kept in swept.kept] == ["no_base"]
    assert "'nowhere'" in swept.kept[0].detail

    # Its own branch is no base: everything has landed there.
    work = (await desk.works.works())[0]
    desk.checkout = type(desk.checkout)("c", desk.repo, base=work.branch)
    await desk.restart()
    assert await desk.reasons() == ["no_base"]

    # A configured base goes before the one where the work began.
    git(desk.repo, "branch", "release", "HEAD~1")
    desk.checkout = type(desk.checkout)("c", desk.repo, base="release")
    await desk.restart()
    assert await desk.reasons() == ["not_landed"]


async def test_a_checkout_that_is_gone(desk: Desk) -> None:
    work = await desk.landed()
    desk.checkout = type(desk.checkout)("other", repository(desk.directory / "other"))
    await desk.restart()
    swept = await desk.works.sweep()
    assert [(kept.path, kept.reason) for kept in swept.kept] == [(work.path, "checkout_gone")]


async def test_fetching_first(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    git(tmp_path, "clone", "--quiet", str(origin), "repo")
    desk = await Desk(tmp_path, fetch=True).open()
    work = await desk.work()
    assert work.base_ref == "refs/remotes/origin/main"
    write(work.path / "n", "x")
    commit(work.path, "n")
    assert await desk.reasons() == ["not_landed"]
    git(origin, "fetch", "--quiet", str(desk.repo), work.branch)
    git(origin, "merge", "--quiet", "--squash", "FETCH_HEAD")
    commit(origin, "squashed")

    origin.rename(tmp_path / "away")
    swept = await desk.works.sweep()
    assert [kept.reason for kept in swept.kept] == ["fetch_failed"]
    assert str(origin) not in swept.kept[0].detail
    (tmp_path / "away").rename(origin)

    evil = repository(tmp_path / "evil")
    git(desk.repo, "config", "remote.origin.url", str(evil))
    swept = await desk.works.sweep()
    assert [kept.reason for kept in swept.kept] == ["fetch_failed"]
    assert "another than when the sidecar first saw" in swept.kept[0].detail
    git(desk.repo, "config", "remote.origin.url", str(origin))

    assert (await desk.works.sweep()).removed == (work.path,)
    await desk.works.close()


async def test_a_base_that_lost_the_work_again(tmp_path: Path) -> None:
    """Only a fetch tells: what was last known has it."""
    origin = repository(tmp_path / "origin")
    git(tmp_path, "clone", "--quiet", str(origin), "repo")
    desk = await Desk(tmp_path, fetch=True).open()
    work = await desk.work()
    write(work.path / "n", "x")
    commit(work.path, "n")
    git(work.path, "push", "--quiet", "origin", "HEAD:refs/heads/agents")
    git(origin, "merge", "--quiet", "--squash", "agents")
    commit(origin, "squashed")
    git(desk.repo, "fetch", "--quiet")
    git(origin, "reset", "--quiet", "--hard", "HEAD~1")
    assert await desk.reasons() == ["not_landed"]
    await desk.works.close()
