"""How the page's files are served, and what may reach the admin listener through a browser."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import aiohttp
import pytest

from sidecar.admin.api import ACTOR, Answer, Route, answer
from sidecar.admin.listener import AdminListener
from sidecar.admin.page import HEADERS, files
from sidecar.admin.roles import Actor, Role, Tokens
from sidecar.config import Listen

NOBODY = frozenset({2**22 + 1})  # above the kernel's pid limit: nobody descends from it
TOKENS = Tokens([("right", Actor("alice", Role.APPROVER)), ("view", Actor("vera", Role.VIEWER))])
RIGHT = {"Authorization": "Bearer right"}
STATIC = Path(str(resources.files("sidecar.admin") / "static"))


def route() -> Route:
    async def handle(request: object) -> object:
        return answer({"by": request[ACTOR].name})  # type: ignore[index]

    about = {200: Answer("Done.", {"type": "object"})}
    return Route("POST", "/v1/thing", handle, Role.APPROVER, "thing", "Do it.", about)  # type: ignore[arg-type]


@pytest.fixture
async def base() -> AsyncIterator[str]:
    listener = AdminListener([route()], tokens=TOKENS, own=NOBODY)
    yield await listener.start(Listen("127.0.0.1", 0))
    await listener.close()


@pytest.fixture
async def on_socket(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    path = tmp_path / "admin.sock"
    listener = AdminListener([route()], tokens=Tokens(), own=NOBODY)
    await listener.start(Listen(path=path))
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        yield http
    await listener.close()


@pytest.mark.parametrize("path", sorted(files()))
async def test_files_are_served_before_anybody_has_signed_in(
    base: str, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.get(base + path) as got:
        assert got.status == 200
        assert {name: got.headers[name] for name in HEADERS} == dict(HEADERS)
        body, tag = await got.read(), got.headers["ETag"]
    name = path.removeprefix("/page/") if path != "/" else "index.html"
    assert body == (STATIC / name).read_bytes()
    async with http.get(base + path, headers={"If-None-Match": tag}) as again:
        assert (again.status, await again.read()) == (304, b"")
        assert again.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


def test_every_file_of_the_page_is_served() -> None:
    names = {entry.name for entry in STATIC.iterdir()}
    assert {f"/page/{name}" for name in names - {"index.html"}} | {"/"} == set(files())


async def test_nothing_else_of_the_disk_is(base: str, http: aiohttp.ClientSession) -> None:
    for path in ("/page/", "/page/../page.py", "/page/%2e%2e/page.py", "/page/index.html"):
        async with http.get(base + path) as got:
            assert got.status == 401, path
        async with http.get(base + path, headers=RIGHT) as got:
            assert got.status == 404, path


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    html = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="/page/page.js">']
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|data:", html)
    for file in STATIC.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|url\(", text), file.name
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


SINKS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "createContextualFragment",
    "DOMParser",
    "document.write",
    "setHTML",
    "srcdoc",
    "eval(",
    "Function(",
)


def test_scripts_write_text_only() -> None:
    for file in STATIC.glob("*.js"):
        found = [sink for sink in SINKS if sink in file.read_text()]
        assert found == [], file.name


async def test_whose_token(base: str, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{base}/v1/me", headers=RIGHT) as got:
        assert await got.json() == {"name": "alice", "role": "approver"}
    async with http.get(f"{base}/v1/me", headers={"Authorization": "Bearer view"}) as got:
        assert await got.json() == {"name": "vera", "role": "viewer"}
    async with http.get(f"{base}/v1/me") as got:
        assert got.status == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:1", 200),  # a forwarded port
        ("127.0.0.1", 200),
        ("[::1]:8809", 200),
        ("rebound.example", 421),
        ("127.0.0.1.rebound.example", 421),
        ("intranet", 421),
        ("10.0.0.1", 421),
        ("", 400),
    ],
)
async def test_host_over_tcp(
    base: str, http: aiohttp.ClientSession, host: str, status: int
) -> None:
    for path in ("/", "/v1/me"):
        async with http.get(base + path, headers={**RIGHT, "Host": host}) as got:
            assert got.status == status
            if status == 421:
                reason = json.loads(await got.read())["reason"]
                assert (reason, got.content_type) == ("host", "application/problem+json")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("x", 200), ("127.0.0.1:8809", 200), ("rebound.example", 421)],
)
async def test_host_over_the_socket(
    on_socket: aiohttp.ClientSession, host: str, status: int
) -> None:
    async with on_socket.get("http://x/v1/me", headers={"Host": host}) as got:
        assert got.status == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:7777", 200),
        ("https://localhost:7777", 200),  # behind something that ends TLS
        ("http://localhost:7778", 403),  # another program of this machine
        ("http://127.0.0.1:7777", 403),
        ("http://evil.example", 403),
        ("http://localhost:7777.evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_only_pages_of_this_listener_may_send(
    base: str,
    http: aiohttp.ClientSession,
    on_socket: aiohttp.ClientSession,
    origin: str,
    status: int,
) -> None:
    headers = {"Host": "localhost:7777", "Origin": origin}
    for client, where in ((http, base), (on_socket, "http://x")):
        async with client.post(f"{where}/v1/thing", headers={**RIGHT, **headers}) as got:
            assert got.status == status, where
            assert "Access-Control-Allow-Origin" not in got.headers


async def test_a_browser_is_told_of_no_other_origin_that_may_read(
    base: str, http: aiohttp.ClientSession
) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    async with http.options(f"{base}/v1/thing", headers=headers) as got:
        assert got.status == 403
        assert not [name for name in got.headers if name.lower().startswith("access-control")]


async def test_the_page_is_on_the_socket_too(on_socket: aiohttp.ClientSession) -> None:
    async with on_socket.get("http://localhost/") as got:
        assert got.status == 200
        assert got.content_type == "text/html"
    async with on_socket.get("http://localhost/v1/me") as got:
        assert (await got.json())["role"] == "operator"
