"""Starting where something is in the way, and ending in a hurry."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.kit.client import Legacy
from tests.kit.running import NotReady, Sidecar, running, started


@pytest.mark.parametrize("key", ["listen", "health"])
def test_a_port_in_use_is_named(key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sidecar = Sidecar({key: address if key == "listen" else {"listen": address}})
        try:
            with pytest.raises(NotReady) as why:
                sidecar.start()
            assert f"cannot listen on {address}: Address already in use" in str(why.value)
            assert "choose another address" in str(why.value)
            assert sidecar.wait() == 1
        finally:
            sidecar.kill()


def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database at all" * 100)
    sidecar = Sidecar({"store": f"sqlite:{path}"})
    try:
        with pytest.raises(NotReady, match="store: ") as why:
            sidecar.start()
        assert str(path) in str(why.value)
    finally:
        sidecar.kill()
    assert path.read_bytes().startswith(b"this is no database"), "the file is kept as it was"


def test_a_second_sidecar_on_the_socket_is_refused_and_the_first_goes_on() -> None:
    with started({}) as first:
        second = Sidecar({"admin": {"listen": first.admin}})
        try:
            with pytest.raises(NotReady, match="another sidecar listens there"):
                second.start()
        finally:
            second.kill()
        assert first.cli("servers", "list", "--json").stdout == "[]\n"


async def test_a_second_signal_ends_at_once() -> None:
    script = (
        "import sys, time\n"
        "from sidecar.demo.server import DemoServer, DemoTool\n"
        "tool = DemoTool('wait', '', {}, [], lambda a: (time.sleep(20), 'late')[1])\n"
        "server = DemoServer('slow', [tool])\n"
        "for line in sys.stdin.buffer:\n"
        "    if answer := server.answer(line):\n"
        "        sys.stdout.buffer.write(answer + b'\\n'); sys.stdout.buffer.flush()\n"
    )
    config = {"servers": {"slow": {"command": [sys.executable, "-c", script]}}}
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("slow__wait")
        call = asyncio.create_task(client.exchange("tools/call", {"name": "slow__wait"}))
        await asyncio.sleep(0.3)
        family = sidecar.family
        sidecar.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert sidecar.running, "the first signal waits for the call"
        await asyncio.sleep(0.5)  # sooner it is taken for an echo of the first
        sidecar.signal(signal.SIGTERM)
        assert await asyncio.to_thread(sidecar.wait, 30) == 0
        await asyncio.gather(call, return_exceptions=True)
        assert len(family) >= 3
