"""The ``mcp`` package's own server, over stdio and HTTP, in both eras."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.children import spawn
from sidecar.model import Era, RpcError, State
from tests.upstream.kit import caller, plain, until

SERVER = str(Path(__file__).parent / "sdk_server.py")

pytestmark = pytest.mark.real


@pytest.fixture(params=["stdio", "http", "http json"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def sdk(transport: str, make: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """Makes an upstream for a fresh process of the server."""
    if transport == "stdio":
        yield lambda **more: make(command=(sys.executable, SERVER, "stdio"), **more)
        return
    port = tmp_path / "port"
    args = ["json"] if "json" in transport else []
    child = await spawn((sys.executable, SERVER, "http", str(port), *args), env={}, name="sdk")
    await until(port.exists, within=30)
    url = f"http://127.0.0.1:{port.read_text()}/mcp"
    yield lambda **more: make(url, **more)
    await child.end(0.1)


async def call(server: Any, name: str, who: Any, **arguments: Any) -> Any:
    params = {"name": name, "arguments": arguments}
    return plain(await server.request("tools/call", params, who))


@pytest.mark.parametrize("configured", ["auto", "legacy", "modern"])
async def test_everything_it_offers(sdk, transport, configured) -> None:
    server = sdk(era=configured)
    await server.settled()
    assert server.status.state is State.READY, server.status.error
    assert server.status.era == ("legacy" if configured == "legacy" else "modern")
    entries = server.entries()
    assert {entry.key for entry in entries.tools} >= {"echo", "count", "slow", "steps"}
    assert [entry.key for entry in entries.prompts] == ["greeting"]
    assert [entry.key for entry in entries.resources] == ["note://one"]
    assert [entry.key for entry in entries.templates] == ["note://{name}/text"]
    assert entries.instructions == "Be kind."
    for era in Era:
        who = caller("s", era=era)
        answer = await call(server, "echo", who, message="hé")
        assert answer["content"] == [{"type": "text", "text": "hé"}]
        got: list[Any] = []
        who = caller("s", era=era, progress="tok", notify=lambda m, p, got=got: got.append(p))
        await call(server, "steps", who, n=3)
        # In its JSON mode this server has no stream to report on.
        wanted = [] if transport == "http json" else [1, 2, 3]
        assert [params["progress"] for params in got] == wanted
        assert {params["progressToken"] for params in got} <= {"tok"}
        prompt = {"name": "greeting", "arguments": {"name": "Ann"}}
        messages = plain(await server.request("prompts/get", prompt, who))["messages"]
        assert messages[0]["content"]["text"] == "Greet Ann."
        found = plain(await server.request("resources/read", {"uri": "note://x/text"}, who))
        assert found["contents"][0]["text"] == "x"
        with pytest.raises(RpcError):
            await server.request("prompts/get", {"name": "nobody's"}, who)


async def test_it_is_cancelled_and_goes_on(sdk) -> None:
    server = sdk()
    await server.settled()
    for era in Era:
        who = caller("s", era=era)
        task = asyncio.create_task(call(server, "slow", who, ms=20_000))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await call(server, "echo", who, message="x")
        assert answer["content"][0]["text"] == "x"


async def test_its_calls_run_side_by_side(sdk) -> None:
    server = sdk()
    await server.settled()
    for era in Era:
        who = caller("s", era=era)
        await call(server, "echo", who, message="x")
        # Longer on a machine that is too slow to begin eight in that time.
        for ms in (300, 1500, 6000):
            started = asyncio.get_running_loop().time()
            await asyncio.gather(*(call(server, "slow", who, ms=ms) for _ in range(8)))
            took = asyncio.get_running_loop().time() - started
            if took < 5 * ms / 1000:
                break
        assert took < 5 * ms / 1000, "one after the other it is eight times as long"
