"""Pinned dialling with real sockets, real DNS and real TLS.

127.0.0.2 stands for a public address (a rule allows it), 127.0.0.1 for a private one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from sidecar.config import Limits, ServerConfig
from sidecar.config.secrets import EnvFileSecrets
from sidecar.egress.check import About, Denied
from sidecar.egress.dial import MOST_RETIRED, ServerDialer, pinned
from sidecar.egress.resolve import SystemResolver
from sidecar.events import LegChanged
from sidecar.policy import load
from sidecar.upstream import McpServer
from tests.egress.kit import Bench, policy
from tests.egress.net import Dns, Seen, serving

GOOD, EVIL = "127.0.0.2", "127.0.0.1"
RULES = f"""
- id: lab
  on: connect
  effect: allow
  when: 'addresses.all(a, a.ip == "{GOOD}") && url.host != "localhost"'
  message: '"stands for the public internet"'
"""


@pytest.fixture(scope="module")
def one_dns() -> Iterator[Dns]:
    with Dns() as server:
        yield server


@pytest.fixture
def dns(one_dns: Dns) -> Dns:
    one_dns.answers = {}
    one_dns.asked = []
    return one_dns


@pytest.fixture
async def resolver(dns: Dns) -> AsyncIterator[SystemResolver]:
    system = SystemResolver(dns.look_up, keep=0)
    yield system
    await system.close()


@pytest.fixture
async def both() -> AsyncIterator[tuple[Seen, Seen]]:
    """The good server, and an evil one at the same port."""
    async with serving(GOOD) as good, serving(EVIL, port=good.port) as evil:
        yield good, evil


class Lab:
    """A client session that dials as a server added at run time does."""

    def __init__(self, bench: Bench, stack: AsyncExitStack) -> None:
        self.bench = bench
        self.stack = stack

    async def session(
        self, url: str, *, runtime: bool = True, tls: bool | ssl.SSLContext = True
    ) -> aiohttp.ClientSession:
        config = ServerConfig("s", "http", url=url, runtime=runtime)
        dialer = ServerDialer(self.bench.check, config, ssl=tls)
        session = aiohttp.ClientSession(connector=dialer.connector("s", url), trust_env=False)
        return await self.stack.enter_async_context(session)


@pytest.fixture
async def lab(tmp_path: Path, resolver: SystemResolver) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(Bench(policy(tmp_path, RULES), resolver=resolver), stack)


async def denial(session: aiohttp.ClientSession, url: str) -> str:
    """The rule by which a request to ``url`` was denied."""
    with pytest.raises(aiohttp.ClientConnectorError) as caught:
        async with session.get(url):
            pass
    assert isinstance(caught.value.os_error, Denied)
    return caught.value.os_error.decision.rule


# -------------------------------------------------------------------------------- rebinding


async def test_a_rebinding_server_never_gets_a_byte(
    lab: Lab, dns: Dns, both: tuple[Seen, Seen]
) -> None:
    good, evil = both
    url = f"http://flip.example.net:{good.port}/mcp"
    dns.answers["flip.example.net"] = [[GOOD], [EVIL]]
    session = await lab.session(url)
    async with session.get(url, headers={"Connection": "close"}) as response:
        assert response.status == 200
    # One look-up for one connection: what was checked is what was dialled.
    assert dns.asked == ["flip.example.net."]
    assert await denial(session, url) == "egress/loopback"
    assert dns.asked == ["flip.example.net."] * 2
    assert (good.connections, evil.connections) == (1, 0)
    rules = [each.decision.rule for each in lab.bench.decided]
    assert rules == ["op/lab", "egress/loopback"]


async def test_a_kept_connection_stays_with_the_peer_that_was_checked(
    lab: Lab, dns: Dns, both: tuple[Seen, Seen]
) -> None:
    good, evil = both
    url = f"http://flip.example.net:{good.port}/mcp"
    dns.answers["flip.example.net"] = [[GOOD], [EVIL]]
    session = await lab.session(url)
    for _ in range(20):
        async with session.get(url) as response:
            await response.read()
    assert (good.connections, len(good.requests), evil.connections) == (1, 20, 0)
    assert len(lab.bench.decided) == 1


@pytest.mark.parametrize(
    "answer",
    [[GOOD, EVIL], [EVIL, GOOD], ["127.0.0.3", EVIL], ["::1"], ["::ffff:7f00:1"], ["0.0.0.0"]],
)
async def test_one_bad_address_of_an_answer_is_enough(
    lab: Lab, dns: Dns, both: tuple[Seen, Seen], answer: list[str]
) -> None:
    """Happy eyeballs may take any of them."""
    good, evil = both
    url = f"http://mixed.example.net:{good.port}/"
    dns.answers["mixed.example.net"] = [answer]
    session = await lab.session(url)
    assert (await denial(session, url)).startswith("egress/")
    assert (good.connections, evil.connections) == (0, 0)


async def test_every_address_that_passed_may_be_tried(lab: Lab, dns: Dns, tmp_path: Path) -> None:
    """The first does not answer; the second is dialled, and both had been checked."""
    lab.bench.policy = policy(tmp_path, RULES.replace('== "127.0.0.2"', '!= "127.0.0.1"'))
    async with serving("127.0.0.3") as alive:
        dns.answers["two.example.net"] = [["127.0.0.4", "127.0.0.3"]]
        url = f"http://two.example.net:{alive.port}/"
        session = await lab.session(url)
        async with session.get(url) as response:
            assert response.status == 200
        assert alive.connections == 1


# -------------------------------------------------------------------------- other spellings


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::]",
        "①②⑦.0.0.1",
        "127。0。0。1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "good.example.net@127.0.0.1",
        "localhost",
        "localhost.",
    ],
)
async def test_no_spelling_reaches_it(lab: Lab, both: tuple[Seen, Seen], host: str) -> None:
    """aiohttp asks no resolver about addresses: the second wall holds."""
    good, evil = both
    url = f"http://{host}:{good.port}/"
    session = await lab.session("http://good.example.net/")
    with pytest.raises(aiohttp.ClientError):
        async with session.get(url):
            pass
    assert (good.connections, evil.connections) == (0, 0)


async def test_an_address_as_host_is_checked_and_dialled(lab: Lab, both: tuple[Seen, Seen]) -> None:
    good, _ = both
    url = f"http://{GOOD}:{good.port}/"
    session = await lab.session(url)
    async with session.get(url) as response:
        assert response.status == 200
    assert [each.decision.rule for each in lab.bench.decided] == ["op/lab"]
    assert lab.bench.decided[0].target == f"http://{GOOD}:{good.port}"


async def test_the_librarys_own_redirects_are_walled_in_too(lab: Lab, dns: Dns) -> None:
    """Nothing of ours lets aiohttp follow redirects; if something did, this would hold."""

    async def away(request: web.BaseRequest) -> web.StreamResponse:
        raise web.HTTPFound(f"http://{EVIL}:{evil.port}/")

    async with serving(EVIL) as evil, serving(GOOD, away) as good:
        dns.answers["good.example.net"] = [[GOOD]]
        url = f"http://good.example.net:{good.port}/"
        session = await lab.session(url)
        assert await denial(session, url) == "egress/loopback"
        assert (good.connections, evil.connections) == (1, 0)


# --------------------------------------------------------------------------------------- TLS


async def test_tls_names_the_host_and_not_the_address(lab: Lab, dns: Dns) -> None:
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with serving(GOOD, cert=authority.issue_cert("good.example.net")) as good:
        dns.answers = {"good.example.net": [[GOOD]], "other.example.net": [[GOOD]]}
        url = f"https://good.example.net:{good.port}/"
        session = await lab.session(url, tls=trusting)
        async with session.get(url) as response:
            assert response.status == 200
        assert good.names == ["good.example.net"]
        assert good.requests[0][2]["Host"] == f"good.example.net:{good.port}"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with session.get(f"https://other.example.net:{good.port}/"):
                pass
        strict = await lab.session(url)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            async with strict.get(url):
                pass
        assert len(good.requests) == 1


# ------------------------------------------------------------------------ configured servers


async def test_configured_servers_are_dialled_wherever_they_are(
    lab: Lab, dns: Dns, both: tuple[Seen, Seen]
) -> None:
    _, evil = both
    dns.answers["inside.example.net"] = [[EVIL]]
    for host in ("inside.example.net", EVIL):
        url = f"http://{host}:{evil.port}/mcp"
        session = await lab.session(url, runtime=False)
        async with session.get(url) as response:
            assert response.status == 200
    assert [each.decision.rule for each in lab.bench.decided] == ["egress/configured"] * 2


@pytest.mark.parametrize("host", ["inside.example.net", EVIL])
async def test_a_rule_keeps_the_sidecar_from_a_configured_server(
    lab: Lab, dns: Dns, both: tuple[Seen, Seen], tmp_path: Path, host: str
) -> None:
    _, evil = both
    rules = f"""
- id: not-there
  on: connect
  effect: deny
  when: 'addresses.exists(a, a.ip == "{EVIL}") && server.name == "s" && url.path == "/mcp"'
  message: '"moved"'
"""
    lab.bench.policy = policy(tmp_path, rules)
    dns.answers["inside.example.net"] = [[EVIL]]
    url = f"http://{host}:{evil.port}/mcp"
    session = await lab.session(url, runtime=False)
    assert await denial(session, url) == "op/not-there"
    assert evil.connections == 0


async def test_a_configured_name_without_address_is_told_as_such(lab: Lab) -> None:
    url = "http://nowhere.example.net/mcp"
    session = await lab.session(url, runtime=False)
    with pytest.raises(aiohttp.ClientConnectorError) as caught:
        async with session.get(url):
            pass
    assert "the host name cannot be resolved" in str(caught.value.os_error)


# ------------------------------------------------------------------------------ policy swaps


async def test_after_a_change_of_policy_the_next_request_is_dialled_anew(
    lab: Lab, dns: Dns, tmp_path: Path
) -> None:
    """What runs goes on; what comes is decided under the new revision."""
    release = asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/slow":
            await release.wait()
        return web.Response(text="fine")

    async with serving(GOOD, slow) as good:
        dns.answers["good.example.net"] = [[GOOD]]
        url = f"http://good.example.net:{good.port}"
        session = await lab.session(f"{url}/")
        running = asyncio.create_task(_text(session, f"{url}/slow"))
        assert await _text(session, f"{url}/a") == "fine"
        assert await _text(session, f"{url}/b") == "fine"
        assert good.connections == 2
        lab.bench.policy = load(())
        assert await denial(session, f"{url}/c") == "egress/loopback"
        release.set()
        assert await running == "fine"
        lab.bench.policy = policy(tmp_path, RULES)
        assert await _text(session, f"{url}/d") == "fine"
        assert good.connections == 3


async def test_connections_of_former_policies_are_bounded(
    lab: Lab, dns: Dns, tmp_path: Path
) -> None:
    async with serving(GOOD) as good:
        dns.answers["good.example.net"] = [[GOOD]]
        url = f"http://good.example.net:{good.port}/"
        session = await lab.session(url)
        for number in range(MOST_RETIRED + 4):
            lab.bench.policy = policy(tmp_path, f"{RULES}\n# revision {number}\n")
            assert await _text(session, url) == "fine"
        connector = session.connector
        assert good.connections == MOST_RETIRED + 4
        assert len(connector._retired) == MOST_RETIRED  # type: ignore[union-attr]
        await session.close()
        assert connector is not None
        assert connector.closed
        with pytest.raises(RuntimeError, match="closed"):
            await _text(session, url)


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()


# --------------------------------------------------------------------------------- one check


async def test_a_pinned_connector_dials_what_was_checked_and_nothing_else(
    lab: Lab, dns: Dns, both: tuple[Seen, Seen]
) -> None:
    good, evil = both
    dns.answers["once.example.net"] = [[GOOD], [EVIL]]
    url = f"http://once.example.net:{good.port}/"
    checked = await lab.bench.check.url(url, "added")
    async with aiohttp.ClientSession(connector=pinned(checked)) as session:
        for _ in range(2):
            assert await _text(session, url) == "fine"
        for other in (
            f"http://other.example.net:{good.port}/",
            f"http://once.example.net:{good.port + 1}/",
            f"http://{EVIL}:{good.port}/",
            f"http://{GOOD}:{good.port + 1}/",
        ):
            with pytest.raises(aiohttp.ClientConnectorError):
                await _text(session, other)
    assert (good.connections, evil.connections) == (2, 0)
    assert len(dns.asked) == 1
    denied = await lab.bench.check.url(url, "added")
    with pytest.raises(Denied):
        pinned(denied)


# ------------------------------------------------------------------------------ the HTTP leg


async def test_a_leg_says_which_rule(lab: Lab, dns: Dns, both: tuple[Seen, Seen]) -> None:
    good, evil = both
    dns.answers["flip.example.net"] = [[EVIL]]
    config = ServerConfig(
        "added", "http", url=f"http://flip.example.net:{good.port}/mcp", runtime=True
    )
    dialer = ServerDialer(lab.bench.check, config)
    down = asyncio.Event()
    lab.bench.bus.listen(LegChanged, lambda event: down.set() if event.error else None)
    server = McpServer(
        config,
        name="sidecar",
        bus=lab.bench.bus,
        limits=Limits(),
        secrets=EnvFileSecrets({}),
        connector=dialer,
        source="runtime",
    )
    server.start()
    try:
        async with asyncio.timeout(30):
            await down.wait()
        assert server.status.error == (
            "cannot connect: denied by rule egress/loopback: "
            "the address is loopback: it is this machine itself"
        )
    finally:
        await server.close()
    assert evil.connections == 0


# -------------------------------------------------------------------------- the resolver


async def test_names_are_asked_once_for_connections_made_together() -> None:
    asked = []

    def slow(host: str) -> list[str]:
        asked.append(host)
        return ["93.184.216.34"]

    system = SystemResolver(slow)
    found = await asyncio.gather(*(system.addresses("a.example.com") for _ in range(50)))
    assert (asked, set(found)) == (["a.example.com"], {("93.184.216.34",)})
    await system.close()


async def test_a_look_up_that_hangs_ends_and_keeps_nobody_else_waiting() -> None:
    import threading

    free = threading.Event()

    def hangs(host: str) -> list[str]:
        if host == "slow.example.com.":
            free.wait(5)
        return ["93.184.216.34"]

    system = SystemResolver(hangs, timeout=0.2)
    bench = Bench(load((), shipped=()), resolver=system)
    slow = asyncio.create_task(bench.check.url("http://slow.example.com/", "added"))
    quick = await bench.check.url("http://quick.example.com/", "added")
    assert quick.ok
    assert (await slow).decision.rule == "egress/unresolved"
    free.set()
    await system.close()


async def test_the_systems_resolver() -> None:
    system = SystemResolver()
    assert "127.0.0.1" in await system.addresses("localhost")
    bench = Bench(load((), shipped=()), resolver=system)
    about = About.of(ServerConfig("s", "http", url="http://localhost/"))
    checked = await bench.check.url("http://localhost/", "dial", about)
    assert "127.0.0.1" in checked.addresses
    assert (await bench.check.url("http://no-such-name.invalid/", "added")).decision.rule == (
        "egress/unresolved"
    )
    await system.close()


HANGING = """
import asyncio, time
from sidecar.egress.resolve import THREADS, SystemResolver
from sidecar.ports.resolver import Unresolved

running = 0

def hangs(host):
    global running
    running += 1
    time.sleep(600)

async def main():
    system = SystemResolver(hangs, timeout=0.3)
    names = [f"{n}.example.com" for n in range(THREADS * 3)]
    found = await asyncio.gather(*map(system.addresses, names), return_exceptions=True)
    assert all(isinstance(each, Unresolved) for each in found), found
    assert running == THREADS, running
    await system.close()

asyncio.run(main())
"""


def test_look_ups_that_hang_are_bounded_and_hold_up_no_exit() -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
