"""The kubelet's listener tells its word and nothing else."""

from __future__ import annotations

import aiohttp
import pytest

from sidecar.admin.health import HealthListener
from sidecar.config import Listen


@pytest.mark.parametrize(
    ("why", "method", "path", "host", "status", "text"),
    [
        (None, "GET", "/livez", "10.1.2.3:8810", 200, "ok\n"),
        (None, "GET", "/readyz", "10.1.2.3:8810", 200, "ok\n"),
        ("draining", "GET", "/readyz", "any", 503, "draining\n"),
        ("draining", "GET", "/livez", "any", 200, "ok\n"),
        (None, "GET", "/", "any", 404, "here are /livez and /readyz\n"),
        (None, "POST", "/livez", "any", 405, ""),
        (None, "GET", "/v1/servers", "any", 404, "here are /livez and /readyz\n"),
    ],
)
async def test_answers(
    why: str | None, method: str, path: str, host: str, status: int, text: str
) -> None:
    listener = HealthListener(lambda: why)
    base = await listener.start(Listen("127.0.0.1", 0))
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, base + path, headers={"Host": host}) as got,
    ):
        assert (got.status, await got.text()) == (status, text)
    await listener.close()
