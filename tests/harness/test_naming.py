"""Slugs: collision-free, also where a file system does not tell case apart."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sidecar.harness.naming import WorkKey, WorkName, is_slug, key_of_slugs, new_work, slug

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)
PLAIN = st.from_regex(r"[a-z0-9-]{1,48}", fullmatch=True)
NEAR = st.from_regex(r"[aAwW-]{0,3}-?(?:[0-9a-f]{8})?", fullmatch=True).filter(bool)


@given(TEXTS | PLAIN | NEAR)
@example("w")
@example("W")
@example("-")
@example("é" * 60)
@example("a" * 48)
@example("a" * 49)
def test_a_slug_is_one_plain_file_name(text: str) -> None:
    found = slug(text)
    assert is_slug(found)
    assert len(found) <= 48
    assert found == found.lower()
    assert found[0] not in "-." and found[-1] != "-"
    lossless = found == text
    assert lossless or (found[-9] == "-" and set(found[-8:]) <= set("0123456789abcdef"))


@given(TEXTS | NEAR, TEXTS | NEAR)
def test_two_texts_have_two_slugs(one: str, other: str) -> None:
    assume(one != other)
    assert slug(one) != slug(other)


@given(TEXTS | NEAR)
def test_nobody_can_be_named_like_the_slug_of_another(text: str) -> None:
    found = slug(text)
    assert slug(found) == found if found == text else slug(found) != found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fix-login", "fix-login"),
        ("a", "a"),
        ("w-1a2b3c4d", "w-1a2b3c4d"),
        ("Fix Login", "fix-login-6bf6e289"),
        ("fix_login", "fix-login-31d9d38a"),
        ("foo-1a2b3c4d", "foo-1a2b3c4d-"),
        ("../../etc", "etc-"),
        ("-x", "x-"),
        ("--force", "force-"),
        ("HEAD", "head-"),
        ("x.lock", "x-lock-"),
        ("a@{1}", "a-1-"),
        ("日本", "x-"),
        ("W", "xw-"),
        ("a\u202eb", "a-b-"),
        ("x\x00y", "x-y-"),
    ],
)
def test_slugs(text: str, expected: str) -> None:
    found = slug(text)
    assert found.startswith(expected)
    assert found == expected or expected.endswith("-")


def test_forms_of_one_letter_are_two_names() -> None:
    assert slug("\u00e9") != slug("e\u0301")
    assert slug("Foo") != slug("foo") != slug("FOO") != slug("Foo")


def test_generated_names_are_their_own_slugs() -> None:
    names = {new_work() for _ in range(50)}
    assert len(names) == 50
    assert all(slug(name) == name for name in names)


@pytest.mark.parametrize("text", ["", "x" * 4097])
def test_what_can_have_no_slug(text: str) -> None:
    with pytest.raises(ValueError, match="1 to 4096 characters"):
        slug(text)


@given(TEXTS, TEXTS, TEXTS)
def test_a_branch_is_a_valid_ref(harness: str, principal: str, work: str) -> None:
    key = WorkName(harness, "c", principal, work).key
    assert key.branch == f"refs/heads/work/{key.harness}/{key.principal}/{key.work}"
    assert key.agent == f"harness:{key.harness}/c/{key.principal}/{key.work}"
    # git check-ref-format(1): nothing of what it forbids can come up.
    assert set(key.branch) <= set("abcdefghijklmnopqrstuvwxyz0123456789-/")
    assert "//" not in key.branch and not key.branch.endswith("/")


@pytest.mark.parametrize("name", ["x" * 100, "@", "stash", "a" * 40, "FETCH_HEAD", "x.lock", "-d"])
def test_git_takes_the_branch(name: str) -> None:
    branch = WorkName("claude", "c", "alice", name).key.branch
    subprocess.run(["git", "check-ref-format", branch], check=True)


def test_keys_of_slugs() -> None:
    assert key_of_slugs(["a", "b", "c", "d"]) == WorkKey("a", "b", "c", "d")
    assert key_of_slugs(["a", "b", "c"]) is None
    assert key_of_slugs(["a", "b", "c", "D"]) is None
    assert key_of_slugs(["a", "b", "c", ".."]) is None
