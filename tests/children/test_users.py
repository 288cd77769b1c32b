"""Children of another user, started from this process: what they are, and what is refused."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import children, privileges, users
from sidecar.privileges import PrivilegeError
from tests.children.users import CHILD, needs_users, python

PROBE = str(Path(__file__).with_name("probe.py"))


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="home-") as name:
        os.chown(name, CHILD, CHILD)
        try:
            yield Path(name)
        finally:
            users.run_as(None)


async def output(*command: str, **env: str) -> tuple[str, str]:
    child = await children.spawn(command, env=env, name="t")
    child.stdin.close()
    try:
        return (await child.stdout.read()).decode(), child.tail()
    finally:
        await child.end(1)


@needs_users
async def test_from_full_root_a_child_has_nothing_of_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/somewhere/of/ours")
    users.run_as(users.User.of(CHILD, home))
    out, _ = await output(python(), PROBE, "{}", EXTRA="1")
    found = json.loads(out)
    assert found["Uid"] == found["Gid"] == [str(CHILD)] * 4
    assert {tuple(found[f"Cap{each}"]) for each in ("Inh", "Prm", "Eff", "Amb", "Bnd")} == {
        ("0" * 16,)
    }
    assert (found["NoNewPrivs"], found["Groups"], found["root"]) == (["1"], [], "EPERM")
    assert (found["HOME"], found["USER"], found["home"]) == (str(home), str(CHILD), "ok")
    assert "EXTRA" in found["names"] and "TMPDIR" not in found["names"]
    assert users.exposure() == ""


@needs_users
async def test_its_pipes_are_its_own_and_it_begins_at_home(home: Path) -> None:
    users.run_as(users.User.of(CHILD, home))
    out, tail = await output("/bin/sh", "-c", "pwd > /dev/stdout; echo heard > /dev/stderr; id -G")
    assert (out.splitlines(), tail) == ([str(home), str(CHILD)], "heard\n")


@needs_users
async def test_a_program_that_is_not_there_never_runs_as_us(home: Path) -> None:
    users.run_as(users.User.of(CHILD, home))
    with pytest.raises(children.SpawnError, match="does not exist"):
        await children.spawn(["/none/such"], env={}, name="t")
    script = home / "script"
    script.write_text("#!/bin/sh\nid -u\n")
    with pytest.raises(children.SpawnError, match="may not be run"):
        await children.spawn([str(script)], env={}, name="t")


def test_what_is_no_user_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PrivilegeError, match="knows no home of uid 3999999999; give a folder"):
        users.User.of(3999999999, None)
    with pytest.raises(PrivilegeError, match="install -d -m 700 -o 3999999999 -g 3999999999"):
        users.User.of(3999999999, tmp_path / "none")
    with pytest.raises(PrivilegeError, match=f"belongs to uid {os.getuid()}"):
        users.User.of(3999999999, tmp_path)
    found = users.User.of(os.getuid(), tmp_path)
    assert (found.uid, found.home) == (os.getuid(), tmp_path)
    with pytest.raises(PrivilegeError, match="is the sidecar's own uid"):
        users.run_as(found)
    assert users.current() is None
    assert f"(uid {os.geteuid()})" in users.exposure()


@pytest.mark.parametrize(
    ("text", "found"), [("10001", (10001, 10001)), ("10001:5", (10001, 5)), ("0:1", None)]
)
def test_the_worker_in_the_environment(text: str, found: tuple[int, int] | None) -> None:
    if found is not None:
        assert privileges.worker_of(text) == found
        return
    for bad in (text, "", "x", "1:", "-1", "1:x", "4294967296", "1:2:3", "¹"):
        with pytest.raises(PrivilegeError, match="SIDECAR_USER is UID or UID:GID"):
            privileges.worker_of(bad)


def test_nothing_is_lent_that_is_not_there() -> None:
    before = privileges.effective()
    with privileges.lent([privileges.CHOWN]), privileges.lent([]):
        assert privileges.effective() == before
    assert privileges.effective() == before
    assert privileges.missing([]) == []
    lacking = privileges.missing(privileges.HELD)
    assert all(privileges.has(number) is (name not in lacking) for number, name in NAMES)


NAMES = [(number, privileges.NAMES[number]) for number in privileges.HELD]
