"""The gate in a real sidecar: what a newcomer sees, reloads, and every verb of the operator's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.admin.client import AdminClient, NotFound
from sidecar.policy import SHIPPED
from tests.kit.client import Legacy, eventually
from tests.kit.running import Sidecar, running

NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"], "trusted": True}
ALL = {"policy": {"shipped": list(SHIPPED)}, "parking": {"hold": "0s"}}
ADD = {"name": "notes__add", "args": {"text": "hello"}}


def untrusted(description: str) -> dict[str, Any]:
    """A stdio server whose one read-only tool says ``description``."""
    script = (
        "import sys\n"
        "from sidecar.demo.server import DemoServer, DemoTool\n"
        f"tool = DemoTool('read', {description!r}, {{}}, [], lambda a: 'from outside')\n"
        "server = DemoServer('web', [tool])\n"
        "for line in sys.stdin.buffer:\n"
        "    if answer := server.answer(line):\n"
        "        sys.stdout.buffer.write(answer + b'\\n'); sys.stdout.buffer.flush()\n"
    )
    return {"command": [sys.executable, "-c", script]}


async def rest(http: aiohttp.ClientSession, sidecar: Sidecar, body: Any) -> tuple[int, Any]:
    async with http.post(f"{sidecar.rest}/call", json=body) as response:
        return response.status, await response.json()


def admin(sidecar: Sidecar) -> AdminClient:
    return AdminClient(sidecar.admin)


async def cli(sidecar: Sidecar, *words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(sidecar.cli, *words)


async def test_a_newcomers_tool_that_changes_something_needs_approval() -> None:
    config = {"servers": {"notes": {**NOTES}}, **ALL}
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add")
        assert await client.text("notes__search") == "no notes"
        status, body = await rest(http, sidecar, ADD)
        assert status == 202
        assert body["isError"] is True
        assert "approval" in body["content"][0]["text"]
        assert "sidecar/parked" in body["_meta"]
        sidecar.write({**sidecar.config, "servers": {"notes": {**NOTES, "gated": False}}})
        sidecar.signal(signal.SIGHUP)
        await eventually(lambda: "reloaded" in sidecar.log(), 30)
        await client.until_listed("notes__add")
        status, body = await rest(http, sidecar, ADD)
        assert (status, body["content"][0]["text"]) == (200, "noted as number 1")


async def test_a_denied_call_is_403_over_rest(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "apiVersion: sidecar/v1\nkind: Policy\nname: mine\nrules:\n"
        "  - {id: short, on: call, effect: deny, when: 'args.text.size() < 9', "
        "message: '\"too short\"'}\n"
    )
    config = {"servers": {"notes": NOTES}, "policies": [str(tmp_path)]}
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add")
        status, body = await rest(http, sidecar, ADD)
        assert status == 403
        assert body["_meta"]["sidecar/denied"] == {"rule": "mine/short", "message": "too short"}
        status, _ = await rest(http, sidecar, {**ADD, "args": {"text": "long enough"}})
        assert status == 200


async def test_an_edited_policy_is_taken_over_and_a_faulty_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "policies" / "mine.yaml"
    file.parent.mkdir()
    head = "apiVersion: sidecar/v1\nkind: Policy\nname: mine\nrules:\n"
    deny = head + "  - {id: x, on: list, effect: deny, when: 'tool.upstream_name == \"add\"'}\n"
    file.write_text(head + "  - {id: x, on: call, effect: deny, when: 'args == {\"a\": 1}'}\n")
    config = {"servers": {"notes": NOTES}, "policies": [str(file.parent)]}
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add", "notes__search")
        before = await asyncio.to_thread(admin(sidecar).policy)
        async with client.listening() as heard:
            file.write_text(deny)
            await client.until_gone("notes__add", within=30)
            await eventually(
                lambda: "notifications/tools/list_changed" in [m["method"] for m in heard]
            )
        status, body = await rest(http, sidecar, ADD)
        assert (status, body["_meta"]["sidecar/denied"]["rule"]) == (403, "mine/x")
        after = await asyncio.to_thread(admin(sidecar).policy)
        assert after["revision"] != before["revision"]
        assert "error" not in after
        file.write_text(deny.replace("tool.", "tol."))
        await eventually(lambda: "the policies are faulty" in sidecar.log(), 30)
        faulty = await asyncio.to_thread(admin(sidecar).policy)
        assert faulty["revision"] == after["revision"]
        told: Any = faulty["error"]
        assert any(f"{file}:5" in fault for fault in told["faults"])
        assert (await rest(http, sidecar, ADD))[0] == 403
        shown = await cli(sidecar, "policy", "check")
        assert shown.returncode == 3


def test_policies_that_do_not_load_are_a_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("apiVersion: sidecar/v1\nkind: Policy\nname: p\nrules: [{}]\n")
    (tmp_path / "sidecar.yaml").write_text(
        "listen: 127.0.0.1:0\nhealth: {listen: off}\nadmin: {listen: off}\nstore: memory\n"
        "policies: [p.yaml]\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 3
    assert "p.yaml:4" in done.stderr
    assert "Traceback" not in done.stderr


async def test_labels_are_listed_and_cleared(tmp_path: Path) -> None:
    config = {
        "servers": {"web": untrusted("Reads."), "notes": NOTES},
        "store": f"sqlite:{tmp_path}/state.db",
        **ALL,
    }
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("web__read", "notes__add")
        assert (await cli(sidecar, "sessions", "clear", "agent")).returncode == 1
        answer = await client.call("web__read")
        assert answer["_meta"]["sidecar/labels"] == ["outside"]
        listed = json.loads((await cli(sidecar, "sessions", "list", "--json")).stdout)
        (of,) = listed["labels"]
        assert of["principal"] == "agent"
        (label,) = of["labels"]
        assert label["label"] == "outside"
        assert label["results"][0]["call"] == answer["_meta"]["sidecar/call"]
        assert label["results"][0]["target"] == "web__read"
        assert len(listed["sessions"]) == 1
        table = await cli(sidecar, "sessions", "list")
        assert "outside" in table.stdout
        assert "web__read" in table.stdout
        assert (await cli(sidecar, "sessions", "clear", "agent")).returncode == 0
        assert await asyncio.to_thread(admin(sidecar).labels) == []
        with pytest.raises(NotFound, match="no labels"):
            await asyncio.to_thread(admin(sidecar).clear_labels, "harness:a/b")


async def test_pins_are_shown_and_renewed_and_outlive_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/state.db"
    config = {"servers": {"web": untrusted("One."), "notes": NOTES}, "store": store}
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("web__read", "notes__add")

        async def pinned() -> bool:
            rows = await asyncio.to_thread(admin(sidecar).pins)
            return bool(rows) and all("pinned" in row for row in rows)

        for _ in range(100):
            if await pinned():
                break
            await asyncio.sleep(0.05)
        assert await pinned()
        rows = json.loads((await cli(sidecar, "tools", "pins", "--json")).stdout)
        assert {row["name"]: row["changed"] for row in rows} == {
            "web__read": False,
            "notes__add": False,
            "notes__search": False,
        }
    changed = {**config, "servers": {"web": untrusted("Two."), "notes": NOTES}}
    async with aiohttp.ClientSession() as http, running(changed) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("web__read", "notes__add")
        rows = await asyncio.to_thread(admin(sidecar).pins)
        assert [row["name"] for row in rows if row["changed"]] == ["web__read"]
        await eventually(lambda: "sidecar tools pin web__read" in sidecar.log(), 30)
        missing = await cli(sidecar, "tools", "pin", "web__read", "web__none")
        assert missing.returncode == 1
        assert "web__none" in missing.stderr
        neither = await cli(sidecar, "tools", "pin")
        assert neither.returncode == 2
        done = await cli(sidecar, "tools", "pin", "web__read")
        assert (done.returncode, done.stdout) == (0, "pinned web__read\n")
        rows = await asyncio.to_thread(admin(sidecar).pins)
        assert not any(row["changed"] for row in rows)
        everything = await cli(sidecar, "tools", "pin", "--all")
        assert everything.stdout.count("pinned") == 3


async def test_the_policy_in_force_decides_inputs(tmp_path: Path) -> None:
    config = {"servers": {}, **ALL}
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path="/nowhere")) as _,
        running(config) as sidecar,
    ):
        tool = {"name": "a__b", "server": "a", "upstream_name": "b", "kind": "mcp", "gated": True}
        asked = await asyncio.to_thread(
            admin(sidecar).evaluate,
            {"tool": tool, "server": {"runtime": False}, "session": {"labels": []}},
        )
        assert (asked["decision"], asked["rule"]) == ("ask", "gating/gated")
        socket = aiohttp.UnixConnector(path=sidecar.admin.removeprefix("unix:"))
        async with aiohttp.ClientSession(connector=socket) as http:
            for body, status, reason in (
                (b"{", 400, "bad_json"),
                (b'{"tool": 1}', 422, "bad_input"),
                (b'{"tol": {}}', 422, "bad_input"),
                (b'{"phase": "never"}', 422, "bad_input"),
                (b'{"tool": {}, "tool": {}}', 400, "bad_json"),
            ):
                async with http.post(
                    "http://x/v1/policy/eval",
                    data=body,
                    headers={"Content-Type": "application/json"},
                ) as response:
                    assert response.content_type == "application/problem+json"
                    problem = await response.json(content_type=None)
                    assert (response.status, problem["reason"]) == (status, reason)
        told = await asyncio.to_thread(admin(sidecar).policy)
        assert told["shipped"] == list(SHIPPED)
        assert told["engine"] == "cel"


async def test_inputs_are_recorded_where_only_the_sidecar_reads_them_and_replayed(
    tmp_path: Path,
) -> None:
    config = {
        "servers": {"notes": {**NOTES, "gated": False}},
        "store": f"sqlite:{tmp_path}/state.db",
        "policy": {"record": "inputs"},
    }
    file = tmp_path / "decisions.jsonl"
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add")
        await client.call("notes__add", text="kept")
        await client.call("notes__search", query="kept")
        await eventually(lambda: file.read_bytes().count(b"\n") == 4, 30)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["phase"] for line in lines] == ["call", "result", "call", "result"]
        assert lines[0]["input"]["args"] == {"text": "kept"}
        assert lines[3]["input"]["result"]["text"] == "1. kept"
        same = await cli(sidecar, "policy", "replay", str(file))
        assert same.returncode == 0, same.stdout + same.stderr
        policies = tmp_path / "policies"
        policies.mkdir()
        (policies / "p.yaml").write_text(
            "apiVersion: sidecar/v1\nkind: Policy\nname: mine\nrules:\n"
            "  - {id: x, on: call, effect: deny, when: 'has(args.text) && args.text == \"kept\"'}\n"
        )
        other = await cli(sidecar, "policy", "replay", str(file), "--policies", str(policies))
        assert other.returncode == 4
        assert "mine/x" in other.stdout
