"""Profiles are data that holds together, and what they guard against is found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import get_args

import pytest

from sidecar.config import types
from sidecar.harness.profiles import PROFILES, Profile, ProfileError
from sidecar.harness.profiles.guard import at_home, loosened
from sidecar.harness.session_modes import asks

EACH = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


def test_there_is_one_for_each_name_that_may_be_configured() -> None:
    assert set(PROFILES) == set(get_args(types.Profile))


@EACH
def test_the_mode_that_is_set_is_one_that_asks(profile: Profile) -> None:
    asking = profile.asking
    assert not asking.mode or asking.mode in asking.modes
    assert asking.open_ended or (asking.mode and asking.reported)
    for mode in (
        "auto",
        "yolo",
        "bypassPermissions",
        "acceptEdits",
        "agent-full-access",
        "autoEdit",
    ):
        assert not asks(asking, mode, ""), mode
        assert not asks(asking, mode, mode), mode


@EACH
def test_what_is_configured_does_not_loosen_it(profile: Profile) -> None:
    loose = {
        "INITIAL_AGENT_MODE": "agent-full-access",
        "OPENCODE_CONFIG_CONTENT": '{"permission": {"bash": "allow"}, "model": "m"}',
        "OPENCODE_PERMISSION": '{"edit": "allow"}',
        "OPENCODE_DISABLE_PROJECT_CONFIG": "0",
        "CLAUDE_AGENT_ACP_PROTOCOL": "v2",
        "MORE": "1",
    }
    env = profile.environment(loose, "/w")
    assert env["MORE"] == "1"
    for name, value in profile.forced.items():
        assert env[name] == value
    for name in profile.merged:
        merged = json.loads(env[name])
        asked = merged.get("permission", merged)
        assert (asked["bash"], asked["edit"]) == ("ask", "ask")
    if profile.name == "opencode":
        assert json.loads(env["OPENCODE_CONFIG_CONTENT"])["model"] == "m"
        assert "/w/AGENTS.md" in json.loads(env["OPENCODE_CONFIG_CONTENT"])["instructions"]


def test_what_is_configured_comes_before_what_is_only_usual() -> None:
    env = PROFILES["claude"].environment({"DISABLE_AUTOUPDATER": "0"}, "/w")
    assert env["DISABLE_AUTOUPDATER"] == "0"


@pytest.mark.parametrize("text", ["not json", "[]", "7", "[" * 100_000])
def test_a_variable_that_must_hold_json_and_does_not(text: str) -> None:
    with pytest.raises(ProfileError, match=r"env\.OPENCODE_CONFIG_CONTENT must be a JSON object"):
        PROFILES["opencode"].environment({"OPENCODE_CONFIG_CONTENT": text}, "/w")


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        ("codex", ".codex/rules/x.rules", ""),
        ("codex", ".codex/hooks.json", ""),
        ("codex", ".codex/hooks/a.sh", ""),
        ("codex", ".codex/config.toml", ""),
        ("opencode", ".opencode/plugin/x.js", ""),
        ("opencode", ".opencode/plugins/deep/x.ts", ""),
        ("opencode", "opencode.json", '{"plugin": ["./x.js"]}'),
        ("opencode", "opencode.jsonc", '{ /* comment */ "model": "m"}'),
        ("opencode", ".opencode/opencode.json", '{"plugin": [], "plugin": 1}'),
        ("qwen", ".qwen/settings.json", "{}"),
        ("qwen", ".qwen/extensions/x/y.json", ""),
        ("generic", ".mcp.json", "{}"),
        ("generic", ".codex/anything", ""),
    ],
)
def test_a_file_that_loosens_it_is_found(tmp_path: Path, name: str, path: str, text: str) -> None:
    put(tmp_path / path, text)
    [loose] = loosened(PROFILES[name], tmp_path)
    assert path.startswith(loose.path)
    assert loose.why


@pytest.mark.parametrize(
    ("name", "path", "text"),
    [
        # Made harmless by what the session is opened with, and tried with the real one.
        ("claude", ".claude/settings.json", "{}"),
        ("claude", ".mcp.json", "{}"),
        ("codex", ".codex/README.md", ""),
        ("codex", ".codexrc", ""),
        ("opencode", "opencode.json", '{"permission": {"bash": "allow"}, "mcp": {}}'),
        ("opencode", ".opencode/agent/a.md", ""),
        ("gemini", ".gemini/settings.json", "{}"),
        ("generic", "README.md", ""),
        ("generic", "src/.codex/rules/x", ""),
    ],
)
def test_others_are_not(tmp_path: Path, name: str, path: str, text: str) -> None:
    put(tmp_path / path, text)
    assert loosened(PROFILES[name], tmp_path) == ()


@EACH
def test_an_empty_folder_holds_nothing(tmp_path: Path, profile: Profile) -> None:
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".opencode").mkdir()
    assert loosened(profile, tmp_path) == ()


def test_links_and_what_is_no_file_count(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    put(elsewhere / "rules" / "x")
    work = tmp_path / "work"
    work.mkdir()
    (work / ".codex").symlink_to(elsewhere)
    assert [loose.path for loose in loosened(PROFILES["codex"], work)] == [".codex/rules/x"]
    (work / "opencode.json").symlink_to(work / "nothing")
    os.mkfifo(work / "opencode.jsonc")
    (work / ".opencode").mkdir()
    (work / ".opencode" / "plugin").write_text("a file in place of a folder")
    assert [loose.path for loose in loosened(PROFILES["opencode"], work)] == [
        ".opencode/plugin",
        "opencode.json",
        "opencode.jsonc",
    ]


def test_at_most_so_many_are_told(tmp_path: Path) -> None:
    for number in range(30):
        put(tmp_path / ".codex" / "rules" / f"{number}")
    assert len(loosened(PROFILES["codex"], tmp_path)) == 1


def test_what_lies_at_home_is_told(tmp_path: Path) -> None:
    put(tmp_path / "home" / ".codex" / "rules" / "x")
    put(tmp_path / "codex" / "rules" / "y")
    env = {"HOME": str(tmp_path / "home"), "CODEX_HOME": str(tmp_path / "codex")}
    assert at_home(PROFILES["codex"], env) == (
        str(tmp_path / "codex" / "rules"),
        str(tmp_path / "home" / ".codex" / "rules"),
    )
    assert at_home(PROFILES["codex"], {"HOME": str(tmp_path / "codex")}) == ()
    assert at_home(PROFILES["codex"], {}) == ()
