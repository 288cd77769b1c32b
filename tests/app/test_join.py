"""`sidecar stdio`: joined to a running sidecar or alone, it is the same address."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.client import Legacy
from tests.kit.running import Sidecar, running

ROOT = Path(__file__).resolve().parent.parent.parent
NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}


class Stdio:
    """One `sidecar stdio`, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._next = 0
        self.notifications: list[dict[str, Any]] = []

    async def tell(self, method: str, params: dict[str, Any] | None = None) -> None:
        await self._send({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self._next += 1
        await self._send(
            {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params or {}}
        )
        while True:
            message = await self.hear()
            if message.get("id") == self._next:
                return message
            self.notifications.append(message)

    async def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 30)
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    async def _send(self, message: dict[str, Any]) -> None:
        await self.write(json.dumps(message).encode())

    async def write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await asyncio.wait_for(self._process.wait(), 30)


@asynccontextmanager
async def stdio(sidecar: Sidecar, *arguments: str) -> AsyncIterator[Stdio]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "stdio", "--config", str(sidecar.file), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        limit=1 << 24,
    )
    try:
        yield Stdio(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 30)


def base(sidecar: Sidecar) -> str:
    return sidecar.mcp.removesuffix("/mcp")


async def test_joined_in_the_legacy_era_the_servers_are_shared() -> None:
    async with aiohttp.ClientSession() as http, running({"servers": {"notes": NOTES}}) as sidecar:
        over_http = Legacy(http, sidecar.mcp)
        await over_http.open()
        await over_http.until_listed("notes__add")
        assert await over_http.text("notes__add", text="by http") == "noted as number 1"
        async with stdio(sidecar, "--url", base(sidecar)) as client:
            opened = await client.ask("initialize", INITIALIZE)
            assert opened["result"]["protocolVersion"] == "2025-11-25"
            await client.tell("notifications/initialized")
            listed = await client.ask("tools/list")
            assert [t["name"] for t in listed["result"]["tools"]] == ["notes__add", "notes__search"]
            found = await client.ask("tools/call", {"name": "notes__search", "arguments": {}})
            assert found["result"]["content"] == [{"type": "text", "text": "1. by http"}]
            # The stream of notifications reaches standard output too.
            sidecar.write({**sidecar.config, "servers": {"notes": NOTES, "more": NOTES}})
            sidecar.signal(signal.SIGHUP)
            changed = await client.hear()
            assert changed["method"] == "notifications/tools/list_changed"
            assert await client.end() == 0
        sessions = sidecar.cli("servers", "list", "--json")
        assert sessions.returncode == 0


async def test_joined_in_the_modern_era() -> None:
    async with (
        running({"servers": {"notes": NOTES}}) as sidecar,
        stdio(sidecar, "--url", base(sidecar), "--server", "notes") as client,
    ):
        about = await client.ask("server/discover", {"_meta": ENVELOPE})
        assert "2026-07-28" in about["result"]["supportedVersions"]
        added = await client.ask(
            "tools/call", {"name": "add", "arguments": {"text": "x"}, "_meta": ENVELOPE}
        )
        assert added["result"]["content"][0]["text"] == "noted as number 1"
        assert added["result"]["resultType"] == "complete"
        assert await client.end() == 0


async def test_a_restarted_sidecar_is_joined_again() -> None:
    """The session is lost with the process; the client on stdio does not notice."""
    async with (
        running({"servers": {"notes": NOTES}}) as sidecar,
        stdio(sidecar, "--url", base(sidecar)) as client,
    ):
        await client.ask("initialize", INITIALIZE)
        await client.tell("notifications/initialized")
        sidecar.write({**sidecar.config, "listen": base(sidecar).removeprefix("http://")})
        await asyncio.to_thread(sidecar.stop)
        refused = await client.ask("ping")
        assert refused["error"]["message"].endswith("is it running?")
        await asyncio.to_thread(sidecar.start)
        again = await client.ask("ping")
        assert again.get("result") == {}, again
        await client.end()


@pytest.mark.parametrize("arguments", [("--alone",), ("--url", "http://127.0.0.1:1")])
async def test_alone(arguments: tuple[str, ...]) -> None:
    async with (
        running({"servers": {"notes": NOTES}}) as sidecar,
        stdio(sidecar, *arguments) as client,
    ):
        await client.ask("initialize", INITIALIZE)
        await client.tell("notifications/initialized")

        async def listed() -> list[str]:
            return [t["name"] for t in (await client.ask("tools/list"))["result"]["tools"]]

        assert await listed() == ["notes__add", "notes__search"]
        added = await client.ask("tools/call", {"name": "notes__add", "arguments": {"text": "x"}})
        assert added["result"]["content"][0]["text"] == "noted as number 1"
        assert await client.end() == 0


async def test_a_token_is_needed_and_its_absence_is_told(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-of-the-agent")
    config = {"servers": {"notes": NOTES}, "auth": {"token_file": str(tmp_path / "token")}}
    async with running(config) as sidecar:
        async with stdio(sidecar, "--url", base(sidecar)) as client:
            opened = await client.ask("initialize", INITIALIZE)
            assert opened["result"]["serverInfo"]["name"] == "sidecar"
            await client.end()
        (tmp_path / "wrong").write_text("another")
        async with stdio(
            sidecar, "--url", base(sidecar), "--token-file", str(tmp_path / "wrong")
        ) as client:
            refused = await client.ask("initialize", INITIALIZE)
            assert "token" in refused["error"]["message"]
            await client.end()


async def test_bad_lines_are_answered_and_the_rest_goes_on() -> None:
    async with (
        running({"servers": {"notes": NOTES}}) as sidecar,
        stdio(sidecar, "--url", base(sidecar)) as client,
    ):
        deep = b"[" * 100 + b"]" * 100
        for line, code in (
            (b"not json", -32700),
            (b"[1,2]", -32600),
            (b'{"jsonrpc":"2.0","method":"notifications/x","params":{"x":1e400}}', -32700),
            (b'{"jsonrpc":"2.0","method":"notifications/x","params":{"x":' + deep + b"}}", -32700),
        ):
            await client.write(line)
            refused = await client.hear()
            assert (refused["error"]["code"], refused["id"]) == (code, None)
        await client.write(b"")
        assert "result" in await client.ask("initialize", INITIALIZE)
        assert await client.end() == 0


REGION = """
import sys
from sidecar.demo.server import DemoServer, DemoTool
region = {"type": "string", "x-mcp-header": "Region"}
tool = DemoTool("where", "", {"region": region}, [], lambda given: given["region"])
server = DemoServer("region", [tool])
for line in sys.stdin.buffer:
    if answer := server.answer(line):
        sys.stdout.buffer.write(answer + b"\\n")
        sys.stdout.buffer.flush()
"""


@pytest.mark.parametrize("listed", [True, False])
async def test_arguments_that_a_tool_wants_as_headers_are_repeated(listed: bool) -> None:
    """A client on stdio knows no headers: it is the join that has to send them."""
    async with (
        running({"servers": {"r": {"command": [sys.executable, "-c", REGION]}}}) as sidecar,
        stdio(sidecar, "--url", base(sidecar)) as client,
    ):
        if listed:
            await client.ask("tools/list", {"_meta": ENVELOPE})
        called = await client.ask(
            "tools/call",
            {"name": "r__where", "arguments": {"region": "zürich"}, "_meta": ENVELOPE},
        )
        assert called["result"]["content"] == [{"type": "text", "text": "zürich"}]
