"""Which files count, and what their revision is made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.policy import SHIPPED, EngineOptions, PolicyErrors, load
from sidecar.policy.files import MOST_BYTES, PolicyFile, find, is_test, read, revision
from tests.policy.kit import Folder, policy, rule

ONE = policy(rule("r", "deny", "tool.gated"), name="one")
TWO = policy(rule("r", "deny", "tool.gated"), name="two")


def names(paths: list[Path], top: Path) -> list[str]:
    return [str(path.relative_to(top)) for path in paths]


def test_a_folder_is_its_yaml_files_in_order(folder: Folder) -> None:
    for name in ("b.yaml", "a.yml", "sub/c.yaml", "a_test.yaml", "notes.txt", ".hidden.yaml"):
        folder.write(name, "")
    folder.write(".git/config.yaml", "")
    folder.write("..2026_01_01/b.yaml", "")
    found = find([folder.path])
    assert names(found, folder.path) == ["a.yml", "a_test.yaml", "b.yaml", "sub/c.yaml"]
    assert [is_test(path) for path in found] == [False, True, False, False]


def test_each_file_counts_once(folder: Folder) -> None:
    one = folder.write("one.yaml", ONE)
    assert find([one, folder.path, one]) == [one]


def test_a_folder_that_leads_to_itself_ends(folder: Folder) -> None:
    folder.write("one.yaml", ONE)
    (folder.path / "loop").symlink_to(folder.path)
    assert names(find([folder.path]), folder.path) == ["one.yaml"]


def test_a_subfolder_of_a_config_map_is_a_link(folder: Folder) -> None:
    """An item with a path such as ``team/one.yaml`` is mounted like this."""
    folder.write("..2026_01_01_00/team/one.yaml", ONE)
    (folder.path / "..data").symlink_to("..2026_01_01_00")
    (folder.path / "team").symlink_to("..data/team")
    (folder.path / "team" / "back").symlink_to(folder.path)
    assert names(find([folder.path]), folder.path) == ["team/one.yaml"]


def test_endings_in_capitals_count(folder: Folder) -> None:
    one = folder.write("ONE.YAML", ONE)
    folder.write("ONE_test.YML", "")
    assert find([one]) == [one]
    assert [is_test(path) for path in find([folder.path])] == [False, True]


def test_nothing_is_passed_over_in_silence(folder: Folder) -> None:
    """What is not read denies nothing."""
    folder.write("1/2/3/4/5/6/7/8/one.yaml", ONE)
    assert len(find([folder.path])) == 1
    folder.write("1/2/3/4/5/6/7/8/9/two.yaml", TWO)
    with pytest.raises(PolicyErrors, match=r"holds folders more than 8 deep: .*/8/9"):
        find([folder.path])


def test_a_folder_without_policies_is_told(folder: Folder) -> None:
    """A mount that went wrong looks like this, and allows everything."""
    folder.write("here/one.yaml", ONE)
    tests = folder.write("tests/one_test.yaml", "").parent
    (folder.path / "none").mkdir()
    loaded = load([folder.path / "here", folder.path / "none", tests], shipped=())
    told = "warning: holds no policy: there is no .yaml or .yml file here, or only tests"
    assert [str(each) for each in loaded.warnings] == [
        f"{folder.path / 'none'}: {told}",
        f"{tests}: {told}",
    ]


def test_a_mounted_config_map(folder: Folder) -> None:
    """Files are links into ``..data``, itself a link to a folder with a date in its name."""
    folder.write("..2026_01_01_00/one.yaml", ONE)
    (folder.path / "..data").symlink_to("..2026_01_01_00")
    (folder.path / "one.yaml").symlink_to("..data/one.yaml")
    assert names(find([folder.path]), folder.path) == ["one.yaml"]
    assert (
        load([folder.path], shipped=()).revision
        == load([folder.path / "one.yaml"], shipped=()).revision
    )


def test_everything_that_is_missing_is_told_at_once(folder: Folder) -> None:
    other = folder.write("notes.txt", "")
    with pytest.raises(PolicyErrors) as caught:
        find([folder.path / "gone", other, folder.path / "gone.yaml"])
    assert [fault.message for fault in caught.value.faults] == [
        "is not there; name a file or a folder",
        "is no .yaml file",
        "is not there; name a file or a folder",
    ]


def test_what_is_no_file_is_not_read(folder: Folder) -> None:
    pipe = folder.path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(PolicyErrors, match="is not a file"):
        read(find([pipe]))


def test_files_are_bounded(folder: Folder) -> None:
    large = folder.path / "large.yaml"
    large.write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(PolicyErrors, match="is larger than 4 MiB"):
        read([large])


def test_a_file_that_is_no_text(folder: Folder) -> None:
    file = folder.path / "p.yaml"
    file.write_bytes(b"kind: Policy\nname: \xff\n")
    with pytest.raises(PolicyErrors) as caught:
        load([file], shipped=())
    (fault,) = caught.value.faults
    assert (fault.line, fault.column, fault.message) == (2, 7, "is not UTF-8 text")


def test_the_revision_is_of_names_and_contents(folder: Folder) -> None:
    def of(*texts: tuple[str, str], engine: str = "cel", default: str = "allow") -> str:
        files = [PolicyFile(Path(name), name, text.encode()) for name, text in texts]
        return revision(files, engine, default)

    base = of(("a.yaml", ONE), ("b.yaml", TWO))
    assert base == of(("/elsewhere/a.yaml", ONE), ("/etc/b.yaml", TWO))
    others = {
        of(("a.yaml", ONE)),
        of(("b.yaml", ONE), ("a.yaml", TWO)),
        of(("b.yaml", TWO), ("a.yaml", ONE)),
        of(("a.yaml", ONE + " "), ("b.yaml", TWO)),
        of(("a.yaml", ONE + TWO), ("b.yaml", "")),
        of(("a.yaml", ONE), ("b.yaml", TWO), default="deny"),
        of(("a.yaml", ONE), ("b.yaml", TWO), engine="celpy"),
    }
    assert len(others | {base}) == 8


def test_tests_take_no_part_in_the_revision(folder: Folder) -> None:
    folder.write("one.yaml", ONE)
    before = load([folder.path], shipped=()).revision
    folder.write("one_test.yaml", "kind: PolicyTest\n")
    assert load([folder.path], shipped=()).revision == before


def test_shipped_policies_come_first_and_count(folder: Folder) -> None:
    file = folder.write("one.yaml", ONE)
    revisions = {
        load([file], shipped=shipped).revision
        for shipped in ((), ("gating",), ("labels",), ("gating", "labels"), SHIPPED)
    }
    assert len(revisions) == 5
    loaded = load([file], options=EngineOptions())
    assert loaded.policy.all_rules()[-1].id == "labels/outside"  # type: ignore[attr-defined]


def test_a_missing_shipped_policy_is_an_error() -> None:
    with pytest.raises(PolicyErrors) as caught:
        load([], shipped=("gating", "gatin"))
    (fault,) = caught.value.faults
    assert fault.message == ("the shipped policy 'gatin' is not there; did you mean \"gating\"?")


def test_two_policies_of_one_name(folder: Folder) -> None:
    with pytest.raises(PolicyErrors) as caught:
        folder.load(ONE, ONE)
    (fault,) = caught.value.faults
    assert 'the policy "one" is in' in fault.message
    assert fault.file.endswith("policy1.yaml")
