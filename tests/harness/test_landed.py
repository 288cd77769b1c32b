"""Whether work has landed, over every way in which it does or does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.harness.git_checkout import Checkout, Repository
from sidecar.harness.git_landed import Verdict, verdict
from tests.harness.kit import git, lines
from tests.harness.landings import EMPTY, KEEP, LANDINGS, REMOVE, Landing, Scene

# Landed, and kept all the same: nothing is lost by that. No other case may come in here.
SAFE_MISSES = {
    "squashed_then_same_lines_changed": Verdict.LANDED_THEN_CHANGED,
    "rename_squashed_then_base_renamed_again": Verdict.LANDED_THEN_CHANGED,
    "shallow_base_squashed": Verdict.UNRELATED,
    # Which of two commits of a submodule is newer says only the submodule, whose config is read.
    "submodule_further_in_base": Verdict.CONFLICTS,
    "union_merge_squashed_then_changed": Verdict.LANDED_THEN_CHANGED,
}


def of(scene: Scene, private: Path, began: str | None = None) -> Verdict:
    repository = Repository(Checkout("c", scene.path), private)
    repository.open()
    base = repository.commit("refs/heads/main")
    head = repository.commit("refs/heads/work")
    assert base and head
    return verdict(repository, base, head, scene.began if began is None else began)


def test_there_are_all_of_them() -> None:
    assert len({case.name for case in LANDINGS}) == 55
    assert {case.expected for case in LANDINGS} == {KEEP, REMOVE, EMPTY}


@pytest.mark.parametrize("case", LANDINGS, ids=lambda case: case.name)
def test_landed(case: Landing, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "repo")
    case.make(scene)
    before = git(scene.path, "count-objects", "-v")
    found = of(scene, tmp_path / "private")
    if case.expected == REMOVE:
        assert found is SAFE_MISSES.get(case.name, Verdict.LANDED)
    elif case.expected == EMPTY:
        assert found is Verdict.EMPTY
    else:
        assert found in {Verdict.NOT_LANDED, Verdict.CONFLICTS, Verdict.UNRELATED}
    # Asking leaves nothing behind in the repository.
    assert git(scene.path, "count-objects", "-v") == before


def _changed_after(scene: Scene, how: str) -> None:
    """A work that landed by squash, after which the base went on."""
    scene.begin()
    if how.startswith("file"):
        scene.add("n.txt", "one\ntwo\n")
    else:
        scene.edit({1: "worked"})
    scene.squash()
    match how:
        case "file edited":
            scene.add("n.txt", "one\n2\n")
        case "file deleted" | "edit, file deleted":
            name = "n.txt" if how == "file deleted" else "a.txt"
            scene.git("rm", "--quiet", name)
            scene.commit("deleted")
        case "lines edited":
            scene.edit({1: "worked, and changed"})
        case "much later":
            scene.edit({1: "worked, and changed"})
            for number in range(20):
                scene.commit(f"later {number}", "--allow-empty")
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("file edited", Verdict.LANDED_THEN_CHANGED),
        ("file deleted", Verdict.NOT_LANDED),
        ("edit, file deleted", Verdict.LANDED_THEN_CHANGED),
        ("lines edited", Verdict.LANDED_THEN_CHANGED),
        ("much later", Verdict.LANDED_THEN_CHANGED),
    ],
)
def test_landed_then_changed(how: str, expected: Verdict, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "repo")
    _changed_after(scene, how)
    assert of(scene, tmp_path / "private") is expected


def test_amended_while_merging_never_landed(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "repo")
    scene.work()
    scene.on("main")
    scene.git("merge", "--quiet", "--squash", "work")
    scene.write("a.txt", lines({1: "worked, amended"}))
    scene.commit("squashed and amended")
    assert of(scene, tmp_path / "private") is Verdict.CONFLICTS


def test_a_merge_driver_does_not_decide(tmp_path: Path) -> None:
    """In the repository `merge=ours` would make anything look landed."""
    scene = Scene(tmp_path / "repo")
    scene.git("config", "merge.ours.driver", "true")
    scene.add(".gitattributes", "* merge=ours\n")
    scene.work()
    scene.on("main")
    scene.edit({1: "meanwhile"})
    in_place = scene.git("merge-tree", "--write-tree", "--no-messages", "main", "work", ok=False)
    assert in_place == scene.git("rev-parse", "main^{tree}"), "plain git should be fooled"
    assert of(scene, tmp_path / "private") is Verdict.CONFLICTS


def test_replaced_commits_do_not_decide(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "repo")
    scene.work()
    scene.on("main")
    work, main = scene.head("work"), scene.head("main")
    scene.git("replace", work, main)
    assert scene.git("rev-parse", "work^{tree}") == scene.git("rev-parse", "main^{tree}")
    assert of(scene, tmp_path / "private") is Verdict.NOT_LANDED


def test_without_knowing_where_it_began_merged_is_as_good_as_empty(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "repo")
    scene.work()
    scene.merge()
    assert of(scene, tmp_path / "private", began="") is Verdict.EMPTY
    assert of(scene, tmp_path / "private") is Verdict.LANDED
