"""What is given to agents of another user, and that nothing else is, whatever they put there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.harness import handover
from sidecar.harness.git_checkout import Checkout, CheckoutError
from sidecar.harness.handover import Owner
from sidecar.harness.naming import WorkName
from sidecar.harness.works import WorkError, Works
from tests.harness.kit import commit, git, repository, write

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

THEM = Owner(10002, 10003)
OTHER = 10009


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="handover-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def owners(*paths: Path) -> list[int]:
    return [path.lstat().st_uid for path in paths]


def test_a_tree_is_given_with_its_links_and_not_what_they_lead_to(folder: Path) -> None:
    top, outside = folder / "top", folder / "outside"
    write(outside / "file", "x")
    write(top / "a" / "file", "x")
    write(top / "theirs", "x")
    os.chown(top / "theirs", OTHER, OTHER)
    (top / "link").symlink_to(outside)
    os.link(outside / "file", top / "hard")
    os.mkfifo(top / "pipe")
    handover.tree(top, THEM)
    assert owners(top, top / "a", top / "a" / "file", top / "link") == [10002] * 4
    assert top.stat().st_gid == 10003
    # A second name could be anybody's file, a pipe is nothing of ours.
    assert owners(top / "hard", outside / "file", outside, top / "pipe") == [0] * 4
    assert owners(top / "theirs") == [OTHER]


def test_where_they_write_no_link_is_followed(folder: Path) -> None:
    top, outside = folder / "top", folder / "outside"
    write(outside / "refs" / "file", "x")
    write(top / "refs" / "file", "x")
    (top / "link").symlink_to(outside)
    for call in (
        lambda: handover.everything(top, THEM, "link", "refs"),
        lambda: handover.chain(top, ["link", "refs", "file"], THEM),
        lambda: handover.everything(top / "link", THEM),
        lambda: handover.everything(top / "none", THEM),
        lambda: handover.chain(top, ["none", "file"], THEM),
    ):
        call()
        assert owners(outside, outside / "refs", outside / "refs" / "file", top) == [0] * 4
    handover.chain(top, ["refs", "file"], THEM)
    assert owners(top / "refs", top / "refs" / "file", top) == [10002, 10002, 0]
    write(top / "more" / "deep" / "file", "x")
    handover.everything(top, THEM, "more", "deep")
    assert owners(top / "more", top / "more" / "deep", top / "more" / "deep" / "file") == [
        0, 10002, 10002,
    ]  # fmt: skip


def test_where_they_cannot_come_through(folder: Path) -> None:
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    assert handover.closed(inner, THEM) is None
    (folder / "a").chmod(0o700)
    assert handover.closed(inner, THEM) == folder / "a"
    os.chown(folder / "a", 10002, 0)
    assert handover.closed(inner, THEM) is None
    os.chown(folder / "a", 0, 10003)
    (folder / "a").chmod(0o710)
    assert handover.closed(inner, THEM) is None
    (folder / "a").chmod(0o707)
    assert handover.closed(inner, THEM) == folder / "a"
    assert handover.closed(folder / "none", THEM) == folder / "none"


async def test_a_work_is_theirs_and_fetched_objects_too(folder: Path) -> None:
    origin = repository(folder / "origin")
    checkout = folder / "checkout"
    git(folder, "clone", "--quiet", "origin", "checkout")
    root = folder / "worktrees"

    def works() -> Works:
        return Works(root, [Checkout("c", checkout, fetch=True)], owner=THEM)

    with pytest.raises(CheckoutError, match=f"chown -R 10002:10003 {checkout}"):
        await opened_and_closed(works())
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, 10002, 10003, follow_symlinks=False)
    made = works()
    await made.open()
    try:
        async with made.use(WorkName("h", "c", "p", "w")) as work:
            paths = [work.path, *work.path.rglob("*")]
            assert set(owners(*paths)) == {10002}
            common = checkout / ".git"
            assert set(owners(*(common / "worktrees").glob("*/*"))) == {10002}
            written = [*common.glob("refs/heads/work/**/*"), *common.glob("logs/**/work/**/*")]
            assert len(written) >= 6
            assert set(owners(*written)) == {10002}
        write(origin / "new.txt", "new")
        commit(origin, "More")
        before = set((common / "objects").rglob("*"))
        await made.sweep()
        fetched = set((common / "objects").rglob("*")) - before
        assert fetched
        assert set(owners(*fetched)) == {10002}
    finally:
        await made.close()
    root.chmod(0o700)
    with pytest.raises(WorkError, match=f"chmod o\\+x {root}"):
        await opened_and_closed(works())


async def opened_and_closed(works: Works) -> None:
    try:
        await works.open()
    finally:
        await works.close()
