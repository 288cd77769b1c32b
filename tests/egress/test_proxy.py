"""The forward proxy with curl, aiohttp and bare sockets through it.

127.0.0.2 stands for the public internet, and 127.0.0.1 for this machine.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from sidecar.config import Listen, ProxyLimits, ServerConfig
from sidecar.egress import proxy as module
from sidecar.egress.proxy import ForwardProxy
from sidecar.ports.proxy import NoProxy
from tests.egress.kit import Bench, policy
from tests.egress.net import Handler, Seen, fine, serving

GOOD, EVIL = "127.0.0.2", "127.0.0.1"
RULES = f"""
- id: lab
  on: connect
  effect: allow
  when: 'addresses.all(a, a.ip in ["{GOOD}", "{EVIL}"])'
  message: '"stands for the public internet"'
- id: closed
  on: connect
  effect: deny
  when: 'url.host == "closed.example.net" || url.path.startsWith("/closed")'
  message: '"closed by the operator"'
"""
NAMES = {
    "good.example.net": [GOOD],
    "evil.example.net": [EVIL],
    "closed.example.net": [GOOD],
    "inside.example.net": ["10.0.0.7"],
    "dead.example.net": ["127.0.0.9"],
}
TOKEN = "s3cret-token"
BASIC = base64.b64encode(f"app:{TOKEN}".encode()).decode()


class Lab:
    """A proxy that knows the client ``app``, and what stands behind it."""

    def __init__(self, bench: Bench, limits: ProxyLimits) -> None:
        self.bench = bench
        self.proxy = ForwardProxy(bench.check, limits)
        self.address = ""
        self.stack = AsyncExitStack()

    async def start(self) -> None:
        self.proxy.update({"app": TOKEN}, self.proxy._limits)
        self.address = await self.proxy.start(Listen(EVIL, 0))

    @property
    def url(self) -> str:
        return f"http://app:{TOKEN}@{self.address}"

    @property
    def rules(self) -> list[tuple[str, str]]:
        return [(each.principal, each.decision.rule) for each in self.bench.decided]

    async def serve(
        self, handler: Handler = fine, host: str = GOOD, cert: trustme.LeafCert | None = None
    ) -> Seen:
        return await self.stack.enter_async_context(serving(host, handler, cert=cert))

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.stack.callback(writer.close)
        return reader, writer

    async def raw(self, data: str | bytes) -> bytes:
        """Send bytes; everything that comes back."""
        reader, writer = await self.open()
        writer.write(data.encode() if isinstance(data, str) else data)
        async with asyncio.timeout(30):
            return await reader.read(-1)

    async def tunnel(self, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.open()
        writer.write(
            f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"
            f"Proxy-Authorization: Basic {BASIC}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return reader, writer


@asynccontextmanager
async def lab_with(folder: Path, limits: ProxyLimits) -> AsyncIterator[Lab]:
    bench = Bench(
        policy(folder, RULES),
        NAMES,
        never=lambda address: "this machine" if address.text == EVIL else None,
    )
    lab = Lab(bench, limits)
    await lab.start()
    try:
        async with lab.stack:
            yield lab
    finally:
        await lab.proxy.close()
        assert lab.proxy._tasks == {}
        assert lab.proxy._using == {}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with lab_with(tmp_path, ProxyLimits()) as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        yield session


async def curl(*arguments: str) -> tuple[int, str]:
    """Exit code, and what it printed."""
    path = shutil.which("curl")
    if path is None:
        pytest.skip("curl is not installed")
    process = await asyncio.create_subprocess_exec(
        path, "-sS", "--max-time", "20", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing tells when a connection is gone
            await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------------- curl


async def test_curl(lab: Lab, tmp_path: Path) -> None:
    good = await lab.serve()
    url = f"http://good.example.net:{good.port}"
    assert await curl("-x", lab.url, f"{url}/a?b=c") == (0, "fine")
    method, path, headers, _ = good.requests[0]
    assert (method, path) == ("GET", "/a?b=c")
    assert headers["Host"] == f"good.example.net:{good.port}"
    assert headers["Via"] == "1.1 sidecar"
    assert not {"Proxy-Authorization", "Proxy-Connection"} & headers.keys()
    assert lab.rules == [("app", "op/lab")]
    assert lab.bench.decided[0].target == url
    # A tunnel, asked for without TLS.
    assert await curl("-p", "-x", lab.url, f"{url}/tunnel") == (0, "fine")
    assert lab.bench.decided[1].target == f"connect://good.example.net:{good.port}"
    # A body for which curl asks first whether to go on.
    (tmp_path / "body").write_bytes(b"xyz" * (1 << 20))
    data = ("--data-binary", f"@{tmp_path}/body")
    assert await curl("-x", lab.url, "-H", "Expect: 100-continue", *data, url) == (0, "fine")
    assert good.requests[-1][3] == b"xyz" * (1 << 20)


async def test_curl_with_tls(lab: Lab, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    good = await lab.serve(cert=authority.issue_cert("good.example.net"))
    arguments = ("-x", lab.url, "--cacert", str(tmp_path / "ca.pem"))
    assert await curl(*arguments, f"https://good.example.net:{good.port}/") == (0, "fine")
    assert good.names == ["good.example.net"]


async def test_curl_is_told_why_not(lab: Lab) -> None:
    code, told = await curl("-x", lab.url, "http://closed.example.net/")
    assert (code, told) == (0, "sidecar: denied by rule op/closed: closed by the operator\n")
    code, told = await curl("-x", lab.url, "https://inside.example.net/")
    assert code != 0
    assert "403" in told
    code, told = await curl("-x", f"http://{lab.address}", "http://good.example.net/")
    assert told.startswith("sidecar: send a name of egress.proxy.clients")


# ---------------------------------------------------------------------------------- aiohttp


async def test_aiohttp(lab: Lab, http: aiohttp.ClientSession) -> None:
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    plain = await lab.serve()
    secure = await lab.serve(cert=authority.issue_cert("good.example.net"))
    for _ in range(3):
        async with http.get(f"http://good.example.net:{plain.port}/", proxy=lab.url) as response:
            assert await response.text() == "fine"
            assert response.headers["Via"] == "1.1 sidecar"
        async with http.post(
            f"https://good.example.net:{secure.port}/", proxy=lab.url, ssl=trusting, data=b"x"
        ) as response:
            assert await response.text() == "fine"
    # One decision a plain request; a tunnel is kept, and has one.
    assert (plain.connections, len(plain.requests)) == (3, 3)
    assert (secure.connections, len(secure.requests)) == (1, 3)
    assert len(lab.rules) == 4
    with pytest.raises(aiohttp.ClientHttpProxyError) as caught:
        async with http.get("https://inside.example.net/", proxy=lab.url, ssl=trusting):
            pass
    assert caught.value.status == 403


async def test_streams_of_all_kinds_pass_unchanged(lab: Lab, http: aiohttp.ClientSession) -> None:
    """Chunked both ways, megabytes, in pieces."""
    big = bytes(range(256)) * 8192

    async def echo(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        body = good.requests[-1][3]
        for at in range(0, len(body), 100_000):
            await response.write(body[at : at + 100_000])
        await response.write_eof()
        return response

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(big), 77_777):
            yield big[at : at + 77_777]

    good = await lab.serve(echo)
    url = f"http://good.example.net:{good.port}/"
    async with http.post(url, proxy=lab.url, data=pieces()) as response:
        assert await response.read() == big
    assert good.requests[0][2]["Transfer-Encoding"] == "chunked"
    assert good.requests[0][3] == big


async def test_events_come_as_they_are_sent(lab: Lab, http: aiohttp.ClientSession) -> None:
    more = asyncio.Event()

    async def stream(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await more.wait()
        await response.write(b"data: 2\n\n")
        return response

    good = await lab.serve(stream)
    async with http.get(f"http://good.example.net:{good.port}/", proxy=lab.url) as response:
        assert await response.content.readany() == b"data: 1\n\n"
        more.set()
        assert await response.content.readany() == b"data: 2\n\n"


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("status", [204, 304, 200])
async def test_answers_without_a_body(
    lab: Lab, http: aiohttp.ClientSession, method: str, status: int
) -> None:
    async def none(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status)

    good = await lab.serve(none)
    url = f"http://good.example.net:{good.port}/"
    async with http.request(method, url, proxy=lab.url) as response:
        assert (response.status, await response.read()) == (status, b"")


# ----------------------------------------------------------------------------- who may use it


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Proxy-Authorization: Basic %%%\r\n",
        "Proxy-Authorization: Basic " + base64.b64encode(b"app:wrong").decode() + "\r\n",
        "Proxy-Authorization: Basic "
        + base64.b64encode(f"other:{TOKEN}".encode()).decode()
        + "\r\n",
        "Proxy-Authorization: Basic " + base64.b64encode(TOKEN.encode()).decode() + "\r\n",
        "Proxy-Authorization: Basic " + base64.b64encode(b"\xff:\xfe").decode() + "\r\n",
        f"Proxy-Authorization: Bearer {TOKEN}x\r\n",
        f"Proxy-Authorization: Digest {TOKEN}\r\n",
        f"Authorization: Basic {BASIC}\r\n",
        f"Proxy-Authorization: Basic {BASIC}\r\nProxy-Authorization: Basic {BASIC}\r\n",
    ],
)
@pytest.mark.parametrize(
    "request_line", ["CONNECT good.example.net:443", "GET http://inside.example.net/", "GET /"]
)
async def test_strangers_get_407_and_nothing_else(lab: Lab, request_line: str, line: str) -> None:
    """Before anything is looked at: no look-up, no decision."""
    told = await lab.raw(f"{request_line} HTTP/1.1\r\n{line}\r\n")
    assert told.startswith(b"HTTP/1.1 407 Proxy Authentication Required\r\n")
    assert b'\r\nProxy-Authenticate: Basic realm="sidecar", charset="UTF-8"\r\n' in told
    assert TOKEN.encode() not in told
    assert lab.rules == []
    assert lab.bench.resolver.asked == []


async def test_a_bearer_will_do(lab: Lab) -> None:
    good = await lab.serve()
    told = await lab.raw(
        f"GET http://good.example.net:{good.port}/ HTTP/1.1\r\n"
        f"Proxy-Authorization: bearer {TOKEN}\r\n\r\n"
    )
    assert told.endswith(b"\r\n\r\nfine")


async def test_a_childs_own_credential(lab: Lab, http: aiohttp.ClientSession) -> None:
    good = await lab.serve()
    url = f"http://good.example.net:{good.port}/"
    config = ServerConfig("fetch", "stdio", command=("x",), egress="proxy")
    first, second = lab.proxy.grant(config), lab.proxy.grant(config)
    env = first.env
    assert env["HTTPS_PROXY"] == env["http_proxy"] != second.env["HTTPS_PROXY"]
    assert (env["NO_PROXY"], env["NODE_USE_ENV_PROXY"]) == ("localhost,127.0.0.1,::1", "1")
    async with http.get(url, proxy=env["HTTP_PROXY"]) as response:
        assert response.status == 200
    assert lab.rules == [("server:fetch", "op/lab")]
    first.revoke()
    first.revoke()
    async with http.get(url, proxy=env["HTTP_PROXY"]) as response:
        assert response.status == 407
    async with http.get(url, proxy=second.env["HTTP_PROXY"]) as response:
        assert response.status == 200


async def test_rules_see_which_child_it_is(lab: Lab, tmp_path: Path) -> None:
    rules = """
- id: mine
  on: connect
  effect: deny
  when: >-
    reason == "proxy" && server.name == "fetch" && server.transport == "stdio"
    && !server.runtime && agent.principal == "server:fetch" && url.scheme == "connect"
    && url.path == ""
  message: '"seen"'
"""
    lab.bench.policy = policy(tmp_path, rules)
    grant = lab.proxy.grant(ServerConfig("fetch", "stdio", command=("x",)))
    _, told = await curl("-x", grant.env["HTTPS_PROXY"], "https://good.example.net/")
    assert "403" in told
    assert lab.rules == [("server:fetch", "op/mine")]


async def test_access_that_ends_takes_its_connections_along(lab: Lab) -> None:
    good = await lab.serve()
    target = f"good.example.net:{good.port}"
    reader, _ = await lab.tunnel(target)
    grant = lab.proxy.grant(ServerConfig("fetch", "stdio", command=("x",)))
    other, writer = await lab.open()
    token = grant.env["HTTP_PROXY"].split("@")[0].rpartition(":")[2]
    writer.write(
        f"CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Bearer {token}\r\n\r\n".encode()
    )
    await other.readuntil(b"\r\n\r\n")
    lab.proxy.update({"app": TOKEN}, ProxyLimits())
    grant.revoke()
    async with asyncio.timeout(30):
        assert await other.read(1) == b""
    assert not reader.at_eof()
    lab.proxy.update({"app": "another"}, ProxyLimits())
    async with asyncio.timeout(30):
        assert await reader.read(1) == b""


async def test_no_grant_without_a_listener(lab: Lab) -> None:
    await lab.proxy.close()
    with pytest.raises(NoProxy, match="does not listen"):
        lab.proxy.grant(ServerConfig("fetch", "stdio", command=("x",)))


# --------------------------------------------------------------------------- what is refused


def asking(line: str, *fields: str) -> str:
    auth = f"Proxy-Authorization: Basic {BASIC}\r\n"
    return f"{line} HTTP/1.1\r\n{auth}" + "".join(f"{each}\r\n" for each in fields) + "\r\n"


@pytest.mark.parametrize(
    ("line", "status", "told"),
    [
        ("CONNECT inside.example.net:443", 403, "egress/private"),
        ("CONNECT 10.0.0.1:443", 403, "egress/private"),
        ("CONNECT [::1]:443", 403, "egress/loopback"),
        ("CONNECT localhost:443", 403, "egress/unresolved"),
        ("CONNECT 169.254.169.254:80", 403, "egress/metadata"),
        ("CONNECT evil.example.net:443", 403, "egress/own"),
        ("CONNECT 127.0.0.1:443", 403, "egress/own"),
        ("GET http://127.0.0.1:{evil}/", 403, "egress/own"),
        ("CONNECT nowhere.example.net:443", 403, "egress/unresolved"),
        ("CONNECT 93.184.216.34:22", 403, "egress/port"),
        ("GET http://good.example.net/closed", 403, "op/closed"),
        ("CONNECT 127.1:443", 400, "plain spelling"),
        ("CONNECT good.example.net", 400, "port"),
        ("CONNECT http://good.example.net:443", 400, "cannot be read"),
        ("GET http://user:pw@good.example.net/", 400, "user name"),
        ("GET http://0x7f.1/", 400, "plain spelling"),
        ("GET HTTPS://good.example.net/", 400, "for https, ask for a tunnel with CONNECT"),
        ("GET ws://good.example.net/", 400, "for ws, ask for a tunnel with CONNECT"),
        ("GET wss://good.example.net/", 400, "for wss, ask for a tunnel with CONNECT"),
        ("GET ftp://good.example.net/", 400, "http://"),
        ("GET /", 400, "serves nothing itself"),
        ("OPTIONS *", 400, "serves nothing itself"),
    ],
)
async def test_refused(lab: Lab, line: str, status: int, told: str) -> None:
    evil = await lab.serve(host=EVIL)
    answer = (await lab.raw(asking(line.format(evil=evil.port)))).decode()
    assert answer.startswith(f"HTTP/1.1 {status} "), answer
    assert told in answer
    assert "user:pw" not in answer
    assert evil.connections == 0


@pytest.mark.parametrize(
    "data",
    [
        "GET http://good.example.net/ HTTP/1.1\nX: y\n\n\r\n\r\n",
        asking("GET http://good.example.net/", "Content-Length: 1", "Content-Length: 2"),
        asking("GET http://good.example.net/", "Content-Length: 1", "Transfer-Encoding: chunked"),
        asking("GET http://good.example.net/", " folded: 1"),
        asking("CONNECT good.example.net:443", "Content-Length: 3"),
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_what_is_no_request(lab: Lab, data: str) -> None:
    assert (await lab.raw(data)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert lab.rules == []


async def test_long_and_slow_heads(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (40_000, 200_000):
        answer = await lab.raw(asking("GET http://good.example.net/", "X: " + "y" * size))
        assert answer.startswith(b"HTTP/1.1 431 "), size
    monkeypatch.setattr(module, "HEAD_WAIT", 0.1)
    assert (await lab.raw("GET http://good")).startswith(b"HTTP/1.1 408 ")
    reader, writer = await lab.open()
    writer.write_eof()
    assert await reader.read() == b""


async def test_a_second_request_on_the_connection_is_not_passed_on(lab: Lab) -> None:
    """It would go without a decision, to where the first one was allowed to go."""
    good = await lab.serve()
    url = f"http://good.example.net:{good.port}"
    smuggled = f"GET {url}/closed HTTP/1.1\r\nHost: x\r\n\r\n"
    for first in (
        asking(f"GET {url}/open"),
        asking(f"POST {url}/open", "Content-Length: 3") + "abc",
        asking(f"POST {url}/open", "Transfer-Encoding: chunked") + "3\r\nabc\r\n0\r\n\r\n",
    ):
        answer = await lab.raw(first + smuggled)
        assert answer.count(b"HTTP/1.1 ") == 1
    assert [each[1] for each in good.requests] == ["/open"] * 3
    assert [each[3] for each in good.requests] == [b"", b"abc", b"abc"]


async def test_a_broken_body_goes_no_further(lab: Lab) -> None:
    good = await lab.serve()
    url = f"http://good.example.net:{good.port}/"
    answer = await lab.raw(asking(f"POST {url}", "Transfer-Encoding: chunked") + "zz\r\n")
    assert answer == b""
    assert good.requests == []


async def bare(lab: Lab, answer: bytes, *, read: bool = True) -> int:
    """A server that says just that, and ends."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if read:
            await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, GOOD, 0)
    lab.stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.1 200 OK\r\nX"],
)
async def test_a_target_that_speaks_no_http(lab: Lab, answer: bytes) -> None:
    port = await bare(lab, answer)
    told = await lab.raw(asking(f"GET http://good.example.net:{port}/"))
    assert told.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


async def test_interim_answers_and_an_end_by_closing(lab: Lab) -> None:
    port = await bare(
        lab,
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        b"HTTP/1.0 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\r\nuntil the end",
    )
    told = await lab.raw(asking(f"GET http://good.example.net:{port}/"))
    early, _, rest = told.partition(b"\r\n\r\n")
    assert early == b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nVia: 1.1 sidecar"
    assert rest == (
        b"HTTP/1.0 200 OK\r\nX-End: 2\r\nVia: 1.1 sidecar\r\nConnection: close\r\n\r\nuntil the end"
    )


async def test_an_early_answer_counts(lab: Lab) -> None:
    """The server answers, and reads nothing of a body that never ends."""
    port = await bare(lab, b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
    told = await lab.raw(
        asking(f"POST http://good.example.net:{port}/", f"Content-Length: {1 << 30}") + "x" * 1000
    )
    assert told.startswith(b"HTTP/1.1 413 No\r\n")


async def test_a_target_that_is_not_there(lab: Lab) -> None:
    told = await lab.raw(asking("CONNECT good.example.net:1"))
    assert told.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


# ---------------------------------------------------------------------------------- tunnels


async def echoing(lab: Lab) -> int:
    """Answers only when the other side has ended: needs half-closed connections."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(b"got %d" % len(data))
        writer.close()

    server = await asyncio.start_server(handle, GOOD, 0)
    lab.stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])


async def test_each_direction_ends_by_itself(lab: Lab) -> None:
    port = await echoing(lab)
    reader, writer = await lab.tunnel(f"good.example.net:{port}")
    for _ in range(64):
        writer.write(b"x" * 65_536)
        await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(30):
        assert await reader.read(-1) == b"got %d" % (64 * 65_536)


async def test_what_comes_with_the_head_is_not_lost(lab: Lab) -> None:
    port = await echoing(lab)
    reader, writer = await lab.open()
    writer.write(asking(f"CONNECT good.example.net:{port}").encode() + b"early")
    writer.write_eof()
    async with asyncio.timeout(30):
        assert (await reader.read(-1)).endswith(b"\r\n\r\ngot 5")


async def test_a_slow_reader_holds_the_sender_back(lab: Lab) -> None:
    """What nobody reads is not gathered in here."""
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    server = await asyncio.start_server(flood, GOOD, 0)
    lab.stack.callback(server.close)
    port = server.sockets[0].getsockname()[1]
    _, writer = await lab.tunnel(f"good.example.net:{port}")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    before = -1
    async with asyncio.timeout(30):
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
    # Four sockets' buffers of the kernel, and our own few chunks.
    assert sent < 40 << 20
    writer.transport.abort()


async def test_the_last_bytes_arrive_also_where_the_reader_is_slow(lab: Lab) -> None:
    big = bytes(range(256)) * 4096

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(big)
        writer.close()

    server = await asyncio.start_server(send, GOOD, 0)
    lab.stack.callback(server.close)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await lab.tunnel(f"good.example.net:{port}")
    writer.write_eof()
    got = b""
    while len(got) < len(big):
        await asyncio.sleep(0.02)
        got += await reader.readexactly(min(65_536, len(big) - len(got)))
    assert got == big
    assert await reader.read(1) == b""


async def test_a_reader_that_reads_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even for the last bytes, which would hold on to the connection for ever."""
    monkeypatch.setattr(module, "FINISH_WAIT", 0.2)
    ours, theirs = socket.socketpair()
    with theirs:
        _, writer = await asyncio.open_connection(sock=ours)
        writer.write(b"x" * (8 << 20))
        async with asyncio.timeout(30):
            await module._finish(writer)
        assert writer.transport.get_write_buffer_size() > 0
        writer.transport.abort()


# ----------------------------------------------------------------------------------- bounds


async def test_so_many_bytes(tmp_path: Path) -> None:
    async with lab_with(tmp_path, ProxyLimits(bytes=100_000)) as lab:
        port = await echoing(lab)
        reader, writer = await lab.tunnel(f"good.example.net:{port}")
        writer.write(b"x" * 99_000)
        writer.write_eof()
        assert await reader.read() == b"got 99000"
        reader, writer = await lab.tunnel(f"good.example.net:{port}")
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"x" * 50_000)
                await writer.drain()
                await asyncio.sleep(0.01)


async def test_so_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Idle for too long, or in use for too long."""
    caplog.set_level("INFO", "sidecar.egress")
    for limits, busy in ((ProxyLimits(idle=0.2), False), (ProxyLimits(time=0.4), True)):
        async with lab_with(tmp_path, limits) as lab:
            port = await echoing(lab)
            reader, writer = await lab.tunnel(f"good.example.net:{port}")
            start = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionError):
                while True:
                    if busy:
                        writer.write(b"x")
                    async with asyncio.timeout(30):
                        await asyncio.sleep(0.05)
                        if reader.exception() is not None:
                            await reader.read(1)
                        if reader.at_eof():
                            raise ConnectionError
            took = asyncio.get_running_loop().time() - start
            assert 0.15 < took < 25
            key = "time" if busy else "idle"
            cut = (
                f"connection of app to good.example.net:{port} was cut at egress.proxy.limits.{key}"
            )
            assert cut in caplog.messages


async def test_use_keeps_a_connection_from_being_idle(tmp_path: Path) -> None:
    async with lab_with(tmp_path, ProxyLimits(idle=2.0)) as lab:
        port = await echoing(lab)
        reader, writer = await lab.tunnel(f"good.example.net:{port}")
        for _ in range(8):
            await asyncio.sleep(0.3)
            writer.write(b"x")
        writer.write_eof()
        assert await reader.read() == b"got 8"


async def test_so_many_connections(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with lab_with(tmp_path, ProxyLimits(connections=2)) as lab:
        good = await lab.serve()
        port = good.port
        target = f"good.example.net:{port}"
        first = await lab.tunnel(target)
        await lab.tunnel(target)
        told = await lab.raw(asking(f"CONNECT {target}"))
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"egress.proxy.limits.connections" in told
        # Another's are counted by themselves.
        grant = lab.proxy.grant(ServerConfig("fetch", "stdio", command=("x",)))
        async with http.get(f"http://{target}/", proxy=grant.env["HTTP_PROXY"]) as response:
            assert response.status == 200
        assert lab.rules[-1] == ("server:fetch", "op/lab")
        first[1].write_eof()
        await first[0].read()
        await until(lambda: lab.proxy._using["app"] == 1)
        await lab.tunnel(target)


async def test_a_client_that_leaves_frees_its_place(lab: Lab) -> None:
    started = asyncio.Event()

    async def never(request: web.BaseRequest) -> web.StreamResponse:
        started.set()
        await asyncio.sleep(60)
        return web.Response()

    good = await lab.serve(never)
    _, writer = await lab.open()
    writer.write(asking(f"GET http://good.example.net:{good.port}/").encode())
    async with asyncio.timeout(30):
        await started.wait()
    assert len(lab.proxy._tasks) == 1
    writer.close()
    await until(lambda: not lab.proxy._tasks)


async def test_drain(lab: Lab) -> None:
    """Nothing new, what runs may end; and what does not end is cut."""
    port = await echoing(lab)
    first = await lab.tunnel(f"good.example.net:{port}")
    second = await lab.tunnel(f"good.example.net:{port}")
    draining = asyncio.create_task(lab.proxy.drain(1.0))
    await asyncio.sleep(0.05)
    with pytest.raises(OSError):
        await lab.open()
    first[1].write(b"abc")
    first[1].write_eof()
    assert await first[0].read() == b"got 3"
    await draining
    await lab.proxy.close()
    async with asyncio.timeout(30):
        assert await second[0].read() == b""


async def test_a_web_socket_through_a_tunnel(lab: Lab, http: aiohttp.ClientSession) -> None:
    async def echo(request: web.BaseRequest) -> web.StreamResponse:
        answering = web.WebSocketResponse()
        await answering.prepare(request)
        async for message in answering:
            await answering.send_str(f"got {message.data}")
        return answering

    authority = trustme.CA()
    good = await lab.serve(echo, cert=authority.issue_cert("good.example.net"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    url = f"wss://good.example.net:{good.port}/live"
    async with http.ws_connect(url, proxy=lab.url, ssl=context) as connection:
        for word in ("one", "two"):
            await connection.send_str(word)
            assert await connection.receive_str(timeout=60) == f"got {word}"
    assert lab.rules == [("app", "op/lab")]
