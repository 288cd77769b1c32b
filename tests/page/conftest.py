"""A browser for all tests, and a sidecar with an agent and a few people for each module."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.running import Sidecar, started
from tests.page.browser import WIDE, Browser
from tests.peers.chromium import MISSING, programs

JsonObject = dict[str, Any]

SERVER = [sys.executable, str(Path(__file__).with_name("server.py"))]
ROLES = {"alice": "approver", "bob": "approver", "vera": "viewer", "olga": "operator"}


def token(name: str) -> str:
    """Long enough to be taken for one."""
    return f"token-of-{name}-0123456789"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if programs() is None:
        pytest.skip(MISSING)
    browser = Browser()
    yield browser
    browser.close()


class Agent:
    """Calls tools over REST, each call in a thread of its own."""

    def __init__(self, mcp: str) -> None:
        """``mcp`` is the URL of the agents' listener."""
        self._host = urllib.parse.urlsplit(mcp).netloc
        self._pool = ThreadPoolExecutor(200)
        self._connections: list[http.client.HTTPConnection] = []

    def calls(self, tool: str, args: JsonObject | None = None) -> Future[tuple[int, JsonObject]]:
        """Begin a call; its status and answer."""
        return self._pool.submit(self._call, tool, args or {})

    def _call(self, tool: str, args: JsonObject) -> tuple[int, JsonObject]:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        self._connections.append(connection)
        body = json.dumps({"name": tool, "args": args})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/call", body=body, headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def close(self) -> None:
        """Hang up on everything that still waits."""
        for connection in self._connections:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(2)
        self._pool.shutdown(wait=True, cancel_futures=True)


class World:
    """A sidecar, its agent, and the admin API as one of the people."""

    def __init__(self, sidecar: Sidecar) -> None:
        self.sidecar = sidecar
        self.agent = Agent(sidecar.mcp)

    @property
    def page(self) -> str:
        return self.sidecar.admin.replace("127.0.0.1", "localhost")

    def ask(self, method: str, path: str, who: str = "olga", body: Any = None) -> tuple[int, Any]:
        url = urllib.parse.urlsplit(self.sidecar.admin)
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        headers = {"Authorization": f"Bearer {token(who)}"}
        sent = None
        if body is not None:
            sent, headers["Content-Type"] = json.dumps(body), "application/json"
        connection.request(method, path, body=sent, headers=headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data) if data else None

    def waiting(self) -> list[JsonObject]:
        calls: list[JsonObject] = self.ask("GET", "/v1/calls?state=waiting")[1]["calls"]
        return calls

    def until_waiting(self, number: int, within: float = 40.0) -> list[JsonObject]:
        end = time.monotonic() + within
        while len(found := self.waiting()) != number:
            assert time.monotonic() < end, f"{len(found)} calls wait, not {number}"
            time.sleep(0.03)
        return found

    def answer(self, id: str, what: str, who: str, why: str = "") -> tuple[int, Any]:
        return self.ask("POST", f"/v1/calls/{id}/{what}", who, {"why": why} if why else {})

    def quiet(self) -> None:
        """Nothing waits any more."""
        self.agent.close()
        for call in self.waiting():
            self.answer(call["id"], "deny", "olga")
        self.until_waiting(0)
        self.agent = Agent(self.sidecar.mcp)


def config(folder: Path, **more: Any) -> JsonObject:
    """People with tokens at a TCP listener, and a server whose tools are all of ours."""
    for name in ROLES:
        (folder / name).write_text(token(name))
        (folder / name).chmod(0o600)
    approvers = {
        name: {"token_file": str(folder / name), "role": role} for name, role in ROLES.items()
    }
    (folder / "root").write_text(token("root"))
    return {
        "admin": {
            "listen": "127.0.0.1:0",
            "token_file": str(folder / "root"),
            "approvers": approvers,
        },
        "servers": {"desk": {"command": SERVER}},
        "policy": {"shipped": ["gating", "labels"]},
        "parking": {"hold": "50s", "max_waiting": 900, "rate": "100000/m"},
        **more,
    }


@contextlib.contextmanager
def world_of(config: JsonObject) -> Iterator[World]:
    with started(config) as sidecar:
        world = World(sidecar)
        end = time.monotonic() + 15
        while not world.ask("GET", "/v1/tools")[1]["tools"]:
            assert time.monotonic() < end, "the server never listed its tools"
            time.sleep(0.05)
        try:
            yield world
        finally:
            world.agent.close()


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of(config(tmp_path_factory.mktemp("page"))) as world:
        yield world


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """A sidecar in which nothing waits."""
    yield shared_world
    shared_world.quiet()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, and no complaint of it at the end but about refusals that a test asked for."""
    chromium.console()
    yield chromium
    said = [line for line in chromium.console() if "Failed to load resource" not in line]
    chromium.driver.get("about:blank")
    assert said == []


Enter = Callable[..., Browser]


@pytest.fixture
def enter(world: World, browser: Browser) -> Enter:
    """``enter(who, section, size=, scheme=)``: the page, as somebody who has signed in."""

    def enter(
        who: str = "alice",
        section: str = "",
        *,
        size: tuple[int, int] = WIDE,
        scheme: str = "light",
    ) -> Browser:
        browser.fresh(f"{world.page}/#token={token(who)}", size, scheme)
        browser.one("#who", who)
        browser.one("#live.live")
        if section:
            browser.js(f"location.hash = '#/{section}'")
            browser.one(f"main[data-section={section}]")
        return browser

    return enter
