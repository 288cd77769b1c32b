"""Redirects, followed one checked hop at a time, between real servers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from sidecar.egress.check import Denied
from sidecar.egress.follow import MOST_HOPS, NotFollowed, next_hop, request
from sidecar.egress.urls import parse
from tests.egress.kit import Bench, policy
from tests.egress.net import Handler, Seen, serving

GOOD, OTHER, EVIL = "127.0.0.2", "127.0.0.3", "127.0.0.1"
RULES = f"""
- id: lab
  on: connect
  effect: allow
  when: 'addresses.all(a, a.ip in ["{GOOD}", "{OTHER}"])'
  message: '"stands for the public internet"'
"""
NAMES = {"good.example.net": [GOOD], "other.example.net": [OTHER], "evil.example.net": [EVIL]}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(policy(tmp_path, RULES), NAMES)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as exits:
        yield exits


def to(location: str, status: int = 302) -> Handler:
    async def away(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": location})

    return away


async def fetch(bench: Bench, url: str, method: str = "GET", data: bytes | None = None) -> str:
    async with request(
        bench.check,
        method,
        url,
        reason="oauth",
        headers={"X-Plain": "yes"},
        credentials={"Authorization": "Bearer s3cret", "Cookie": "a=b"},
        data=data,
    ) as answer:
        assert await answer.response.text() == "fine"
        return f"{answer.hops} {answer.target.canonical}"


async def test_credentials_stay_with_their_origin(bench: Bench, stack: AsyncExitStack) -> None:
    last = await stack.enter_async_context(serving(GOOD))
    there = await stack.enter_async_context(
        serving(OTHER, to(f"http://good.example.net:{last.port}/back"))
    )
    first = await stack.enter_async_context(
        serving(GOOD, to(f"http://other.example.net:{there.port}/there"))
    )
    url = f"http://good.example.net:{first.port}/"
    reached = await fetch(bench, url)
    assert reached == f"2 http://good.example.net:{last.port}/back"
    assert "Authorization" in first.requests[0][2]
    for seen in (there, last):
        headers = seen.requests[0][2]
        assert headers["X-Plain"] == "yes"
        assert headers["Host"].endswith(f":{seen.port}")
        assert not {"Authorization", "Cookie"} & headers.keys()
    assert [each.target for each in bench.decided] == [
        f"http://good.example.net:{first.port}",
        f"http://other.example.net:{there.port}",
        f"http://good.example.net:{last.port}",
    ]


async def test_led_away_and_back_credentials_do_not_come_again(
    bench: Bench, stack: AsyncExitStack
) -> None:
    async def home(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/back":
            return web.Response(text="fine")
        return await to(f"http://other.example.net:{there.port}/")(request)

    first = await stack.enter_async_context(serving(GOOD, home))
    there = await stack.enter_async_context(
        serving(OTHER, to(f"http://good.example.net:{first.port}/back"))
    )
    await fetch(bench, f"http://good.example.net:{first.port}/")
    assert ["Authorization" in each[2] for each in first.requests] == [True, False]


async def test_on_the_same_origin_credentials_stay(bench: Bench, stack: AsyncExitStack) -> None:
    async def home(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/moved":
            return web.Response(text="fine")
        return await to("/moved?x=1", 301)(request)

    first = await stack.enter_async_context(serving(GOOD, home))
    reached = await fetch(bench, f"http://good.example.net:{first.port}/")
    assert reached == f"1 http://good.example.net:{first.port}/moved?x=1"
    assert [each[2]["Authorization"] for each in first.requests] == ["Bearer s3cret"] * 2


@pytest.mark.parametrize(
    "location",
    ["http://evil.example.net:{port}/", "http://127.0.0.1:{port}/", "//127.0.0.1:{port}/"],
)
async def test_a_redirect_inside_is_denied_before_a_byte(
    bench: Bench, stack: AsyncExitStack, location: str
) -> None:
    evil = await stack.enter_async_context(serving(EVIL))
    first = await stack.enter_async_context(serving(GOOD, to(location.format(port=evil.port))))
    with pytest.raises(Denied, match="egress/loopback"):
        await fetch(bench, f"http://good.example.net:{first.port}/")
    assert evil.connections == 0


@pytest.mark.parametrize("status", [307, 308])
async def test_a_body_is_sent_on_where_the_status_says_so(
    bench: Bench, stack: AsyncExitStack, status: int
) -> None:
    last = await stack.enter_async_context(serving(OTHER))
    first = await stack.enter_async_context(
        serving(GOOD, to(f"http://other.example.net:{last.port}/", status))
    )
    await fetch(bench, f"http://good.example.net:{first.port}/", "POST", b"body")
    assert (last.requests[0][0], last.requests[0][3]) == ("POST", b"body")


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_post_does_not_become_a_get(
    bench: Bench, stack: AsyncExitStack, status: int
) -> None:
    last = await stack.enter_async_context(serving(OTHER))
    first = await stack.enter_async_context(
        serving(GOOD, to(f"http://other.example.net:{last.port}/", status))
    )
    with pytest.raises(NotFollowed, match=str(status)):
        await fetch(bench, f"http://good.example.net:{first.port}/", "POST", b"body")
    assert last.connections == 0


async def test_redirects_end(bench: Bench, stack: AsyncExitStack) -> None:
    first = await stack.enter_async_context(serving(GOOD, to("/again")))
    with pytest.raises(NotFollowed, match=f"more than {MOST_HOPS}"):
        await fetch(bench, f"http://good.example.net:{first.port}/")
    assert len(first.requests) == MOST_HOPS + 1


async def test_environment_proxies_have_no_say(
    bench: Bench, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await stack.enter_async_context(serving(EVIL))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    first = await stack.enter_async_context(serving(GOOD))
    await fetch(bench, f"http://good.example.net:{first.port}/")
    assert (first.connections, proxy.connections) == (1, 0)


async def test_over_tls(bench: Bench, stack: AsyncExitStack) -> None:
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    last: Seen = await stack.enter_async_context(
        serving(OTHER, cert=authority.issue_cert("other.example.net"))
    )
    first: Seen = await stack.enter_async_context(
        serving(
            GOOD,
            to(f"https://other.example.net:{last.port}/x"),
            cert=authority.issue_cert("good.example.net"),
        )
    )
    async with request(
        bench.check,
        "GET",
        f"https://good.example.net:{first.port}/",
        reason="oauth",
        ssl=trusting,
    ) as answer:
        assert answer.target.path == "/x"
    assert (first.names, last.names) == (["good.example.net"], ["other.example.net"])


@pytest.mark.parametrize(
    ("location", "why"),
    [
        (None, "without a Location"),
        ("http://example.org/", "from https to http"),
        ("file:///etc/passwd", "cannot be read"),
        ("http:127.0.0.1/", "cannot be read"),
        ("https://user:s3cret@example.org/", "cannot be read"),
        ("/\\127.0.0.1/", "cannot be read"),
        ("https://example.org:0/", "cannot be read"),
    ],
)
def test_what_is_not_followed(location: str | None, why: str) -> None:
    with pytest.raises(NotFollowed, match=why) as caught:
        next_hop(parse("https://example.com/"), "GET", 302, location)
    assert "s3cret" not in str(caught.value)
