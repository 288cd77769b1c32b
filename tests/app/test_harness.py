"""Coding agents through a whole sidecar: a real repository, a client that none of us wrote, a
person at the admin API, and an agent that does what its prompt says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from sidecar.admin.client import AdminClient, Refused
from tests.harness.agent.kit import command, script
from tests.harness.kit import git, repository
from tests.kit import processes
from tests.kit.running import NotReady, Sidecar, started

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")

PATIENCE = 60.0
Json = dict[str, Any]
COMMIT = (
    "echo fixed > login.txt && git add login.txt && "
    "git -c user.name=a -c user.email=a@example.org commit -qm 'Fix the login' && echo done"
)


def bash(line: str) -> Json:
    """A permission for a command, as agents ask for it; allowed, it is run."""
    call = {
        "toolCallId": "t1",
        "title": line,
        "kind": "execute",
        "rawInput": {"command": line},
    }
    return {"ask": call, "run": line}


class Place:
    """A checkout, and where its works are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkout = repository(folder / "billing")
        self.worktrees = folder / "worktrees"

    def config(self, **more: Any) -> Json:
        agent = list(command(store=str(self.folder / "sessions")))
        return {
            "harnesses": {"claude": {"command": agent}},
            "checkouts": {"billing": str(self.checkout)},
            "worktrees": str(self.worktrees),
            "store": f"sqlite://{self.folder}/state.db",
            "policy": {"shipped": ["coding-agents"]},
            **more,
        }

    def worktree(self, work: str) -> Path:
        return self.worktrees / "claude" / "billing" / "agent" / work


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def sidecar_of(place: Place, **more: Any) -> Iterator[Sidecar]:
    with started(place.config(**more)) as sidecar:
        yield sidecar


def waiting(sidecar: Sidecar) -> Json:
    """The one call that waits, as soon as it does."""
    admin, end = AdminClient(sidecar.admin), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if rows := admin.calls("waiting"):
            assert len(rows) == 1
            return dict(admin.call(str(rows[0]["id"])))
        time.sleep(0.05)
    raise AssertionError(f"nothing waits\n{sidecar.log()}")


async def ask(sidecar: Sidecar, task: str, work: str) -> Json:
    """The tool's answer, to the official Python client; it calls again while that is told."""
    async with Client(sidecar.mcp) as client:
        while True:
            result = await client.call_tool("claude", {"task": task, "work": work})
            if "sidecar/running" not in (result.meta or {}):
                break
    assert not result.is_error, result
    answer = dict(result.structured_content or {})
    assert json.loads(result.content[0].text) == answer
    return answer


async def test_from_a_task_to_a_sweep(place: Place) -> None:
    with sidecar_of(place) as sidecar:
        admin = AdminClient(sidecar.admin, timeout=PATIENCE)
        async with Client(sidecar.mcp) as client:
            tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["claude"]
        assert tools[0].input_schema["properties"]["checkout"]["enum"] == ["billing"]

        task = script(bash(COMMIT), {"say": "The login is fixed."})
        call = asyncio.create_task(ask(sidecar, task, "fix-login"))
        asked = await asyncio.to_thread(waiting, sidecar)
        assert (asked["tool"], asked["server"]) == ("claude__execute", "claude")
        assert [work["state"] for work in admin.works()] == ["waiting"]
        admin.answer(str(asked["id"]), approve=True, why="go on")
        answer = await call
        assert answer["branch"] == "work/claude/agent/fix-login"
        assert [commit["subject"] for commit in answer["commits"]] == ["Fix the login"]
        assert (answer["stop_reason"], answer["dirty"], answer["continued"]) == (
            "end_turn",
            False,
            None,
        )
        assert answer["last_message"].endswith("The login is fixed.")
        assert answer["head"] == git(place.checkout, "rev-parse", answer["branch"])

        again = await ask(sidecar, script({"say": "Nothing more to do."}), "fix-login")
        assert again["continued"] == "kept"
        assert again["head"] == answer["head"]

        dirty = await ask(sidecar, script({"write": "notes.txt", "text": "x"}), "look-around")
        assert dirty["dirty"] is True

        git(place.checkout, "merge", "--squash", answer["branch"])
        git(place.checkout, "commit", "--quiet", "--message", "Fix the login (#1)")
        would = json.loads(sidecar.cli("works", "sweep", "--dry-run", "--json").stdout)
        assert would["removed"] == [str(place.worktree("fix-login"))]
        assert place.worktree("fix-login").is_dir()

        told = sidecar.cli("works", "sweep")
        kept = place.worktree("look-around")
        assert told.stdout.splitlines()[0] == f"removed {place.worktree('fix-login')}"
        assert told.stdout.splitlines()[1].startswith(f"kept {kept} (")
        assert not place.worktree("fix-login").exists()
        assert "fix-login" not in git(place.checkout, "branch", "--list", "work/*")
        assert kept.is_dir()
        assert {each["reason"] for each in admin.sweep()["kept"]} <= {"dirty", "empty"}
        listed = sidecar.cli("works", "list").stdout.splitlines()
        assert [line.split()[3] for line in listed[1:]] == ["look-around"]


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
async def test_killed_in_mid_prompt_nothing_is_left_and_nothing_lost(
    place: Place, victim: str
) -> None:
    pids = place.folder / "pid"
    with sidecar_of(place) as sidecar:
        steps = [{"write": "half.txt", "text": "half"}, {"fork": str(pids), "daemon": True}]
        task = script(*steps, {"hang": True})
        call = asyncio.create_task(ask(sidecar, task, "fix-login"))
        end = time.monotonic() + PATIENCE
        while not (pids.exists() and pids.read_text()):
            assert time.monotonic() < end and not call.done(), sidecar.log()
            await asyncio.sleep(0.05)
        family = [*sidecar.family, int(pids.read_text())]
        os.kill(sidecar.worker if victim == "worker" else sidecar.pid, signal.SIGKILL)
        await asyncio.to_thread(sidecar.wait)
        with pytest.raises(BaseException):  # noqa: B017 - however the client puts it
            await call
        left = processes.left_of(family, 20)
        assert not left, [processes.command_line(pid) for pid in left]
    assert (place.worktree("fix-login") / "half.txt").read_text() == "half"
    with sidecar_of(place) as sidecar:
        end = time.monotonic() + PATIENCE
        while "its run was interrupted" not in sidecar.log():  # It listens before it has looked.
            assert time.monotonic() < end, sidecar.log()
            await asyncio.sleep(0.05)
        answer = await ask(sidecar, script({"say": "on we go"}), "fix-login")
        assert answer["continued"] in ("resumed", "loaded")
        assert answer["dirty"] is True
        assert (place.worktree("fix-login") / "half.txt").read_text() == "half"


def tools(sidecar: Sidecar) -> Json:
    """By name, the checkouts that each coding agent offers."""
    request = urllib.request.Request(f"{sidecar.rest}/tools")
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = json.load(answer)["tools"]
    return {tool["name"]: tool["inputSchema"]["properties"]["checkout"]["enum"] for tool in found}


def becomes(sidecar: Sidecar, wanted: Json) -> None:
    end = time.monotonic() + PATIENCE
    while tools(sidecar) != wanted:
        assert time.monotonic() < end, f"{tools(sidecar)}\n{sidecar.log()}"
        time.sleep(0.05)


def logs(sidecar: Sidecar, text: str, after: int) -> None:
    end = time.monotonic() + PATIENCE
    while text not in sidecar.log()[after:]:
        assert time.monotonic() < end, sidecar.log()
        time.sleep(0.05)


async def test_harnesses_and_checkouts_come_and_go_while_it_runs(place: Place) -> None:
    shop = repository(place.folder / "shop")
    with sidecar_of(place) as sidecar:
        whole = sidecar.config
        bare = {key: whole[key] for key in ("listen", "health", "admin", "store", "policy")}
        assert tools(sidecar) == {"claude": ["billing"]}
        call = asyncio.create_task(ask(sidecar, script(bash(COMMIT)), "fix-login"))
        asked = await asyncio.to_thread(waiting, sidecar)

        second = {
            **whole["harnesses"],
            "second": whole["harnesses"]["claude"] | {"profile": "claude"},
        }
        checkouts = {**whole["checkouts"], "shop": str(shop)}
        sidecar.write({**whole, "harnesses": second, "checkouts": checkouts})
        sidecar.signal(signal.SIGHUP)
        becomes(sidecar, {"claude": ["billing", "shop"], "second": ["billing", "shop"]})
        # A name of another server's is refused, as a configured server's is.
        added = sidecar.cli("servers", "add", "second", "--url", "https://mcp.example.com/mcp")
        assert added.returncode == 1 and "harness" in added.stderr, added.stderr

        # What cannot be used changes nothing.
        log = len(sidecar.log())
        faulty = {**checkouts, "none": str(place.folder / "nowhere")}
        sidecar.write({**whole, "harnesses": second, "checkouts": faulty, "sweep": "1h"})
        sidecar.signal(signal.SIGHUP)
        logs(sidecar, "not reloaded: checkout 'none'", log)
        assert tools(sidecar) == {"claude": ["billing", "shop"], "second": ["billing", "shop"]}

        # A run that began before was not disturbed by any of that.
        AdminClient(sidecar.admin).answer(str(asked["id"]), approve=True)
        answer = await call
        assert [commit["subject"] for commit in answer["commits"]] == ["Fix the login"]

        sidecar.write(bare)
        sidecar.signal(signal.SIGHUP)
        becomes(sidecar, {})
        assert [work["work"] for work in AdminClient(sidecar.admin).works()] == ["fix-login"]


def test_the_first_harness_needs_no_restart(place: Place) -> None:
    with started({"policy": {"shipped": []}}) as sidecar:
        admin = AdminClient(sidecar.admin)
        assert admin.works() == []
        assert admin.sweep() == {"removed": [], "kept": [], "dry_run": False}
        assert sidecar.cli("works", "list").stderr == "no works\n"
        ours = {key: sidecar.config[key] for key in ("listen", "health", "admin", "store")}
        sidecar.write({**place.config(), **ours})
        sidecar.signal(signal.SIGHUP)
        becomes(sidecar, {"claude": ["billing"]})
        [status] = admin.servers()
        assert (status["name"], status["transport"], status["state"]) == ("claude", "acp", "ready")


def test_a_second_sidecar_does_not_share_the_worktrees(place: Place) -> None:
    with sidecar_of(place), pytest.raises(NotReady) as caught, sidecar_of(place, store="memory"):
        pass
    told = f"worktrees: another sidecar uses {place.worktrees}; give each its own"
    assert told in str(caught.value)


@pytest.mark.parametrize("body", [{"dry_run": 1}, {"dry": True}])
def test_what_a_sweep_does_not_take(place: Place, body: Json) -> None:
    with started({}) as sidecar, pytest.raises(Refused, match="a sweep takes dry_run"):
        AdminClient(sidecar.admin)._request("POST", "/v1/sweep", body)


def test_a_check_shows_whether_it_asks(place: Place) -> None:
    """Without a running sidecar; exit 4 for one that does as it likes."""
    sidecar = Sidecar(place.config())
    done = sidecar.cli("harness", "check", "claude", "--json", timeout=120)
    told = json.loads(done.stdout)
    # It only echoes what it is told, so nothing was shown.
    assert (done.returncode, told["ok"]) == (4, False)
    [asks] = [step for step in told["steps"] if step["name"] == "asks"]
    assert asks["state"] == "failed" and "did not ask" in asks["text"]
    none = sidecar.cli("harness", "check", "codex")
    assert (none.returncode, none.stderr) == (
        2,
        "sidecar harness: there is no harness 'codex'; there are: claude\n",
    )


def rest(sidecar: Sidecar, token: str, name: str, args: Json) -> Json:
    """A call over REST with a token."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    body = json.dumps({"name": name, "args": args, "timeout": PATIENCE}).encode()
    request = urllib.request.Request(f"{sidecar.rest}/call", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


def test_an_agent_uses_servers_for_its_caller_and_no_longer_than_its_run(place: Place) -> None:
    policy = place.folder / "who.yaml"
    policy.write_text(
        "apiVersion: sidecar/v1\nkind: Policy\nname: who\nrules:\n"
        "  - id: nobody-adds-for-builder\n    on: call\n    effect: deny\n"
        "    when: tool.name == 'notes__add' && has(agent.on_behalf_of)\n"
        "    message: \"'not for ' + agent.on_behalf_of\"\n"
    )
    for name in ("builder", "triage"):
        (place.folder / name).write_text(f"token-of-{name}\n")
    builder = {"servers": ["notes"], "harnesses": ["*"], "checkouts": ["*"]}
    agents = {
        name: {"token_file": str(place.folder / name), **rights}
        for name, rights in (("builder", builder), ("triage", {"servers": ["*"]}))
    }
    notes = {"command": [sys.executable, "-m", "sidecar.demo.notes"], "gated": False}
    config = place.config(
        servers={"notes": notes, "other": notes}, agents=agents, policies=[str(policy)]
    )
    config["harnesses"]["claude"]["mcp"] = ["*"]
    with started(config) as sidecar:
        # Somebody without the right has no such tool.
        refused = rest(sidecar, "token-of-triage", "claude", {"task": "x"})
        assert "claude" not in str(refused["error"]["data"]), refused
        assert rest(sidecar, "token-of-builder", "notes__add", {"text": "a"}).get("content")
        steps: list[Json] = []
        for tool, args in (
            ("notes__search", {}),
            ("other__search", {}),
            ("notes__add", {"text": "b"}),
            ("claude", {"task": "more"}),
        ):
            steps += [{"mcp": tool, "args": args}, {"say": "|"}]
        task = {"task": script(*steps), "work": "w"}
        answer = rest(sidecar, "token-of-builder", "claude", task)
        one, other, denied, itself, _ = answer["structuredContent"]["last_message"].split("|")
        assert "1. a" in one
        assert "other" in other and '"error"' in other
        assert "not for builder" in denied
        assert '"error"' in itself
        assert rest(sidecar, "token-of-builder", "notes__search", {})["content"] == [
            {"type": "text", "text": "1. a"}
        ]
