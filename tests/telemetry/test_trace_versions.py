"""Spans say which protocol was agreed on, and under which id each of the two sides was asked."""

from __future__ import annotations

import sys
from pathlib import Path

import aiohttp
import pytest

from sidecar.mcp.versions import MODERN_VERSION
from tests.kit.client import CLIENTS
from tests.kit.running import running
from tests.telemetry.spans import receiving
from tests.telemetry.test_trace_whole import SCRIPT, environment, one, over_http


async def test_both_sides_of_a_call_say_version_and_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver, aiohttp.ClientSession() as http:
        for name, value in environment(receiver, "sidecar").items():
            monkeypatch.setenv(name, value)
        with over_http(receiver, tmp_path) as url:
            servers = {
                "web": {"url": url, "gated": False},
                "pipe": {
                    "command": [sys.executable, SCRIPT, "stdio"],
                    "env": environment(receiver, "server"),
                    "gated": False,
                },
            }
            async with running({"servers": servers}) as sidecar:
                for era in CLIENTS:
                    client = CLIENTS[era](http, sidecar.mcp)
                    await client.open()
                    await client.until_listed("web__echo", "pipe__echo", within=30)
                    for server in servers:
                        receiver.requests.clear()
                        call = {"name": f"{server}__echo", "arguments": {"message": "x"}}
                        answer = await client.request("tools/call", call)
                        assert answer["content"][0]["text"] == "x"
                        name = f"tools/call {server}__echo"
                        spans = await receiver.until(
                            lambda spans, name=name: (
                                (name, "server") in {(s.name, s.kind) for s in spans}
                                and any(s.name == "tools/call echo" for s in spans)
                            )
                        )
                        asked = one(spans, name, kind="server").attributes
                        sent = one(spans, name, kind="client").attributes
                        theirs = one(spans, "tools/call echo", kind="server").attributes
                        spoken = asked["mcp.protocol.version"]
                        assert (spoken == MODERN_VERSION) == (era == "modern")
                        assert asked["jsonrpc.request.id"]
                        # What the server itself says of the very same request.
                        for key in ("jsonrpc.request.id", "mcp.protocol.version"):
                            assert sent[key] == theirs[key]
