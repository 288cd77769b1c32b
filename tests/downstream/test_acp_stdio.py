"""``sidecar acp`` in a process of its own, spoken to by the client of ACP's own Python SDK."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import pytest
import yaml
from acp import schema

from sidecar.admin.client import AdminClient
from sidecar.cli import parser
from tests.harness.agent.kit import command, script
from tests.harness.kit import git, repository
from tests.kit.running import ROOT, Sidecar, started, with_defaults

PATIENCE = 90.0
COMMIT = (
    "echo fixed > login.txt && git add login.txt && "
    "git -c user.name=a -c user.email=a@example.org commit -qm 'Fix the login'"
)
BASH = {
    "ask": {
        "toolCallId": "t1",
        "title": "git commit",
        "kind": "execute",
        "rawInput": {"command": COMMIT},
    },
    "run": COMMIT,
}


class Screen(acp.Client):
    """An editor that keeps what it hears."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.questions: list[Any] = []
        self.answer = "allow"
        self.changed = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.changed.set()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> acp.RequestPermissionResponse:
        self.questions.append((tool_call, options))
        self.changed.set()
        outcome = schema.AllowedOutcome(outcome="selected", option_id=self.answer)
        return acp.RequestPermissionResponse(outcome=outcome)

    async def until(self, what: Any) -> Any:
        async with asyncio.timeout(PATIENCE):
            while not (found := what()):
                self.changed.clear()
                await self.changed.wait()
            return found

    def kinds(self) -> list[str]:
        return [update.session_update for update in self.updates]

    def waiting(self) -> list[str]:
        metas = [update.field_meta or {} for update in self.updates]
        return [meta["sidecar/waiting"]["id"] for meta in metas if "sidecar/waiting" in meta]


class Place:
    """A configuration with a checkout and the scripted agent."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.checkout = repository(folder / "billing")
        agent = list(command(store=str(folder / "sessions"), mode="default"))
        self.config = {
            "harnesses": {"claude": {"command": agent}},
            "checkouts": {"billing": str(self.checkout)},
            "worktrees": str(folder / "worktrees"),
            "policy": {"shipped": ["coding-agents"]},
            **more,
        }


def words(file: Path) -> list[str]:
    """What editors start, as the page says."""
    return ["-m", "sidecar", "acp", "claude", "--config", str(file)]


@asynccontextmanager
async def editor(file: Path, *arguments: str) -> AsyncIterator[tuple[Any, Screen]]:
    """An editor that has started ``sidecar acp claude``."""
    screen = Screen()
    async with acp.spawn_agent_process(
        screen,
        sys.executable,
        *words(file),
        *arguments,
        cwd=file.parent,
        # Read by nobody, a pipe would fill.
        transport_kwargs={"stderr": subprocess.DEVNULL, "shutdown_timeout": 20.0},
    ) as (connection, process):
        started = await asyncio.wait_for(connection.initialize(protocol_version=1), PATIENCE)
        assert started.protocol_version == 1
        assert started.agent_capabilities.load_session
        yield connection, screen
    assert process.returncode == 0


def base(sidecar: Sidecar) -> str:
    return sidecar.mcp.removesuffix("/mcp")


async def opened_soon(agent: Any, folder: Path) -> str:
    """A session in this folder, as soon as there can be one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                opened = await agent.new_session(cwd=str(folder), mcp_servers=[])
            except acp.RequestError:
                await asyncio.sleep(0.1)
            else:
                return str(opened.session_id)


async def test_an_editor_joined_to_a_sidecar(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with started(place.config) as sidecar:
        admin = AdminClient(sidecar.admin)
        async with editor(sidecar.file, "--url", base(sidecar)) as (agent, screen):
            opened = await agent.new_session(cwd=str(place.checkout), mcp_servers=[])
            session = opened.session_id
            work = opened.field_meta["sidecar/work"]
            task = script({"plan": [{"content": "fix it", "status": "pending"}]}, BASH)
            prompt = asyncio.create_task(
                agent.prompt(session_id=session, prompt=[acp.text_block(task)])
            )
            (call,) = await screen.until(screen.waiting)
            # The same call that everybody else sees.
            assert [row["id"] for row in admin.calls("waiting")] == [call]
            admin.answer(call, approve=True, why="go on")
            done = await asyncio.wait_for(prompt, PATIENCE)
            assert done.stop_reason == "end_turn"
            told = done.field_meta["sidecar/result"]
            assert [commit["subject"] for commit in told["commits"]] == ["Fix the login"]
            assert told["head"] == git(place.checkout, "rev-parse", work["branch"])
            assert screen.questions == []
            assert {"plan", "tool_call"} <= set(screen.kinds())

            prompt = asyncio.create_task(
                agent.prompt(session_id=session, prompt=[acp.text_block(script(BASH))])
            )
            await screen.until(lambda: len(screen.waiting()) == 2)
            await agent.cancel(session_id=session)
            assert (await asyncio.wait_for(prompt, PATIENCE)).stop_reason == "cancelled"

        async with editor(sidecar.file, "--url", base(sidecar)) as (agent, screen):
            listed = await agent.list_sessions(cwd=str(place.checkout))
            assert [row.session_id for row in listed.sessions] == [session]
            await agent.load_session(session_id=session, cwd=str(place.checkout), mcp_servers=[])
            assert screen.kinds()[0] == "user_message_chunk"
            done = await asyncio.wait_for(
                agent.prompt(session_id=session, prompt=[acp.text_block(script({"say": "back"}))]),
                PATIENCE,
            )
            assert done.stop_reason == "end_turn"
            assert done.field_meta["sidecar/work"] == work
            with pytest.raises(acp.RequestError) as caught:
                await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
            assert "`checkouts`" in str(caught.value)

            # A checkout that is configured meanwhile is one at once.
            more = {**place.config["checkouts"], "other": str(repository(tmp_path / "other"))}
            sidecar.write({**sidecar.config, "checkouts": more})
            sidecar.signal(signal.SIGHUP)
            assert (await opened_soon(agent, tmp_path / "other")).startswith("other/w-")


async def test_an_editor_without_a_sidecar(tmp_path: Path) -> None:
    place = Place(tmp_path, parking={"elicit": True})
    file = tmp_path / "sidecar.yaml"
    file.write_text(yaml.safe_dump(with_defaults(place.config, tmp_path)))
    async with editor(file) as (agent, screen):
        opened = await agent.new_session(cwd=str(place.checkout), mcp_servers=[])
        done = await asyncio.wait_for(
            agent.prompt(session_id=opened.session_id, prompt=[acp.text_block(script(BASH))]),
            PATIENCE,
        )
        assert done.stop_reason == "end_turn"
        (asked,) = done.field_meta["sidecar/result"]["asks"]
        assert asked["answer"] == "allow"
        ((call, options),) = screen.questions
        assert call.tool_call_id == "t1"
        assert [option.kind for option in options] == ["allow_once", "reject_once"]


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", "acp", *arguments, "--config", str(file)],
        cwd=file.parent,
        input="",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_what_cannot_be_started_is_said_on_stderr(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    place = Place(tmp_path)
    file.write_text(yaml.safe_dump(with_defaults(place.config, tmp_path)))
    unknown = run(file, "nobody")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "there is no harness 'nobody' in `harnesses`; there are: claude" in unknown.stderr
    lock = tmp_path / "worktrees/.sidecar/lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        alone = run(file, "claude", "--alone")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "another sidecar uses" in alone.stderr


async def test_nothing_but_messages_on_stdout(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with started(place.config) as sidecar:
        lines = [
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}},
            {"jsonrpc": "2.0", "id": 2, "method": "session/set_mode", "params": {}},
        ]
        sent = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b"{\n\n"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words(sidecar.file),
            *("--url", base(sidecar)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(sent)
        async with asyncio.timeout(PATIENCE):
            told = [json.loads(await process.stdout.readline()) for _ in range(3)]
            assert [each["id"] for each in told] == [1, 2, None]
            # The sidecar goes, and the editor is not left with an agent that says nothing.
            sidecar.stop()
            assert await process.stdout.read() == b""
            assert await process.wait() == 1


def test_what_docs_have_editors_start() -> None:
    page = (ROOT / "docs" / "agents.md").read_text()
    blocks = [json.loads(body) for body in re.findall(r"^```json\n(.*?)^```", page, re.M | re.S)]
    assert len(blocks) == 2
    zed, jetbrains = (block["agent_servers"]["Claude, through the sidecar"] for block in blocks)
    assert zed.pop("type") == "custom"
    assert zed == jetbrains
    assert zed["command"] == "sidecar"
    given = parser().parse_args(zed["args"])
    assert (given.run.__name__, given.harness, given.alone) == ("acp", "claude", False)
    assert zed["args"][:3] == ["acp", "claude", "--config"] == words(Path("x"))[2:5]
