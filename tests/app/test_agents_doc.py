"""docs/agents.md is true: its commands are run in their order, with the real Claude Code adapter
in front of a model of ours, and its YAML is loaded."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.cli import main
from sidecar.config import load
from sidecar.harness.profiles import PROFILES
from tests.harness.kit import ENV, git, repository
from tests.kit.running import ROOT
from tests.peers import fakemodel, peers

PAGE = (ROOT / "docs" / "agents.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for kind, body in BLOCK.findall(PAGE) if kind == "sh" for line in body.splitlines()
]
YAML = [body for kind, body in BLOCK.findall(PAGE) if kind == "yaml"]
PATIENCE = 120.0
Json = dict[str, Any]
NAME = "-c user.name=a -c user.email=a@example.org"


def obey(text: str) -> str:
    """What our model makes of a task: a command, and a word at the end."""
    if found := re.search(r"once: `([^`]+)`", text):
        return fakemodel.script(shell(found[1]), {"text": "I was denied."})
    if "Describe this repository" in text:
        line = f"echo Notes > NOTES.md && git add NOTES.md && git {NAME} commit -qm Notes"
        return fakemodel.script(shell(line), {"text": "NOTES.md describes it."})
    if "how to run the tests" in text:
        line = f"echo make test >> NOTES.md && git {NAME} commit -qam Tests"
        return fakemodel.script(shell(line), {"text": "It has the line."})
    return text


def shell(line: str) -> Json:
    return {"tool": "Bash", "input": {"command": line, "description": "as asked"}}


class Reader:
    """Somebody who follows the page, in a folder."""

    def __init__(self, folder: Path, model: fakemodel.FakeModel) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.env = {
            **os.environ,
            **{key: value for key, value in ENV.items() if key.startswith("GIT_")},
            "HOME": str(self.home),
            "ANTHROPIC_API_KEY": "sk-ant-of-a-test",
            "PYTHONPATH": str(ROOT),
            "SHELL": "/bin/bash",
        }
        self.process: subprocess.Popen[str] | None = None
        self.call: subprocess.Popen[str] | None = None
        self.id = ""
        self.log = folder / "log"
        config = yaml.safe_load(YAML[0])
        claude = config["harnesses"]["claude"]
        # Where it is installed here, and the model in place of the real one.
        claude["command"] = peers.agent("claude")
        claude["env"] |= {"ANTHROPIC_BASE_URL": model.url, "CLAUDE_CODE_MAX_RETRIES": "0"}
        config |= {
            "listen": "127.0.0.1:0",
            "health": {"listen": "off"},
            "admin": {"listen": f"unix:{folder}/admin.sock"},
            "store": "memory",
        }
        (folder / "sidecar.yaml").write_text(yaml.safe_dump(config))

    def sidecar(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sidecar", *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=self.log.open("a"),
            text=True,
        )

    def done(self, process: subprocess.Popen[str]) -> str:
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, out + self.log.read_text()
        return out

    def run(self, *words: str) -> str:
        """A verb that ends by itself: in this process, which is quicker."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main(words)
        assert code == 0, out.getvalue() + self.log.read_text()
        return out.getvalue()

    def follow(self, command: str) -> None:
        """One line of the page."""
        words = shlex.split(command)
        match words[0], words[1:]:
            case "npm", ["install", "-g", package]:
                pinned = PROFILES["claude"].package
                assert pinned is not None and package == f"{pinned.name}@{pinned.version}"
            case "git", ["clone", _, name]:
                repository(self.folder / "first")
                git(self.folder, "clone", "--quiet", "--bare", "first", "origin")
                git(self.folder, "clone", "--quiet", "origin", name)
            case "git", rest:
                git(self.folder, *rest)
            case "sidecar", ["run"]:
                self.process = self.sidecar("run")
                assert self.process.stdout is not None
                ready = re.match(r"sidecar ready mcp=(\S+)", self.process.stdout.readline())
                assert ready is not None, self.log.read_text()
                self.env["MCP"] = ready[1]
            case "sidecar", ["call", *rest]:
                self.call = self.sidecar("call", *rest, "--url", self.env["MCP"])
                if "how to run" in command:
                    self.approve("--why", "go on")
                    self.answered("kept", 2)
            case "sidecar", ["calls"]:
                self.waits()
            case "sidecar", ["calls", "show", "ID"]:
                shown = self.run("calls", "show", self.id)
                assert "git add NOTES.md" in shown and "claude__execute" in shown
            case "sidecar", ["calls", "approve", "ID", *rest]:
                self.approve(*rest)
                self.answered(None, 1)
            case "sidecar", ["harness", "check", "claude"]:
                told = self.run(*words[1:])
                assert re.search(r"^ok +asks: ", told, re.M) and re.search(
                    r"^ok +denied", told, re.M
                )
            case "sidecar", ["works", *what]:
                told = self.run(*words[1:])
                path = self.folder / "worktrees" / "claude" / "billing" / "agent" / "notes"
                word = {"list": "idle", "sweep": "removed "}[what[0]]
                word = "would remove " if "--dry-run" in what else word
                assert word in told and str(path) in told, told
                assert path.exists() is (told.find("removed ") < 0)
            case "sidecar", rest:
                if "agents.policy.yaml" in rest:
                    (self.folder / "agents.policy.yaml").write_text(YAML[1])
                self.run(*rest)
            case _:
                raise AssertionError(f"no test runs {command}")

    def waits(self) -> str:
        end = time.monotonic() + PATIENCE
        while True:
            listed = json.loads(self.run("calls", "--json"))
            if listed:
                self.id = listed[0]["id"]
                return self.run("calls")
            assert self.call is not None
            assert self.call.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)

    def approve(self, *why: str) -> None:
        self.waits()
        self.run("calls", "approve", self.id, *why)

    def answered(self, continued: str | None, commits: int) -> None:
        assert self.call is not None
        answer = json.loads(self.done(self.call))
        fields = re.findall(r"`(\w+)`", PAGE.partition("| field | |")[2].partition("\n\n")[0])
        assert answer.keys() <= set(fields)
        assert (answer["continued"], len(answer["commits"])) == (continued, commits)
        assert (answer["stop_reason"], answer["dirty"]) == ("end_turn", False)

    def end(self) -> None:
        for process in (self.call, self.process):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)
            if process is not None and process.stdout is not None:
                process.stdout.close()


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(peers.why_no_agent("claude")), reason=peers.why_no_agent("claude"))
def test_the_page_from_the_first_command_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = fakemodel._step
    monkeypatch.setattr(
        fakemodel, "_step", lambda turns: step([(role, obey(text)) for role, text in turns])
    )
    with modelled() as model:
        reader = Reader(tmp_path, model)
        monkeypatch.chdir(tmp_path)
        for name in ("HOME", "ANTHROPIC_API_KEY", "SHELL"):
            monkeypatch.setenv(name, reader.env[name])
        monkeypatch.delenv("SIDECAR_CONFIG", raising=False)
        try:
            for command in COMMANDS:
                reader.follow(command)
        except BaseException:
            print(reader.log.read_text(), file=sys.stderr)
            raise
        finally:
            reader.end()
    assert len(COMMANDS) == 17


@contextlib.contextmanager
def modelled() -> Iterator[fakemodel.FakeModel]:
    """The model, in a thread of its own."""
    found: Future[fakemodel.FakeModel] = Future()
    over = threading.Event()

    async def serve() -> None:
        async with fakemodel.serving() as model:
            found.set_result(model)
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield found.result(PATIENCE)
    finally:
        over.set()
        thread.join()


def test_every_yaml_block(tmp_path: Path) -> None:
    for name in ("builder", "triage"):
        (tmp_path / f"{name}.token").write_text(f"token-of-{name}\n")
    first, policy, last = YAML
    for text in (first, last, f"{last}policies: [agents.policy.yaml]\n"):
        (tmp_path / "sidecar.yaml").write_text(text)
        (tmp_path / "agents.policy.yaml").write_text(policy)
        config = load(tmp_path / "sidecar.yaml", environ={"ANTHROPIC_API_KEY": "k"})
        assert config.harnesses and config.checkouts and config.worktrees
    # A rule of that policy decides before the shipped ones do.
    found = decided(tmp_path / "agents.policy.yaml", ["/w/db/migrations/1.sql"])
    assert found == ("deny", "our-agents/migrations")


def decided(policy: Path, paths: list[str]) -> tuple[object, object]:
    given = {
        "phase": "call",
        "tool": {"name": "claude__edit", "server": "claude", "kind": "permission"},
        "permission": {"kind": "edit", "paths": paths, "inside": True},
    }
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        file = policy.with_name("input.json")
        file.write_text(json.dumps(given))
        words = ["policy", "eval", "--policies", str(policy), "--shipped", "--input", str(file)]
        assert main([*words, "--json"]) == 0
    decision = json.loads(out.getvalue())
    return decision["decision"], decision["rule"]


def test_the_table_of_agents_is_the_profiles() -> None:
    table = PAGE.partition("| `profile` |")[2]
    for name, profile in PROFILES.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
        if profile.package is not None:
            assert f"`{profile.package.name}` {profile.package.version} |" in row
            ends = {"goes_on": "goes on", "end_turn": "ends its turn", "cancelled": "ends its turn"}
            assert row.endswith(f"| {ends[profile.denial]} |")
