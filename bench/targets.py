"""What is measured: each target's processes, its address, and the name of its tools."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.load import CallFailed, Session, http_client
from tests.kit import processes
from tests.kit.running import Config, Sidecar, started
from tests.peers import peers

ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT = 60.0
# Nothing stands in a call's way: no approval, no label.
PLAIN = {"gated": False, "trusted": True}


@dataclass(frozen=True)
class Target:
    """A running gateway, or the upstream itself. ``pids`` are its processes now."""

    name: str
    url: str
    prefix: str
    era: str
    pids: Callable[[], list[int]]
    start: float
    """Seconds from its spawn until ``echo`` was listed through it."""

    @property
    def tool(self) -> str:
        return self.prefix + "echo"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _listed(url: str, tool: str, era: str) -> None:
    """Until the tool is listed there."""
    end = time.monotonic() + READY_TIMEOUT
    async with http_client() as http:
        while True:
            # Before it listens, and before it has asked its own upstream, anything may happen.
            with contextlib.suppress(aiohttp.ClientError, CallFailed, ValueError):
                session = Session(http, url, era)
                await session.open()
                names = await session.tools()
                await session.close()
                if tool in names:
                    return
            if time.monotonic() > end:
                raise TimeoutError(f"{tool} was never listed at {url}")
            await asyncio.sleep(0.02)


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait(5)


@contextlib.contextmanager
def _own(name: str, command: list[str], port: int, prefix: str = "") -> Iterator[Target]:
    """A target that is one of our commands."""
    url = f"http://127.0.0.1:{port}/mcp"
    began = time.perf_counter()
    with _process(command) as process:
        asyncio.run(_listed(url, prefix + "echo", "legacy"))
        took = time.perf_counter() - began

        def pids() -> list[int]:
            return [process.pid, *processes.descendants(process.pid)]

        yield Target(name, url, prefix, "legacy", pids, took)


@contextlib.contextmanager
def upstream() -> Iterator[Target]:
    """The upstream, which is the target ``direct`` too."""
    port = free_port()
    command = [sys.executable, "-m", "bench.upstream", "--port", str(port)]
    with _own("direct", command, port) as target:
        yield target


@contextlib.contextmanager
def sink() -> Iterator[int]:
    """A receiver of OTLP; its port."""
    port = free_port()
    with _process([sys.executable, "-m", "bench.sink", str(port)]):
        end = time.monotonic() + READY_TIMEOUT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if time.monotonic() > end:
                raise TimeoutError("the receiver never listened")
            time.sleep(0.05)
        yield port


@contextlib.contextmanager
def floor(direct: Target) -> Iterator[Target]:
    port = free_port()
    command = [sys.executable, "-m", "bench.floor", direct.url, str(port)]
    with _own("floor", command, port) as target:
        yield target


@contextlib.contextmanager
def fastmcp(direct: Target) -> Iterator[Target]:
    port = free_port()
    script = str(ROOT / "bench" / "fastmcp_proxy.py")
    command = peers.python("fastmcp-new", script, direct.url, str(port))
    with _own("fastmcp", command, port) as target:
        yield target


def _config(servers: dict[str, dict[str, object]], more: dict[str, object]) -> Config:
    return {
        "servers": {name: {**PLAIN, **entry} for name, entry in servers.items()},
        # The sidecar's own policies take part, as they do where nobody says otherwise.
        "policy": {},
        **more,
    }


@contextlib.contextmanager
def sidecar_of(
    servers: dict[str, dict[str, object]], env: dict[str, str] | None = None, **more: object
) -> Iterator[Sidecar]:
    """A sidecar in front of these servers; ``env`` comes on top of ours."""
    with started(_config(servers, more), env=env) as running:
        yield running


@contextlib.contextmanager
def sidecar(
    name: str, servers: dict[str, dict[str, object]], era: str, env: dict[str, str] | None = None
) -> Iterator[Target]:
    """A sidecar whose server ``up`` is measured."""
    began = time.perf_counter()
    with sidecar_of(servers, env) as running:
        asyncio.run(_listed(running.mcp, "up__echo", era))
        took = time.perf_counter() - began
        yield Target(name, running.mcp, "up__", era, lambda: running.family, took)
