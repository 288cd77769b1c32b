"""Coding agents, checkouts and the user of children: what is read, and every fault at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from sidecar.config import CheckoutConfig, HarnessConfig, SecretRef
from sidecar.config.reload import Change, applicable, difference
from sidecar.config.schema import schema
from tests.config.conftest import Load, Told

BASE = """\
servers: {time: {command: [t]}, github: {command: [g]}}
worktrees: works
checkouts: {billing: /srv/billing}
"""


def test_what_is_read(good: Load, tmp_path: Path) -> None:
    config = good(
        BASE.replace("{billing: /srv/billing}", "{billing: shop/../bill, sidecar: {path: /s}}")
        + "auth: {token_file: t}\n"
        + """\
harnesses:
  claude: {}
  reviewer: {profile: codex, command: [npx, codex], env: {KEY: {from_env: KEY}}, trusted: true,
             gated: true, mcp: [git*], busy: queue, hold: 90s}
  own: {profile: generic, command: [a]}
sweep: off
children: {user: 10002, home: h}
""",
        env={"KEY": "k"},
        check_secrets=False,
    )
    assert list(config.harnesses) == ["claude", "reviewer", "own"]
    assert config.harnesses["claude"] == HarnessConfig("claude", "claude")
    assert config.harnesses["claude"].hold == 600.0
    assert config.harnesses["reviewer"] == HarnessConfig(
        "reviewer",
        "codex",
        ("npx", "codex"),
        {"KEY": SecretRef(from_env="KEY")},
        trusted=True,
        gated=True,
        mcp=("git*",),
        busy="queue",
        hold=90.0,
    )
    assert config.checkouts == {
        "billing": CheckoutConfig("billing", tmp_path / "bill"),
        "sidecar": CheckoutConfig("sidecar", Path("/s")),
    }
    assert (config.worktrees, config.sweep) == (tmp_path / "works", None)
    assert (config.children_user, config.children_home) == (10002, tmp_path / "h")


def test_without_any_there_is_a_sweep_and_no_folder(good: Load) -> None:
    config = good("children: {user: }\n")
    assert (config.harnesses, config.checkouts, config.worktrees) == ({}, {}, None)
    assert (config.sweep, config.children_user) == (86400.0, None)


def test_every_fault_at_once_with_its_place(told: Told) -> None:
    text = """\
servers:
  time: {command: [t]}
harnesses:
  time: {profile: claude}
  helper: {}
  other: {profile: generic}
  claude: {gated: [x], mcp: [nobody, time], hold: 2, busy: wait, url: http://x}
  prox: {profile: qwen, egress: proxy, env: {HTTP_PROXY: x}}
checkouts:
  a: {base: main}
  b: {path: /b, base: "..", fetch: 1}
  c: 7
sweep: 1s
children: {user: 0, home: /h}
agents:
  x: {token_file: x, harnesses: [clod], checkouts: [a, d]}
"""
    faults = told(text, check_secrets=False)
    assert faults == sorted(faults, key=lambda fault: [int(n) for n in fault.split(":")[1:3]])
    assert {fault.split(" ", 1)[1] for fault in faults} == {
        "harnesses: need worktrees: a folder where coding agents work; add it at the root",
        "harnesses.time: is the name of a server too; they share one name space, so rename one",
        "harnesses.helper: profile is missing: it is one of claude, codex, gemini, opencode, "
        "qwen, generic",
        "harnesses.other: command is missing: generic is no program; name one that speaks ACP",
        "harnesses.claude.gated: expected true or false, got a list",
        'harnesses.claude.mcp[0]: "nobody" matches no server; there are: time',
        'harnesses.claude.hold: "2" is not a duration; write it like 30s, 5m, 24h, 200ms or 1.5s',
        'harnesses.claude.busy: "wait" is not one of refuse, queue',
        "harnesses.claude.url: unknown key; an agent is a program of this machine: write command",
        "harnesses.prox.env: HTTP_PROXY is set by the sidecar where egress is proxy",
        "harnesses.prox.egress: there is no proxy; add egress: {proxy: {}} at the root, or "
        "remove this",
        "checkouts.a: path is missing: The repository's folder.",
        'checkouts.b.base: ".." is no name of a branch; write it like main or origin/main',
        "checkouts.b.fetch: expected true or false, got a number",
        "checkouts.c: expected a path or a mapping, got a number",
        next(fault for fault in faults if " sweep: " in fault).split(" ", 1)[1],
        next(fault for fault in faults if "children.user" in fault).split(" ", 1)[1],
        'agents.x.harnesses[0]: "clod" matches no harness; there are: claude, helper, other, '
        "prox, time",
        'agents.x.checkouts[1]: "d" matches no checkout; there are: a, b, c',
    }
    assert "sidecar.yaml:4:3: harnesses.time: is the name of a server too" in "\n".join(faults)


def test_children_home_needs_a_user(told: Told) -> None:
    assert told("children: {home: /h}") == [
        "sidecar.yaml:1:18: children.home: stands without user: say whose home it is"
    ]


def test_a_harness_needs_checkouts_and_mcp_a_token(told: Told, good: Load) -> None:
    assert told("worktrees: w\nharnesses: {claude: {}}\n") == [
        "sidecar.yaml:2:12: harnesses: need checkouts: git repositories to work in; add "
        "checkouts: {NAME: PATH} at the root"
    ]
    mcp = BASE + "harnesses: {claude: {mcp: [time]}}\n"
    assert told(mcp) == [
        "sidecar.yaml:4:27: harnesses.claude.mcp: needs auth or agents: while no token is asked "
        "for, the agent could use every server without the sidecar knowing that it is the agent"
    ]
    assert good(mcp + "auth: {token_file: t}", check_secrets=False).harnesses["claude"].mcp


def test_a_separator_in_a_name(told: Told) -> None:
    text = BASE + "separator: '-'\nharnesses: {my-claude: {profile: claude}}\n"
    assert told(text) == [
        'sidecar.yaml:5:13: harnesses.my-claude: has the separator "-" in it; rename the harness'
    ]


def test_servers_of_other_files_leave_the_names_alone(told: Told) -> None:
    text = BASE + "harnesses: {claude: {}}\n"
    faults = told(text, '{"mcpServers": {"claude": {"command": "c"}}}')
    assert len(faults) == 1 and "claude" in faults[0] and faults[0].startswith("mcp0.json:1:")


@pytest.mark.parametrize("name", ["-x", "a..b", "a b", "x.lock", ".x", "a/", "@", "a@{1}", "x~1"])
def test_what_is_no_branch(told: Told, name: str) -> None:
    faults = told(f'checkouts: {{a: {{path: /a, base: "{name}"}}}}')
    assert len(faults) == 1 and "is no name of a branch" in faults[0]


def test_the_schema_knows_them() -> None:
    validator = Draft202012Validator(schema())
    good = {
        "harnesses": {"claude": {}, "x": {"profile": "qwen", "hold": "1m", "mcp": ["a*"]}},
        "checkouts": {"a": "/a", "b": {"path": "/b", "fetch": True}},
        "worktrees": "/w",
        "sweep": "off",
        "children": {"user": 10002},
    }
    assert list(validator.iter_errors(good)) == []
    for key, value in (
        ("harnesses", {"x": {"profile": "cursor"}}),
        ("checkouts", {"a": {"base": "main"}}),
        ("checkouts", {"a": 7}),
        ("children", {"user": "agent"}),
        ("sweep", True),
    ):
        assert list(validator.iter_errors({**good, key: value})) != [], key


def test_what_an_edit_changes(good: Load) -> None:
    old = good(BASE + "harnesses: {claude: {}}\n")
    new = good(
        BASE.replace("billing: /srv/billing", "shop: /srv/shop").replace("works", "elsewhere")
        + "harnesses: {claude: {hold: 1m}}\nsweep: 1h\nchildren: {user: 7}\n"
    )
    assert difference(old, new) == Change(
        settings=("harnesses", "checkouts", "sweep"),
        needs_restart=("worktrees", "children.user"),
    )
    now = applicable(old, new)
    assert now.harnesses == new.harnesses and now.worktrees == old.worktrees
    # The first folder needs no restart: nobody works there yet.
    first = good("")
    assert difference(first, old).needs_restart == ()
    assert applicable(first, old).worktrees == old.worktrees
