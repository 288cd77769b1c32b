"""The operator's listener: who may use it, what it shows, and how it says no."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from sidecar.admin.api import Route
from sidecar.admin.client import AdminClient, AdminError
from sidecar.admin.listener import AdminListener, SocketInUse
from sidecar.admin.roles import Actor, Role, Tokens
from sidecar.admin.routes import servers, sessions, tools
from sidecar.config import Config, LabelsConfig, Listen
from sidecar.gate.ledger import Ledger
from sidecar.model import Era, Hints, JsonObject, ServerStatus, State, Tool
from sidecar.store.memory import MemoryStore
from sidecar.upstream.registry import Registry, Rules

NOBODY = frozenset({2**22 + 1})  # above the kernel's pid limit: nobody descends from it

TOOL = Tool(
    name="git__log",
    server="git",
    upstream_name="log",
    annotations={"read_only": True},
    hints=Hints(read_only=True, destructive=False),
    gated=False,
    gate_set=False,
    trusted=True,
    digest="ab" * 32,
    json=b'{"name":"git__log"}',
    own_json=b'{"name":"log"}',
)
SERVERS = [
    ServerStatus("git", "configured", "stdio", State.READY, Era.LEGACY, tools=1),
    ServerStatus("web", "configured", "http", State.BACKOFF, error="refused", retry_in=1.5),
]
SESSION: JsonObject = {"id": "0a1b", "principal": "agent"}


def registry() -> Registry:
    return Registry(
        MemoryStore(),
        shared=False,
        rules=Rules.of(Config()),
        make=lambda config: pytest.fail("nothing is added here"),
        end=lambda server: None,
        placed=lambda: None,
    )


def routes() -> list[Route]:
    return [
        *servers.routes(lambda: SERVERS, registry()),
        *tools.routes(lambda: [TOOL]),
        *sessions.routes(lambda: [SESSION], Ledger(MemoryStore(), LabelsConfig())),
    ]


NO_TOKENS = Tokens()
RIGHT = Tokens([("right", Actor("admin", Role.OPERATOR))])


@pytest.fixture
async def on_socket(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "run" / "admin.sock"
    listener = AdminListener(routes(), tokens=NO_TOKENS, own=NOBODY)
    assert await listener.start(Listen(path=path)) == f"unix:{path}"
    yield path
    await listener.close()
    assert not path.exists()


async def test_shapes(on_socket: Path) -> None:
    client = AdminClient(f"unix:{on_socket}")
    assert await asyncio.to_thread(client.servers) == [
        {
            "name": "git",
            "source": "configured",
            "transport": "stdio",
            "state": "ready",
            "era": "legacy",
            "tools": 1,
        },
        {
            "name": "web",
            "source": "configured",
            "transport": "http",
            "state": "backoff",
            "tools": 0,
            "error": "refused",
            "retry_in": 1.5,
        },
    ]
    assert await asyncio.to_thread(client.tools) == [
        {
            "name": "git__log",
            "server": "git",
            "upstream_name": "log",
            "annotations": {"read_only": True},
            "hints": {
                "read_only": True,
                "destructive": False,
                "idempotent": False,
                "open_world": True,
            },
            "gated": False,
            "trusted": True,
            "digest": "ab" * 32,
        }
    ]
    assert await asyncio.to_thread(client.sessions) == [SESSION]


async def test_only_our_uid_can_open_the_socket(on_socket: Path) -> None:
    assert stat.S_IMODE(on_socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(on_socket.parent.stat().st_mode) == 0o700


CONNECT = """
import http.client, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
s.sendall(b"GET /v1/servers HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
r = http.client.HTTPResponse(s); r.begin(); print(r.status)
"""


async def outcome(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    return out.decode().strip()


@pytest.mark.parametrize(
    "wrapper",
    [(), ("setsid", "-w"), ("sh", "-c", '"$@"', "sh")],
    ids=["child", "own-session", "grandchild"],
)
async def test_what_the_sidecar_started_is_refused(tmp_path: Path, wrapper: tuple[str]) -> None:
    path = tmp_path / "admin.sock"
    listener = AdminListener(routes(), tokens=NO_TOKENS, own=frozenset({os.getpid()}))
    await listener.start(Listen(path=path))
    try:
        assert await outcome(*wrapper, sys.executable, "-c", CONNECT, str(path)) == "403"
    finally:
        await listener.close()


async def test_what_it_did_not_start_is_an_operator(on_socket: Path) -> None:
    assert await outcome(sys.executable, "-c", CONNECT, str(on_socket)) == "200"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
async def test_another_uid_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    listener = AdminListener(routes(), tokens=NO_TOKENS, own=NOBODY)
    await listener.start(Listen(path=path))
    path.chmod(0o666)  # even if somebody loosens the mode
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.owner() == "root" and folder != Path("/") and str(folder).count("/") > 1:
            folder.chmod(folder.stat().st_mode | 0o011)
    # Its imports come first: the interpreter's own files may be closed to the other user.
    become = CONNECT.replace(
        "s = socket", "import os; os.setgid(65534); os.setuid(65534)\ns = socket"
    )
    try:
        assert await outcome("/usr/bin/env", sys.executable, "-c", become, str(path)) == "403"
    finally:
        await listener.close()


async def test_a_dead_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    first = AdminListener(routes(), tokens=NO_TOKENS, own=NOBODY)
    await first.start(Listen(path=path))
    second = AdminListener(routes(), tokens=NO_TOKENS, own=NOBODY)
    with pytest.raises(SocketInUse, match="another sidecar listens"):
        await second.start(Listen(path=path))
    await second.close()
    assert path.exists(), "the loser must not remove the winner's socket"
    await first.close()


async def test_a_file_in_the_sockets_place_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("precious")
    listener = AdminListener(routes(), tokens=NO_TOKENS, own=NOBODY)
    with pytest.raises(SocketInUse, match="is not a socket"):
        await listener.start(Listen(path=path))
    await listener.close()
    assert path.read_text() == "precious"


async def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    listener = AdminListener(routes(), tokens=NO_TOKENS, own=NOBODY)
    with pytest.raises(SocketInUse, match="written by others"):
        await listener.start(Listen(path=folder / "admin.sock"))
    await listener.close()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic right"}, 401),
        ({"Authorization": "bearer right"}, 200),
    ],
)
async def test_tcp_needs_the_token(header: dict[str, str], status: int) -> None:
    listener = AdminListener(routes(), tokens=RIGHT, own=NOBODY)
    base = await listener.start(Listen("127.0.0.1", 0))
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{base}/v1/servers", headers=header) as got,
    ):
        assert got.status == status
        if status == 401:
            assert got.content_type == "application/problem+json"
            assert (await got.json(content_type=None))["status"] == 401
    await listener.close()


async def test_tcp_without_a_token_is_not_bound() -> None:
    listener = AdminListener(routes(), tokens=NO_TOKENS, own=NOBODY)
    with pytest.raises(ValueError, match="needs a token"):
        await listener.start(Listen("127.0.0.1", 0))
    await listener.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("POST", "/v1/servers", 405), ("GET", "/v1/../secrets", 404)],
)
async def test_errors_are_problems(method: str, path: str, status: int) -> None:
    listener = AdminListener(routes(), tokens=RIGHT, own=NOBODY)
    base = await listener.start(Listen("127.0.0.1", 0))
    headers = {"Authorization": "Bearer right"}
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, base + path, headers=headers) as got,
    ):
        assert got.status == status
        body = json.loads(await got.read())
    assert (body["status"], body["type"]) == (status, "about:blank")
    await listener.close()


def test_the_client_says_what_to_do_when_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match="start one with `sidecar run`"):
        AdminClient(f"unix:{tmp_path}/none.sock").servers()
