"""Making works, opening them again, and what is made of what was interrupted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.harness.git import GitError
from sidecar.harness.git_checkout import Checkout, CheckoutError, Repository
from sidecar.harness.naming import WorkKey, WorkName, slug
from sidecar.harness.records import Records, Stage
from sidecar.harness.works import WorkError, Works
from sidecar.harness.worktree import Worktree
from tests.harness.kit import NAME, Desk, commit, git, lines, repository, write


async def test_a_work_is_an_ordinary_worktree(desk: Desk) -> None:
    async with desk.works.use(WorkName("Claude", "c", "alice@example.org", "Fix login")) as work:
        assert work.new
        harness, principal, name = slug("Claude"), slug("alice@example.org"), slug("Fix login")
        assert work.path == desk.root / harness / "c" / principal / name
        assert work.branch == f"work/{harness}/{principal}/{name}"
        assert work.base == git(desk.repo, "rev-parse", "main")
        assert work.base_ref == "refs/heads/main"
    assert git(work.path, "status", "--porcelain", "--branch") == f"## {work.branch}"
    assert git(work.path, "rev-parse", "HEAD") == work.base
    assert git(work.path, "fsck") == ""
    assert str(work.path) in git(desk.repo, "worktree", "list")
    assert git(desk.repo, "worktree", "prune", "--verbose") == ""
    git(desk.repo, "worktree", "remove", str(work.path), ok=False)
    assert work.path.is_dir(), "it is locked"
    assert git(work.path, "log", "-1", "--walk-reflogs", "--format=%gs", work.branch) == (
        "sidecar: work begun"
    )
    listed = await desk.works.works()
    assert [one.as_json() for one in listed] == [
        {
            "harness": "Claude",
            "checkout": "c",
            "principal": "alice@example.org",
            "work": "Fix login",
            "path": str(work.path),
            "branch": work.branch,
            "base_ref": "refs/heads/main",
            "base": work.base,
            "created": work.created,
        }
    ]


async def test_a_tree_comes_out_as_it_went_in(desk: Desk) -> None:
    write(desk.repo / "deep/er/x.bin", bytes(range(256)))
    write(desk.repo / "run.sh", "#!/bin/sh\n")
    (desk.repo / "run.sh").chmod(0o755)
    (desk.repo / "link").symlink_to("/etc/passwd")
    write(desk.repo / ".gitattributes", "*.txt filter=upper ident\n")
    commit(desk.repo, "tree")
    git(desk.repo, "config", "filter.upper.smudge", "tr a-z A-Z")
    work = await desk.work()
    assert (work.path / "deep/er/x.bin").read_bytes() == bytes(range(256))
    assert os.access(work.path / "run.sh", os.X_OK)
    assert not os.access(work.path / "a.txt", os.X_OK)
    assert (work.path / "link").readlink() == Path("/etc/passwd")
    assert (work.path / "a.txt").read_text() == lines(), "filters do not run"


async def test_state(desk: Desk) -> None:
    work = await desk.work()
    state = await desk.works.state(work.key)
    assert (state.branch, state.base, state.head) == (work.branch, work.base, work.base)
    assert (state.commits, state.dirty, state.operation) == ((), False, None)

    write(work.path / "n", "x")
    assert (await desk.works.state(work.key)).dirty
    first = commit(work.path, "first\n\nnot the body")
    second = commit(work.path, "zweite \u00e4nderung", "--allow-empty")
    state = await desk.works.state(work.key)
    assert [(one.sha, one.subject) for one in state.commits] == [
        (first, "first"),
        (second, "zweite \u00e4nderung"),
    ]
    assert (state.head, state.dirty) == (second, False)

    # What the base did meanwhile is no commit of the work's.
    write(desk.repo / "m", "x")
    commit(desk.repo, "meanwhile")
    git(work.path, "merge", "--quiet", "--no-edit", "main")
    state = await desk.works.state(work.key)
    assert [one.subject for one in state.commits][:2] == ["first", "zweite \u00e4nderung"]
    assert len(state.commits) == 3

    git(work.path, "checkout", "--quiet", "-b", "agents-own")
    assert (await desk.works.state(work.key)).branch == "agents-own"
    git(work.path, "checkout", "--quiet", "--detach")
    state = await desk.works.state(work.key)
    assert (state.branch, state.head) == ("", git(work.path, "rev-parse", "HEAD"))
    git(work.path, "bisect", "start")
    assert (await desk.works.state(work.key)).operation == "bisect"


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write(path / "a.txt", lines({1: "x"})),
        lambda path: (path / "a.txt").unlink(),
        lambda path: (path / "a.txt").chmod(0o755),
        lambda path: write(path / "new", "x"),
        lambda path: git(path, "rm", "--quiet", "--cached", "a.txt"),
        lambda path: (
            git(path, "update-index", "--assume-unchanged", "a.txt"),
            write(path / "a.txt", lines({1: "x"})),
        ),
    ],
)
async def test_dirty(change: Callable[[Path], object], desk: Desk) -> None:
    work = await desk.work()
    assert not (await desk.works.state(work.key)).dirty
    change(work.path)
    assert (await desk.works.state(work.key)).dirty


async def test_state_while_many_look(desk: Desk) -> None:
    work = await desk.work()
    states = await asyncio.gather(*(desk.works.state(work.key) for _ in range(12)))
    assert all(state == states[0] for state in states)


async def test_many_at_once(desk: Desk) -> None:
    works = await asyncio.gather(*(desk.work(f"w{number}") for number in range(8)))
    assert len({work.path for work in works}) == 8
    again = await asyncio.gather(*(desk.work("same") for _ in range(5)))
    assert [work.new for work in again].count(True) == 1
    assert len(git(desk.repo, "worktree", "list").splitlines()) == 10


# --------------------------------------------------------------------------------- opening again


async def test_opened_again_it_is_as_it_was_left(desk: Desk) -> None:
    work = await desk.work()
    write(work.path / "n", "x")
    commit(work.path, "n")
    write(work.path / "dirty", "x")
    await desk.restart()
    again = await desk.work()
    assert again == replace(work, new=False)
    assert (again.path / "dirty").read_text() == "x"
    assert (await desk.works.state(again.key)).commits[0].subject == "n"


async def test_a_git_file_that_leads_elsewhere_is_refused(desk: Desk) -> None:
    work = await desk.work()
    write(work.path / ".git", "gitdir: /etc\n")
    with pytest.raises(WorkError, match="leads elsewhere"):
        await desk.work()
    with pytest.raises(WorkError, match="leads elsewhere"):
        await desk.works.state(work.key)


async def test_a_link_in_its_path_is_refused(desk: Desk) -> None:
    outside = desk.directory / "outside"
    outside.mkdir()
    (desk.root / "claude").symlink_to(outside)
    with pytest.raises(WorkError, match="is a symlink"):
        await desk.work()
    assert list(outside.iterdir()) == []
    assert git(desk.repo, "branch", "--list", "work/*") == ""
    assert await desk.works.works() == []
    (desk.root / "claude").unlink()
    await desk.work()


async def test_what_is_in_the_way_is_left_alone(desk: Desk) -> None:
    path = desk.root / "claude/c/alice/fix"
    write(path / "file", "precious")
    with pytest.raises(WorkError, match="exists already; move it away"):
        await desk.work()
    assert (path / "file").read_text() == "precious"
    assert git(desk.repo, "for-each-ref", "refs/heads/work") == ""
    assert not (desk.repo / ".git/worktrees").exists()


async def test_a_branch_of_somebody_else(desk: Desk) -> None:
    git(desk.repo, "branch", "work/claude/alice/fix")
    with pytest.raises(WorkError, match=r"a branch work/claude/alice/fix exists already"):
        await desk.work()
    assert git(desk.repo, "branch", "--list", "work/*").strip() == "work/claude/alice/fix"


async def test_a_branch_named_work(desk: Desk) -> None:
    git(desk.repo, "branch", "work")
    with pytest.raises(WorkError, match="a branch work exists already that belongs to no work"):
        await desk.work()
    assert await desk.works.works() == []
    assert not list(desk.root.glob("[!.]*"))


async def test_directory_and_branch_deleted_by_hand(desk: Desk) -> None:
    work = await desk.work()
    shutil.rmtree(work.path)
    git(desk.repo, "update-ref", "-d", f"refs/heads/{work.branch}")
    again = await desk.work()
    assert again.new and again.path.is_dir()


async def test_the_page_tells_how_to_throw_a_work_away(desk: Desk) -> None:
    """Both commands of docs/worktrees.md, with git's own rules about the checkout."""
    page = Path(__file__).resolve().parents[2] / "docs" / "worktrees.md"
    shown = [line.split() for line in page.read_text().splitlines() if line.startswith("git -C ")]
    assert [command[3:5] for command in shown] == [["worktree", "remove"], ["branch", "-D"]]
    work = await desk.work()
    write(work.path / "never-committed", "x")
    real = {"billing": str(desk.repo), "PATH": str(work.path), "BRANCH": work.branch}
    for command in shown:
        git(desk.repo, *(real.get(word, word) for word in command[1:]))
    assert not work.path.exists()
    assert git(desk.repo, "branch", "--list", "work/*") == ""
    await desk.works.sweep()
    assert await desk.works.works() == []


async def test_names_that_meet(desk: Desk) -> None:
    """Were two texts to have one slug, the second would not get the first one's work."""
    work = await desk.work()
    records = Records(desk.root / ".sidecar" / "works")
    record = records.get(work.key)
    assert record is not None and record.name == NAME
    records.put(replace(record, name=replace(NAME, work="another text")))
    with pytest.raises(WorkError, match="is another one already"):
        await desk.work()


async def test_unknown_works_and_checkouts(desk: Desk) -> None:
    with pytest.raises(WorkError, match="no checkout 'nowhere'"):
        async with desk.works.use(WorkName("claude", "nowhere", "alice", "x")):
            pass
    with pytest.raises(WorkError, match="no work claude/c/alice/x"):
        await desk.works.state(WorkKey("claude", "c", "alice", "x"))
    with pytest.raises(WorkError, match="1 to 4096 characters"):
        async with desk.works.use(WorkName("claude", "c", "alice", "")):
            pass


# ---------------------------------------------------------------------------------------- bases


def opened(tmp_path: Path, repo: Path, base: str | None = None) -> Repository:
    found = Repository(Checkout("c", repo, base), tmp_path / "private")
    found.open()
    return found


def test_the_base_is_origins_head_else_the_current_branch(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    assert opened(tmp_path, origin).base_ref() == "refs/heads/main"
    git(origin, "checkout", "--quiet", "-b", "feature/x")
    assert opened(tmp_path, origin).base_ref() == "refs/heads/feature/x"
    git(origin, "checkout", "--quiet", "main")
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    clone = tmp_path / "clone"
    git(clone, "checkout", "--quiet", "-b", "local")
    assert opened(tmp_path, clone).base_ref() == "refs/remotes/origin/main"
    git(clone, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/heads/local")
    assert opened(tmp_path, clone).base_ref() == "refs/heads/local", "led out of origin"
    git(clone, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/gone")
    assert opened(tmp_path, clone).base_ref() == "refs/heads/local"


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("main", "refs/heads/main"),
        ("origin/main", "refs/remotes/origin/main"),
        ("refs/remotes/origin/main", "refs/remotes/origin/main"),
        ("refs/heads/main", "refs/heads/main"),
        ("nowhere", "'nowhere' is no branch of it"),
        ("origin", "'origin' is no branch of it"),
        ("--all", "'--all' is no branch of it"),
        ("", "'' is no branch of it"),
        ("refs/heads/main^{tree}", "is no branch of it"),
        ("refs/heads", "is no branch of it"),
        ("twice/main", "ambiguous; write refs/heads/twice/main or refs/remotes/twice/main"),
    ],
)
def test_configured_bases(base: str, expected: str, tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    clone = tmp_path / "clone"
    git(clone, "branch", "twice/main")
    git(clone, "update-ref", "refs/remotes/twice/main", "HEAD")
    found = opened(tmp_path, clone, base)
    if expected.startswith("refs/"):
        assert found.base_ref() == expected
    else:
        with pytest.raises(CheckoutError, match=expected):
            found.base_ref()


def test_no_base(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    git(repo, "checkout", "--quiet", "--detach")
    with pytest.raises(CheckoutError, match="set its `base`"):
        opened(tmp_path, repo).base_ref()
    git(repo, "checkout", "--quiet", "-b", "work/claude/alice/x")
    with pytest.raises(CheckoutError, match="set its `base`"):
        opened(tmp_path, repo).base_ref()
    git(repo, "checkout", "--quiet", "--orphan", "unborn")
    with pytest.raises(CheckoutError, match="has no commit on 'unborn' yet"):
        opened(tmp_path, repo).base_ref()


# ------------------------------------------------------------------------------------- checkouts


@pytest.mark.parametrize(
    "kind", ["plain", "bare", "worktree", "linked", "packed", "sha256", "of somebody else"]
)
async def test_kinds_of_checkouts(kind: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    origin = repository(tmp_path / "origin")
    match kind:
        case "bare":
            git(tmp_path, "clone", "--quiet", "--bare", str(origin), "repo")
        case "worktree":
            git(origin, "worktree", "add", "--quiet", "-b", "side", str(desk.repo))
        case "linked":
            desk.repo.symlink_to(origin)
        case "sha256":
            desk.repo.mkdir()
            git(desk.repo, "init", "--quiet", "--object-format=sha256", "-b", "main")
            write(desk.repo / "a.txt", lines())
            commit(desk.repo, "init")
        case _:
            origin.rename(desk.repo)
    if kind == "packed":
        git(desk.repo, "gc", "--quiet")
        git(desk.repo, "pack-refs", "--all")
        git(desk.repo, "commit-graph", "write")
        git(desk.repo, "multi-pack-index", "write")
    if kind == "of somebody else":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        for path in (desk.repo, *desk.repo.rglob("*")):
            os.lchown(path, 65534, 65534)
        git(desk.repo, "log", ok=False)  # plain git would want it to be a safe.directory
    await desk.open()
    work = await desk.work()
    assert (work.path / "a.txt").read_text() == lines()
    if kind == "of somebody else":
        await desk.works.close()
        return
    assert work.base_ref == ("refs/heads/side" if kind == "worktree" else "refs/heads/main")
    write(work.path / "n", "x")
    head = commit(work.path, "n")
    assert (await desk.works.state(work.key)).head == head
    if kind == "packed":
        git(desk.repo, "pack-refs", "--all")
    git(desk.repo, "update-ref", work.base_ref, head)
    assert (await desk.works.sweep()).removed == (work.path,)
    assert desk.branch(work) == ""
    await desk.works.close()


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (shutil.rmtree, "is not a directory"),
        (lambda repo: shutil.rmtree(repo / ".git"), "is not a git repository"),
        (lambda repo: write(repo / ".git/config", "[nonsense"), "bad config line 2"),
        (lambda repo: git(repo, "config", "extensions.future", "x"), "uses extensions.future"),
        (lambda repo: git(repo, "config", "extensions.refStorage", "reftable"), "refstorage"),
        (lambda repo: git(repo, "config", "extensions.partialClone", "origin"), "partial clone"),
    ],
)  # fmt: skip
async def test_checkouts_that_cannot_be_used(
    break_it: Callable[[Path], object], why: str, tmp_path: Path
) -> None:
    repo = repository(tmp_path / "repo")
    git(repo, "config", "core.repositoryFormatVersion", "1")
    break_it(repo)
    works = Works(tmp_path / "worktrees", [Checkout("billing", repo)])
    with pytest.raises(CheckoutError, match=f"checkout 'billing'.*{why}"):
        await works.open()
    await works.close()


async def test_one_repository_is_one_checkout(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    (tmp_path / "alias").symlink_to(repo)
    works = Works(tmp_path / "w", [Checkout("a", repo), Checkout("b", tmp_path / "alias")])
    with pytest.raises(CheckoutError, match="'a' and 'b' are one repository"):
        await works.open()
    await works.close()


async def test_one_root_is_one_sidecars(desk: Desk) -> None:
    other = desk.new()
    with pytest.raises(WorkError, match="another sidecar uses"):
        await other.open()
    await other.close()
    await desk.restart()


async def test_a_root_that_is_a_link_is_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "worktrees").symlink_to(tmp_path / "real")
    desk = await Desk(tmp_path).open()
    work = await desk.landed()
    assert work.path.is_relative_to(tmp_path / "real")
    assert (await desk.works.sweep()).removed == (work.path,)
    await desk.works.close()


# --------------------------------------------------------------------------- what was interrupted


class Stop(BaseException):
    """The power went."""


CUTS: dict[str, tuple[type, str]] = {
    "before the branch": (Repository, "create_branch"),
    "before the registration": (Worktree, "_register"),
    "before the files": (Worktree, "_fill"),
    "before it is in place": (Worktree, "_place"),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("after", [False, True])
async def test_making_that_was_cut_off(
    cut: str, after: bool, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cleaned up, as when the process is killed; the next start does it."""
    owner, name = CUTS[cut]
    real = getattr(owner, name)

    def stop(*args: object, **kwargs: object) -> None:
        if after:
            real(*args, **kwargs)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stop)
        patch.setattr(Worktree, "unmake", lambda self: None)
        patch.setattr(Repository, "delete_branch", lambda self, ref, sha: None)
        patch.setattr(Records, "delete", lambda self, key: None)
        with pytest.raises(Stop):
            await desk.work()
    await desk.restart()
    works = await desk.works.works()
    path = desk.root / "claude/c/alice/fix"
    if cut == "before it is in place" and after:
        # It was complete, so it is kept.
        assert [work.path for work in works] == [path]
        assert git(path, "status", "--porcelain") == ""
        assert not (await desk.work()).new
        return
    assert works == []
    assert not path.exists()
    assert git(desk.repo, "for-each-ref", "refs/heads/work") == ""
    assert not (desk.repo / ".git/worktrees").exists()
    assert (await desk.work()).new


@pytest.mark.parametrize("cut", ["put_aside", "delete_branch", "remove", "unregister"])
@pytest.mark.parametrize("after", [False, True])
async def test_removing_that_was_cut_off(
    cut: str, after: bool, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(desk.repo / ".gitignore", "node_modules/\n")
    commit(desk.repo, "ignores")
    work = await desk.landed()
    write(work.path / "node_modules/x/y.js", "x")
    before = {p.name: p.read_bytes() for p in work.path.iterdir() if p.is_file()}
    head = desk.branch(work)
    from sidecar.harness import sweep

    owner: object = {"delete_branch": Repository, "remove": sweep}.get(cut, Worktree)
    real = getattr(owner, cut)

    def stop(*args: object) -> None:
        if after:
            real(*args)
        elif cut == "remove":
            # Half of it.
            path = args[0]
            assert isinstance(path, Path)
            (path / "a.txt").unlink()
            (path / ".git").unlink()
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(owner, cut, stop)
        patch.setattr(sweep, "_put_back", lambda *args: None)
        with pytest.raises(Stop):
            await desk.works.sweep()
    await desk.restart()
    works = await desk.works.works()
    if (cut == "remove" and after) or cut == "unregister":
        assert works == []
        assert desk.branch(work) == ""
        assert not (desk.repo / ".git/worktrees").exists()
    else:
        assert [one.path for one in works] == [work.path]
        assert {p.name: p.read_bytes() for p in work.path.iterdir() if p.is_file()} == before
        assert desk.branch(work) == head
        assert git(work.path, "status", "--porcelain") == ""
        assert (await desk.works.sweep()).removed == (work.path,)
    assert not list((desk.root / ".sidecar/gone").iterdir())
    assert (await desk.work()).new


ENDLESS = """
import asyncio, sys
from pathlib import Path
from tests.harness.kit import Desk

async def main():
    desk = await Desk(Path(sys.argv[1])).open()
    for number in range(1000):
        await desk.landed(f"w{number}")
        if number == 1:
            print("ready", flush=True)
        if number % 2:
            await desk.works.sweep()

asyncio.run(main())
"""


@pytest.mark.parametrize("delay", [0.0, 0.04, 0.11, 0.17, 0.26, 0.35])
async def test_killed_at_any_moment(delay: float, tmp_path: Path) -> None:
    """Afterwards every work is whole, or was never begun."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", ENDLESS, str(tmp_path)],
        cwd=Path(__file__).parent.parent.parent,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    await asyncio.sleep(delay)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    desk = await Desk(tmp_path).open()
    works = await desk.works.works()
    for work in works:
        state = await desk.works.state(work.key)
        assert state.head and state.branch == work.branch == f"work/claude/alice/{work.key.work}"
        # Plain git, killed as well, may have left its file uncommitted: nothing else.
        left = git(work.path, "status", "--porcelain")
        assert left in ("", f"?? {work.key.work}.txt", f"A  {work.key.work}.txt")
    branches = git(desk.repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/work")
    assert sorted(branches.split()) == sorted(work.branch for work in works)
    assert len(git(desk.repo, "worktree", "list").splitlines()) == 1 + len(works)
    assert not list((desk.root / ".sidecar").glob("gone/*"))
    assert not list((desk.root / ".sidecar").glob("new/*"))
    await desk.works.close()


async def test_records_that_were_lost(desk: Desk) -> None:
    work = await desk.work()
    landed = await desk.landed("landed")
    write(work.path / "n", "x")
    commit(work.path, "n")
    await desk.works.close()
    shutil.rmtree(desk.root / ".sidecar")
    write(desk.root / "claude/c/alice/foreign/file", "precious")
    write(desk.root / "claude/c/alice/pointed/.git", f"gitdir: {desk.admin(work)}\n")
    desk.works = desk.new()
    await desk.works.open()
    found = await desk.works.works()
    assert [one.path for one in found] == [work.path, landed.path]
    assert found[0].base == work.base and found[0].name is None
    swept = await desk.works.sweep()
    assert swept.removed == (landed.path,)
    assert [kept.reason for kept in swept.kept] == ["not_landed"]
    async with desk.works.use(NAME) as again:
        assert again.name == NAME and not again.new
    assert (desk.root / "claude/c/alice/foreign/file").read_text() == "precious"


async def test_a_damaged_record(desk: Desk) -> None:
    work = await desk.work()
    write(desk.root / ".sidecar/works/claude/c/alice/fix.json", b"{nonsense")
    await desk.restart()
    assert [one.path for one in await desk.works.works()] == [work.path]


def test_records(tmp_path: Path) -> None:
    from sidecar.harness.records import WorkRecord

    records = Records(tmp_path)
    record = WorkRecord(NAME.key, NAME, "refs/heads/main", "0" * 40, "fix-1", 12.5, Stage.MAKING)
    assert records.get(NAME.key) is None
    records.put(record)
    assert records.get(NAME.key) == record
    assert list(records.all()) == [record]
    path = tmp_path / "claude/c/alice/fix.json"
    assert path.stat().st_mode & 0o777 == 0o600
    records.delete(NAME.key)
    records.delete(NAME.key)
    assert list(tmp_path.iterdir()) == []
    # What another file says of itself, or of a path, is not believed.
    records.put(record)
    path.rename(tmp_path / "claude/c/alice/other.json")
    assert list(records.all()) == []
    for bad in ("../x", "", "a/b", "."):
        records.put(replace(record, admin=bad))
        assert records.get(NAME.key) is None


async def test_git_that_fails_in_the_middle(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Worktree, directory: Path, sha: str) -> None:
        raise GitError("checkout-index", "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Worktree, "_fill", fail)
        with pytest.raises(WorkError, match=r"claude/c/alice/fix: .*no space left"):
            await desk.work()
    assert await desk.works.works() == []
    assert git(desk.repo, "for-each-ref", "refs/heads/work") == ""
    assert not (desk.repo / ".git/worktrees").exists()
    assert (await desk.work()).new
