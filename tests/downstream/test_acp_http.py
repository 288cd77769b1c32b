"""The WebSocket of editors: who may open one, what ends it, and the relay of ``sidecar acp``."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.config.types import Listen
from sidecar.downstream import AgentListener, Authenticator
from sidecar.downstream.acp_join import JoinError, carry
from sidecar.harness.editors import Editors
from sidecar.model import Principal
from sidecar.wire.ndjson import Oversize
from tests.harness.runs.conftest import scripted  # noqa: F401  a fixture
from tests.harness.runs.kit import PATIENCE, Box, script, soon

ALICE = Principal("alice", ("*",), ("claude",), ("*",))
TOKENS = [("a-token", ALICE), ("b-token", Principal("bob", ("*",), (), ("*",)))]
AS_ALICE = {"Authorization": "Bearer a-token"}
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}


class Served:
    """A box with a listener. ``ws`` opens a connection of an editor's."""

    def __init__(self, box: Box, http: aiohttp.ClientSession) -> None:
        self.box = box
        self.http = http
        self.auth = Authenticator(TOKENS)
        editors = Editors(box.works, box.root, {"repo": box.repo})
        self.listener = AgentListener(
            box.gateway, self.auth, box.bus, name="box", version="1", editors=lambda: editors
        )
        self.base = ""

    async def ws(self, path: str = "/acp/claude", **headers: str) -> Any:
        return await self.http.ws_connect(self.base + path, headers={**AS_ALICE, **headers})


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Box(tmp_path) as box, aiohttp.ClientSession() as http:
        made = Served(box, http)
        made.base = f"http://{await made.listener.start(Listen('127.0.0.1', 0))}"
        try:
            yield made
        finally:
            await made.listener.close()


async def ask(ws: Any, id_: int, method: str, **params: Any) -> dict[str, Any]:
    """The answer; what comes before it is passed over."""
    await ws.send_json({"jsonrpc": "2.0", "id": id_, "method": method, "params": params})
    async with asyncio.timeout(PATIENCE):
        while (told := await ws.receive_json()).get("id") != id_ or "method" in told:
            pass
        return told


async def test_one_message_a_frame(served: Served) -> None:
    async with await served.ws() as ws:
        assert (await ask(ws, 1, "initialize", protocolVersion=1))["result"]["protocolVersion"] == 1
        opened = await ask(ws, 2, "session/new", cwd=str(served.box.repo), mcpServers=[])
        session = opened["result"]["sessionId"]
        prompt = [{"type": "text", "text": script({"say": "hi"})}]
        told = await ask(ws, 3, "session/prompt", sessionId=session, prompt=prompt)
        assert told["result"]["stopReason"] == "end_turn"
        (row,) = served.listener.sessions()
        assert (row["principal"], row["era"], row["server"]) == ("alice", "acp", "claude")
        assert row["calls"] == 0
        assert session not in str(row)
        await ws.send_str("[]")
        assert (await ws.receive_json())["error"]["code"] == -32600
        await ws.send_bytes(b"\xff")
        assert (await ws.receive_json())["error"]["code"] == -32700
    await soon(lambda: served.listener.sessions() == [])


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/acp/claude", {"Authorization": "Bearer wrong"}, 401),
        ("/acp/claude", {"Authorization": ""}, 401),
        ("/acp/claude", {"Authorization": "Bearer b-token"}, 404),
        ("/acp/claude", {"Origin": "https://evil.example"}, 403),
        ("/acp/claude", {"Origin": "null"}, 403),
        ("/acp/claude", {"Host": "evil.example"}, 421),
        ("/acp/other", {}, 404),
        ("/acp/s", {}, 404),
        ("/acp/", {}, 404),
        ("/acp", {}, 404),
        ("/acp/claude/x", {}, 404),
    ],
)
async def test_who_may_not_open_one(
    served: Served, path: str, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await served.ws(path, **headers)
    assert caught.value.status == status


async def test_what_is_no_websocket(served: Served) -> None:
    async with served.http.get(served.base + "/acp/claude", headers=AS_ALICE) as answer:
        assert (answer.status, answer.headers["Upgrade"]) == (426, "websocket")
    async with served.http.post(served.base + "/acp/claude", json={}, headers=AS_ALICE) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    for version in ("0", "99", "x"):
        odd = {**AS_ALICE, **UPGRADE, "Sec-WebSocket-Version": version, "Sec-WebSocket-Key": "x"}
        async with served.http.get(served.base + "/acp/claude", headers=odd) as answer:
            assert 400 <= answer.status < 500


async def test_a_token_that_is_revoked_ends_the_connection(served: Served) -> None:
    async with await served.ws() as ws:
        await ask(ws, 1, "initialize", protocolVersion=1)
        opened = await ask(ws, 2, "session/new", cwd=str(served.box.repo), mcpServers=[])
        prompt = [{"type": "text", "text": script({"hang": True})}]
        session = opened["result"]["sessionId"]
        params = {"sessionId": session, "prompt": prompt}
        await ws.send_json(
            {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params}
        )
        await soon(served.box.prompts)
        served.auth.update([("c-token", ALICE)])
        answers = []
        async with asyncio.timeout(PATIENCE):
            async for message in ws:
                answers.append(json.loads(message.data))
        assert ws.close_code == aiohttp.WSCloseCode.GOING_AWAY
        told = [each for each in answers if each.get("id") == 3]
        assert "revoked" in told[0]["error"]["message"]
    await soon(lambda: not served.box.runs._all())


async def test_the_end_of_the_sidecar_ends_the_connection(served: Served) -> None:
    async with await served.ws() as ws:
        await ask(ws, 1, "initialize", protocolVersion=1)
        await served.listener.drain(0.1)
        async with asyncio.timeout(PATIENCE):
            message = await ws.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert ws.close_code == aiohttp.WSCloseCode.GOING_AWAY
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await served.ws()
    assert caught.value.status == 503


async def test_an_editor_that_drops_its_connection_leaves_nothing(served: Served) -> None:
    ws = await served.ws()
    await ask(ws, 1, "initialize", protocolVersion=1)
    opened = await ask(ws, 2, "session/new", cwd=str(served.box.repo), mcpServers=[])
    prompt = [{"type": "text", "text": script({"hang": True})}]
    params = {"sessionId": opened["result"]["sessionId"], "prompt": prompt}
    await ws.send_json({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": params})
    await soon(served.box.prompts)
    ws._response.connection.transport.abort()
    await soon(lambda: not served.box.runs._all())
    await ws.close()


# ------------------------------------------------------------------------------ the relay


class Pipe:
    """Standard input and output, for the relay."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Oversize | None] = asyncio.Queue()
        self.out: asyncio.Queue[Any] = asyncio.Queue()

    async def lines(self) -> AsyncIterator[bytes | Oversize]:
        while (line := await self.queue.get()) is not None:
            yield line

    async def write(self, message: bytes) -> None:
        self.out.put_nowait(json.loads(message))

    async def next(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            return await self.out.get()


HELLO = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'


async def test_the_relay_carries_lines(served: Served) -> None:
    pipe = Pipe()
    task = asyncio.create_task(carry(served.base, "claude", AS_ALICE, pipe.lines(), pipe.write))
    pipe.queue.put_nowait(HELLO)
    assert (await pipe.next())["result"]["agentInfo"] == {"name": "box", "version": "1"}
    pipe.queue.put_nowait(Oversize(1 << 30, b'{"jsonrpc":"2.0","id":7,"method":"x"', b"}"))
    told = await pipe.next()
    assert (told["id"], told["error"]["code"]) == (7, -32600)
    pipe.queue.put_nowait(None)
    await asyncio.wait_for(task, PATIENCE)


async def test_the_relay_finds_a_sidecar_at_a_unix_socket(served: Served) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        other = Served(served.box, served.http)
        await other.listener.start(Listen(path=path))
        try:
            pipe = Pipe()
            way = carry(
                "http://localhost", "claude", AS_ALICE, pipe.lines(), pipe.write, socket=str(path)
            )
            task = asyncio.create_task(way)
            pipe.queue.put_nowait(HELLO)
            assert (await pipe.next())["result"]["protocolVersion"] == 1
            pipe.queue.put_nowait(None)
            await asyncio.wait_for(task, PATIENCE)
        finally:
            await other.listener.close()


@pytest.mark.parametrize(
    ("harness", "headers", "why"),
    [
        ("claude", {}, "--token-file"),
        ("nobody/../x", AS_ALICE, "no harness 'nobody/../x' there"),
    ],
)
async def test_the_relay_says_why_it_is_refused(
    served: Served, harness: str, headers: dict[str, str], why: str
) -> None:
    pipe = Pipe()
    with pytest.raises(JoinError) as caught:
        await carry(served.base, harness, headers, pipe.lines(), pipe.write)
    assert why in str(caught.value)
    assert "a-token" not in str(caught.value)


async def test_the_relay_ends_when_the_sidecar_has_gone(served: Served) -> None:
    pipe = Pipe()
    task = asyncio.create_task(carry(served.base, "claude", AS_ALICE, pipe.lines(), pipe.write))
    pipe.queue.put_nowait(HELLO)
    await pipe.next()
    await served.listener.close()
    with pytest.raises(JoinError) as caught:
        await asyncio.wait_for(task, PATIENCE)
    assert "has gone" in str(caught.value)
    pipe = Pipe()
    with pytest.raises(JoinError) as caught:
        await carry(served.base, "claude", AS_ALICE, pipe.lines(), pipe.write)
    assert "does not answer" in str(caught.value)
