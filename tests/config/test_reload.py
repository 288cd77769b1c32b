"""What an edit changes, and what of it waits for a restart."""

from __future__ import annotations

import dataclasses

import pytest

from sidecar.config import Config, SecretRef
from sidecar.config.reload import LIVE, RESTART, Change, applicable, difference
from tests.config.conftest import Load

BASE = """\
servers:
  a: {url: http://a}
  b: {url: http://b, headers: {h: one}}
  c: {command: [c]}
"""


@pytest.fixture
def change(good: Load) -> object:
    def run(new: str, old: str = BASE) -> Change:
        return difference(good(old), good(new))

    return run


def test_no_change(change: object) -> None:
    assert callable(change)
    assert not change(BASE)
    # The same things, written otherwise.
    assert not change(BASE.replace("{url: http://a}", "\n    url: http://a\n    timeout: 30s"))


def test_servers(change: object) -> None:
    assert callable(change)
    new = "servers: {c: {command: [c]}, b: {url: http://b, headers: {h: two}}, d: {command: [d]}}"
    assert change(new) == Change(added=("d",), removed=("a",), changed=("b",), reordered=True)
    assert change(BASE + "  d: {command: [d]}\n") == Change(added=("d",))
    assert change("servers: {a: {url: http://a}}") == Change(removed=("b", "c"))


def test_other_settings(change: object, tmp_path: object) -> None:
    assert callable(change)
    new = BASE + (
        "limits: {depth: 9}\nretry: {attempts: 1}\ndrain: {grace: 1s}\nlist_wait: 2s\n"
        "name: x\nlisten: 127.0.0.1:1\nhealth: {listen: off}\nadmin: {listen: off}\n"
        "separator: '--'\nstore: memory\n"
    )
    assert change(new) == Change(
        settings=("list_wait", "retry", "drain", "limits"),
        needs_restart=("name", "listen", "health", "admin", "separator", "store"),
    )


def test_agents(good: Load, tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    for name in "xyz":
        (tmp_path / name).write_text(name)
    old = good("agents: {x: {token_file: x}, y: {token_file: y}}")
    new = good("agents: {z: {token_file: z}, y: {token_file: x}}")
    assert difference(old, new) == Change(agents=("z", "x", "y"))
    token = good("auth: {token_file: x}")
    assert difference(good(""), token) == Change(settings=("auth",))


def test_where_a_secret_is_counts_and_not_its_value(good: Load) -> None:
    text = "servers: {a: {url: http://a, headers: {h: {from_env: V}}}}"
    assert not difference(good(text, env={"V": "1"}), good(text, env={"V": "2"}))


def test_what_can_take_effect_now(good: Load) -> None:
    old = good(BASE)
    new = good("listen: 127.0.0.1:1\nstore: memory\nlimits: {depth: 9}\nservers: {}")
    now = applicable(old, new)
    assert now == dataclasses.replace(old, limits=new.limits, servers={})
    assert difference(old, now).needs_restart == ()


def test_every_field_is_one_or_the_other() -> None:
    """A field that is added to Config must say whether it waits for a restart."""
    told = {*RESTART, *LIVE, "servers", "agents", "path", "notices"}
    assert {field.name for field in dataclasses.fields(Config)} == told
    assert SecretRef(literal="a") != SecretRef(literal="b")
