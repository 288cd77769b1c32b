"""What was lost on the way is told with the reason, also when it was never given up before."""

from __future__ import annotations

import socket

import pytest
from aiohttp import web

from tests.telemetry.spans import receiving
from tests.telemetry.test_export_http import ENDPOINT, spans, tracing, until


async def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving() as receiver:
        url = receiver.url
    async with tracing({ENDPOINT: url}) as made:
        spans(made, "one")
    assert (
        f"1 spans were lost on the way to {url}/v1/traces: it cannot be reached (Client"
        in caplog.text
    )


async def test_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with tracing({ENDPOINT: url}) as made:
            spans(made, "one")
    assert f"lost on the way to {url}/v1/traces: it does not answer in time" in caplog.text


async def test_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving() as receiver:
        receiver.answer = lambda: web.Response(status=401)
        async with tracing({ENDPOINT: receiver.url}) as made:
            spans(made, "one")
            await until(lambda: made.batches[0].lost() == 1)
    lost = f"1 spans were lost on the way to {receiver.url}/v1/traces: it answers 401"
    assert lost in caplog.text
