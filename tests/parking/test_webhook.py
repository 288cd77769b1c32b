"""A receiver of our own, on real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import web

from sidecar.config import SecretRef, Webhook
from sidecar.config.secrets import EnvFileSecrets
from sidecar.parking import webhook
from sidecar.parking.record import Parked, State
from sidecar.parking.webhook import Hook
from sidecar.ports.connector import DirectConnector

SECRET = "of-some-length-it-is"


def parked(n: int = 1, **rest: Any) -> Parked:
    given: dict[str, Any] = {
        "id": f"id-{n}",
        "claim": "c",
        "state": State.WAITING,
        "kind": "mcp",
        "method": "tools/call",
        "tool": "s__write",
        "server": "s",
        "upstream_name": "write",
        "principal": "agent",
        "args": msgspec.Raw(b'{"password":"hunter2"}'),
        "rules": ("gating/gated",),
        "message": "approval is needed: hunter2",
        "message_constant": False,
        "asked_at": 1_800_000_000.0,
        "expires_at": 1_800_086_400.0,
    }
    return Parked(**{**given, **rest})


@dataclass
class Receiver:
    port: int = 0
    statuses: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    hang: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        if self.hang:
            await asyncio.sleep(30)
        status = self.statuses.pop(0) if self.statuses else 200
        headers = {"Location": self.url} if 300 <= status < 400 else None
        return web.Response(status=status, headers=headers)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.fixture
async def hook(receiver: Receiver) -> AsyncIterator[Callable[..., Hook]]:
    made: list[Hook] = []

    def make(*, arguments: bool = False, url: str = "") -> Hook:
        secret, where = SecretRef(literal=SECRET), SecretRef(literal=url or receiver.url)
        config = Webhook(where, secret, arguments)
        secrets = EnvFileSecrets({})
        hook = Hook(config, secrets, lambda url: DirectConnector(), name="desk", pause=0.01)
        hook.start()
        made.append(hook)
        return hook

    yield make
    for each in made:
        await each.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.005)


async def test_it_is_signed_and_holds_no_argument(
    receiver: Receiver, hook: Callable[..., Hook]
) -> None:
    hook().tell(parked())
    await until(lambda: receiver.got)
    headers, body = receiver.got[0]
    stamp, _, signature = headers["Sidecar-Signature"].removeprefix("t=").partition(",v1=")
    expected = hmac.new(SECRET.encode(), stamp.encode() + b"." + body, hashlib.sha256)
    assert signature == expected.hexdigest()
    assert abs(int(stamp) - time.time()) < 5
    assert b"hunter2" not in body
    assert json.loads(body) == {
        "event": "parked",
        "sidecar": "desk",
        "call": {
            "id": "id-1",
            "state": "waiting",
            "tool": "s__write",
            "server": "s",
            "principal": "agent",
            "rules": ["gating/gated"],
            "labels": [],
            "asked_at": "2027-01-15T08:00:00.000Z",
            "expires_at": "2027-01-16T08:00:00.000Z",
        },
    }


async def test_arguments_where_the_operator_wants_them(
    receiver: Receiver, hook: Callable[..., Hook]
) -> None:
    hook(arguments=True).tell(parked())
    await until(lambda: receiver.got)
    call = json.loads(receiver.got[0][1])["call"]
    assert call["args"] == {"password": "hunter2"}
    assert call["message"] == "approval is needed: hunter2"


async def test_a_message_that_quotes_nothing_is_told(
    receiver: Receiver, hook: Callable[..., Hook]
) -> None:
    hook().tell(parked(message="ask first", message_constant=True))
    await until(lambda: receiver.got)
    assert json.loads(receiver.got[0][1])["call"]["message"] == "ask first"


async def test_a_failure_is_tried_again_with_the_same_delivery(
    receiver: Receiver, hook: Callable[..., Hook]
) -> None:
    receiver.statuses = [500, 503, 200]
    made = hook()
    made.tell(parked(1))
    made.tell(parked(2))
    await until(lambda: len(receiver.got) == 4)
    ids = [json.loads(body)["call"]["id"] for _, body in receiver.got]
    assert ids == ["id-1", "id-1", "id-1", "id-2"]
    deliveries = [headers["Sidecar-Delivery"] for headers, _ in receiver.got]
    assert len(set(deliveries)) == 2


@pytest.mark.parametrize("status", [400, 404, 307])
async def test_a_refusal_is_not_tried_again_and_no_redirect_followed(
    receiver: Receiver, hook: Callable[..., Hook], status: int
) -> None:
    receiver.statuses = [status]
    made = hook()
    made.tell(parked(1))
    made.tell(parked(2))
    await until(lambda: len(receiver.got) == 2)
    assert json.loads(receiver.got[1][1])["call"]["id"] == "id-2"


async def test_nobody_is_there(
    receiver: Receiver, hook: Callable[..., Hook], caplog: pytest.LogCaptureFixture
) -> None:
    made = hook(url="http://127.0.0.1:1/secret-path")
    made.tell(parked())
    await until(lambda: "was not taken" in caplog.text)
    assert "secret-path" not in caplog.text


async def test_telling_never_waits_and_what_waits_is_bounded(
    receiver: Receiver, hook: Callable[..., Hook]
) -> None:
    receiver.hang = True
    made = hook()
    began = time.perf_counter()
    for n in range(webhook.MOST + 50):
        made.tell(parked(n))
    assert time.perf_counter() - began < 20
    assert len(made._waiting) == webhook.MOST
    await until(lambda: receiver.got)
    await asyncio.wait_for(made.close(), 30)
