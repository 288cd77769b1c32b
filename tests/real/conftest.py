"""One sidecar for the whole session, in front of every real server there is here."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit import processes
from tests.kit.running import Sidecar, started
from tests.peers import peers

SERVERS = Path(__file__).resolve().parent / "servers"
# The real servers start in parallel on two cores, some of them slowly.
START_TIMEOUT = 60.0
PLAIN = {"gated": False, "trusted": True}
PART_OF = {
    "everything": "node",
    "everything_http": "node",
    "everything_sse": "node",
    "files": "node",
    "memory": "node",
    "thinking": "node",
    "time": "servers",
    "git": "servers",
    "fetch": "servers",
    "fastmcp_old": "fastmcp-old",
    "fastmcp_old_http": "fastmcp-old",
    "fastmcp_new": "fastmcp-new",
    "fastmcp_new_http": "fastmcp-new",
    "sdk1": "fastmcp-old",
    "sdk1_http": "fastmcp-old",
    "sdk1_sse": "fastmcp-old",
    "sdk": "",
    "sdk_http": "",
    "sdk_legacy": "",
    "sdk_modern": "",
}


@dataclass(frozen=True)
class World:
    """What stands: the sidecar, folders that servers work in, and a website that they fetch."""

    sidecar: Sidecar
    files: Path
    repository: Path
    website: str
    servers: frozenset[str]

    def need(self, *servers: str) -> None:
        """Skips the test when a peer that it needs is not installed."""
        for server in servers:
            if server not in self.servers:
                pytest.skip(peers.why_missing(PART_OF[server]))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(command: list[str], port: int, folder: Path, **env: str) -> Iterator[None]:
    """An HTTP server in a process of its own, from when it listens until the end."""
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            said = (folder / f"{port}.log").read_text(errors="replace")
            assert process.poll() is None, f"{command} ended:\n{said}"
            assert time.monotonic() < end, f"{command} does not listen:\n{said}"
            time.sleep(0.05)
        yield
    finally:
        family = [process.pid, *processes.descendants(process.pid)]
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        for pid in processes.left_of(family, 20):
            os.kill(pid, 9)
        process.wait(30)


@contextlib.contextmanager
def website(folder: Path) -> Iterator[str]:
    """A site with a robots.txt that keeps everybody out of /private."""
    (folder / "private").mkdir(parents=True)
    (folder / "index.html").write_text(
        "<html><head><title>Home</title></head><body><article><h1>Welcome</h1>"
        + "<p>The answer of the local site is forty-two.</p>" * 5
        + "</article></body></html>"
    )
    (folder / "private" / "index.html").write_text("<html><body>secret</body></html>")
    (folder / "robots.txt").write_text("User-agent: *\nDisallow: /private/\n")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_repository(folder: Path) -> Path:
    """A git repository with one commit and one changed file."""
    folder.mkdir()
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
    for arguments in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "notes.txt"],
        [*identity, "commit", "--quiet", "--message=first commit"],
    ):
        if arguments[0] == "add":
            (folder / "notes.txt").write_text("one\n")
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    (folder / "notes.txt").write_text("one\ntwo\n")
    return folder


def stdio_servers(folder: Path, repository: Path, files: Path) -> dict[str, dict[str, Any]]:
    everyday, sdk1, sdk = (str(SERVERS / name) for name in ("everyday.py", "sdk1.py", "sdk.py"))
    # Without a Node.js on its path, the fetch server converts pages in Python alone.
    no_node = str(peers.PEERS / "servers" / "bin")
    return {
        "everything": {"command": peers.npm("server-everything", "stdio")},
        "files": {"command": peers.npm("server-filesystem", str(files))},
        "memory": {
            "command": peers.npm("server-memory"),
            "env": {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
        },
        "thinking": {"command": peers.npm("server-sequential-thinking")},
        "time": {"command": peers.module("mcp_server_time", "--local-timezone=UTC")},
        "git": {"command": peers.module("mcp_server_git", "--repository", str(repository))},
        "fetch": {
            "command": peers.module("mcp_server_fetch", "--allow-private-ips"),
            "env": {"PATH": no_node},
        },
        "fastmcp_old": {"command": peers.python("fastmcp-old", everyday, "stdio")},
        "fastmcp_new": {"command": peers.python("fastmcp-new", everyday, "stdio")},
        "sdk1": {"command": peers.python("fastmcp-old", sdk1, "stdio")},
        "sdk": {"command": [sys.executable, sdk, "stdio"]},
    }


def http_servers() -> dict[str, tuple[int, list[str], dict[str, str], dict[str, Any]]]:
    """Port, command, environment and configuration of each."""
    everyday, sdk1, sdk = (str(SERVERS / name) for name in ("everyday.py", "sdk1.py", "sdk.py"))
    found: dict[str, tuple[int, list[str], dict[str, str], dict[str, Any]]] = {}

    def add(name: str, command: list[str], path: str = "mcp", **config: Any) -> None:
        port = free_port()
        full = [*command, str(port)] if "index.js" not in command[1] else command
        url = f"http://127.0.0.1:{port}/{path}"
        found[name] = (port, full, {"PORT": str(port)}, {"url": url, **config})

    add("everything_http", peers.npm("server-everything", "streamableHttp"))
    add("everything_sse", peers.npm("server-everything", "sse"), "sse", transport="sse")
    add("fastmcp_old_http", peers.python("fastmcp-old", everyday, "http"))
    add("fastmcp_new_http", peers.python("fastmcp-new", everyday, "http"))
    add("sdk1_http", peers.python("fastmcp-old", sdk1, "http"))
    add("sdk1_sse", peers.python("fastmcp-old", sdk1, "sse"), "sse", transport="sse")
    add("sdk_http", [sys.executable, sdk, "http"])
    return found


def wait_for_all(sidecar: Sidecar, names: frozenset[str]) -> None:
    """Until every server's tools are offered."""
    end = time.monotonic() + START_TIMEOUT
    while True:
        with urllib.request.urlopen(sidecar.rest + "/tools", timeout=60) as answer:
            tools = json.load(answer)["tools"]
        missing = {name for name in names if not any(_owned(tool, name) for tool in tools)}
        if not missing:
            return
        assert time.monotonic() < end, f"never ready: {sorted(missing)}\n{sidecar.log()}"
        time.sleep(0.2)


def _owned(tool: dict[str, Any], server: str) -> bool:
    return str(tool["name"]).startswith(server + "__")


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Everything that is installed, started once."""
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="real-"))
        folder = Path(temporary).resolve()
        (files := folder / "files").mkdir()
        repository = make_repository(folder / "repository")
        site = stack.enter_context(website(folder / "site"))
        installed = {n for n, part in PART_OF.items() if not part or not peers.why_missing(part)}
        configured = {**stdio_servers(folder, repository, files)}
        for name, (port, command, env, config) in http_servers().items():
            configured[name] = config
            if name in installed:
                stack.enter_context(serving(command, port, folder, **env))
        for era in ("legacy", "modern"):
            # The same server, and one era of it each.
            configured[f"sdk_{era}"] = {"url": configured["sdk_http"]["url"], "era": era}
        servers = {name: {**PLAIN, **configured[name]} for name in PART_OF if name in installed}
        sidecar = stack.enter_context(started({"servers": servers, "list_wait": "5s"}))
        names = frozenset(servers)
        wait_for_all(sidecar, names)
        yield World(sidecar, files, repository, site, names)


@pytest.fixture
def sidecar(world: World) -> Sidecar:
    return world.sidecar
