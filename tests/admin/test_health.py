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


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8810", 200),
        ("localhost", 200),
        ("[::1]:9", 200),
        ("rebound.example:8810", 421),
        ("10.1.2.3", 421),
    ],
)
async def test_metrics_are_not_for_web_pages(host: str, status: int) -> None:
    async def page(accept: str) -> tuple[bytes, str]:
        return f"asked for {accept}".encode(), "text/x-metrics"

    listener = HealthListener(lambda: None, page)
    base = await listener.start(Listen("127.0.0.1", 0))
    headers = {"Host": host, "Accept": "text/plain"}
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{base}/metrics", headers=headers) as got,
        http.get(f"{base}/nowhere", headers=headers) as other,
    ):
        text = await got.text()
        assert got.status == status
        assert (text == "asked for text/plain") is (status == 200)
        assert (other.status, await other.text()) == (
            404,
            "here are /livez, /readyz and /metrics\n",
        )
    await listener.close()


async def test_in_a_pod_whoever_reaches_it_reads_metrics() -> None:
    async def page(accept: str) -> tuple[bytes, str]:
        return b"all of it", "text/plain"

    listener = HealthListener(lambda: None, page)
    base = await listener.start(Listen("0.0.0.0", 0))
    port = base.rpartition(":")[2]
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": "sidecar.ns.svc"}) as got,
    ):
        assert (got.status, await got.text()) == (200, "all of it")
    await listener.close()
