"""What a reload takes over, what it leaves alone, and what it does with a faulty file."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.cli import main
from sidecar.watch import INTERVAL
from tests.kit.client import Legacy, RpcFailed, eventually
from tests.kit.running import Sidecar, running

NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}


async def reloaded(sidecar: Sidecar, config: dict[str, Any], said: str) -> None:
    """Write the file, ask for a reload, and wait for the line that tells of it."""
    before = sidecar.log()
    sidecar.write({**sidecar.config, **config})
    sidecar.signal(signal.SIGHUP)
    await eventually(lambda: said in sidecar.log()[len(before) :], 30, f"{said!r} in the log")


async def test_servers_come_and_go_without_disturbing_the_others() -> None:
    async with aiohttp.ClientSession() as http, running({"servers": {"a": NOTES}}) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("a__add")
        assert await client.text("a__add", text="kept") == "noted as number 1"
        async with client.listening() as heard:
            await reloaded(sidecar, {"servers": {"a": NOTES, "b": NOTES}}, "servers added: b")
            await client.until_listed("a__add", "b__add")
            await eventually(
                lambda: [m["method"] for m in heard] == ["notifications/tools/list_changed"]
            )
        assert await client.text("a__search") == "1. kept", "its process was not restarted"
        await reloaded(sidecar, {"servers": {"b": NOTES}}, "removed: a")
        await client.until_gone("a__add")
        with pytest.raises(RpcFailed) as gone:
            await client.call("a__add", text="x")
        assert gone.value.error["data"]["reason"] == "unknown_server"
        assert await client.text("b__search") == "no notes"


async def test_a_changed_server_is_replaced_and_keeps_its_place() -> None:
    async with (
        aiohttp.ClientSession() as http,
        running({"servers": {"a": NOTES, "b": NOTES}}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("a__add", "b__add")
        await reloaded(
            sidecar, {"servers": {"a": {**NOTES, "only": ["search"]}, "b": NOTES}}, "changed: a"
        )
        await client.until_gone("a__add")
        await client.until_listed("a__search")
        assert await client.names() == ["a__search", "b__add", "b__search"]


async def test_an_edit_alone_is_enough() -> None:
    async with aiohttp.ClientSession() as http, running({"servers": {"a": NOTES}}) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        sidecar.write({**sidecar.config, "servers": {"a": NOTES, "b": NOTES}})
        await client.until_listed("b__add", within=30)


async def test_a_signal_is_one_reload() -> None:
    """What it told of is not found a second time by the watch of the files."""
    async with running({"servers": {"a": NOTES}}) as sidecar:
        await reloaded(sidecar, {"servers": {"a": NOTES, "b": NOTES}}, "servers added: b")
        await asyncio.sleep(2.5 * INTERVAL)
        assert sidecar.log().count("reloaded:") == 1


async def test_a_rotated_token_counts_without_a_signal(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("the-first-token\n")
    auth = {"token_file": str(tmp_path / "token")}
    config: dict[str, Any] = {"servers": {"a": NOTES}, "auth": auth}
    async with aiohttp.ClientSession() as http, running(config) as sidecar:

        async def status(token: str) -> int:
            headers = {"authorization": f"Bearer {token}"}
            async with http.get(f"{sidecar.rest}/tools", headers=headers) as answer:
                return answer.status

        assert await status("the-first-token") == 200
        (tmp_path / "token").write_text("the-second-token\n")
        await eventually(lambda: "tokens were read again" in sidecar.log(), 30)
        assert (await status("the-first-token"), await status("the-second-token")) == (401, 200)
        # The next one lies elsewhere; that file is watched from then on.
        (tmp_path / "other").write_text("the-third-token\n")
        await reloaded(sidecar, {"auth": {"token_file": str(tmp_path / "other")}}, "auth")
        assert await status("the-third-token") == 200
        await asyncio.sleep(0.5)
        before = len(sidecar.log())
        (tmp_path / "other").write_text("the-fourth-token\n")
        await eventually(lambda: "tokens were read" in sidecar.log()[before:], 30)
        assert (await status("the-third-token"), await status("the-fourth-token")) == (401, 200)


async def test_a_faulty_file_changes_nothing_and_says_why() -> None:
    async with aiohttp.ClientSession() as http, running({"servers": {"a": NOTES}}) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("a__add")
        await reloaded(sidecar, {"servers": {"a": {"commnad": ["x"]}}}, "stays in force")
        assert f"{sidecar.file}:" in sidecar.log()
        assert "commnad" in sidecar.log()
        assert await client.names() == ["a__add", "a__search"]


async def test_what_needs_a_restart_says_so() -> None:
    async with running({}) as sidecar:
        await reloaded(
            sidecar, {"listen": "127.0.0.1:1", "store": "memory"}, "waiting for a restart: listen"
        )


async def test_a_revoked_token_ends_its_sessions_and_calls(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("token-one\n")
    (tmp_path / "two").write_text("token-two\n")
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys, time\n"
        "from sidecar.demo.server import DemoServer, DemoTool\n"
        "tool = DemoTool('wait', '', {}, [], lambda a: (time.sleep(20), 'late')[1])\n"
        "server = DemoServer('slow', [tool])\n"
        "for line in sys.stdin.buffer:\n"
        "    if answer := server.answer(line):\n"
        "        sys.stdout.buffer.write(answer + b'\\n'); sys.stdout.buffer.flush()\n"
    )
    config: dict[str, Any] = {
        "servers": {"slow": {"command": [sys.executable, str(slow)]}},
        "agents": {
            "one": {"token_file": str(tmp_path / "one"), "servers": ["*"]},
            "two": {"token_file": str(tmp_path / "two"), "servers": ["*"]},
        },
    }
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        clients = {
            name: Legacy(http, sidecar.mcp, headers={"authorization": f"Bearer token-{name}"})
            for name in ("one", "two")
        }
        for client in clients.values():
            await client.open()
        await clients["one"].until_listed("slow__wait")
        call = asyncio.create_task(clients["one"].exchange("tools/call", {"name": "slow__wait"}))
        await asyncio.sleep(0.3)
        assert not call.done()
        # Rotated: the same file, another token. No setting changed, and yet the old one is void.
        (tmp_path / "one").write_text("token-other\n")
        sidecar.signal(signal.SIGHUP)
        ended = await asyncio.wait_for(call, 30)
        assert ended.status == 401
        assert (await clients["one"].exchange("tools/list")).status == 401
        assert await clients["two"].names() == ["slow__wait"]


def test_bad_config_at_start_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("servers: {a: {}}\nlisten: 7\n")
    assert main(["run", "--config", str(path)]) == 3
    err = capsys.readouterr().err
    assert f"{path}:1:" in err
    assert f"{path}:2:" in err
