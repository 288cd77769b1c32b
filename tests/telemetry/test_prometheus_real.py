"""Prometheus itself scrapes a sidecar, and answers every query that docs and dashboards show."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.kit.client import Legacy
from tests.kit.running import Sidecar, running
from tests.peers.prometheus import MISSING, programs
from tests.telemetry.test_metric_docs import BLOCK, QUERIES, promql

pytestmark = pytest.mark.skipif(programs() is None, reason=MISSING)

NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"], "trusted": True}
DEAD: dict[str, Any] = {"url": "http://127.0.0.1:9/mcp"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _started(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with (folder / "prometheus.log").open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
        )


def _checked(page: bytes) -> bytes:
    """What promtool says of a page."""
    found = programs()
    assert found is not None
    done = subprocess.run(
        [found[1], "check", "metrics"], input=page, capture_output=True, timeout=30, check=False
    )
    return done.stderr + done.stdout


@contextlib.asynccontextmanager
async def prometheus(sidecar: Sidecar, folder: Path) -> AsyncIterator[str]:
    """The base URL of a Prometheus that scrapes the sidecar each second."""
    found = programs()
    assert found is not None
    target = sidecar.health.removeprefix("http://")
    scrape = {"job_name": "sidecar", "static_configs": [{"targets": [target]}]}
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    )
    port = free_port()
    process = _started(
        folder,
        found[0],
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 20)


async def query(http: aiohttp.ClientSession, base: str, expression: str) -> Any:
    """The result; a query that Prometheus does not take fails the test."""
    params = {"query": expression}
    async with http.get(f"{base}/api/v1/query", params=params) as response:
        told = await response.json()
        assert told["status"] == "success", (expression, told)
        return told["data"]["result"]


async def until(http: aiohttp.ClientSession, base: str, expression: str) -> Any:
    """The first result that is not empty."""
    for _ in range(300):
        with contextlib.suppress(aiohttp.ClientError):
            found = await query(http, base, expression)
            if found:
                return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"never anything: {expression}")


async def test_every_query_is_taken_and_answered(tmp_path: Path) -> None:
    config = {
        "servers": {"notes": {**NOTES, "gated": False}, "dead": DEAD},
        "store": f"sqlite:{tmp_path}/state.db",
        "audit": str(tmp_path / "audit.jsonl"),
    }
    async with (
        aiohttp.ClientSession() as http,
        running(config) as sidecar,
        prometheus(sidecar, tmp_path) as base,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add")
        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}

        async def calls() -> None:
            for _ in range(20):
                given = {"name": "notes__add", "arguments": {"text": "x"}, "_meta": trace}
                await client.request("tools/call", given)

        await calls()
        await until(http, base, "sidecar_calls_total == 20")
        await calls()
        await until(http, base, "sidecar_calls_total == 40")
        for expression in promql():
            await query(http, base, expression)
        rate = "rate(mcp_client_operation_duration_seconds_bucket[5m])"
        [slow] = await query(
            http, base, f"histogram_quantile(0.95, sum by (le, sidecar_server) ({rate}))"
        )
        assert slow["metric"] == {"sidecar_server": "notes"}
        assert 0 < float(slow["value"][1]) < 60
        [down] = await until(http, base, "sidecar_server_up == 0")
        assert down["metric"]["sidecar_server"] == "dead"
        [info] = await query(http, base, "target_info")
        assert info["metric"]["service_name"] == "sidecar"
        # Prometheus asks for OpenMetrics, and so has the exemplars too.
        params = {
            "query": "mcp_server_operation_duration_seconds_bucket",
            "start": "0",
            "end": "9e9",
        }
        async with http.get(f"{base}/api/v1/query_exemplars", params=params) as response:
            exemplars = (await response.json())["data"]
        assert exemplars[0]["exemplars"][0]["labels"]["trace_id"] == "a" * 32
        async with http.get(f"{sidecar.health}/metrics") as response:
            page = await response.read()
    # It has views on names, and OpenTelemetry's translation has others; it can read all of it.
    said = await asyncio.to_thread(_checked, page)
    assert b"error" not in said, said
    assert b"parsing" not in said, said


def test_the_alerts_are_rules(tmp_path: Path) -> None:
    found = programs()
    assert found is not None
    [rules] = [body for kind, body in BLOCK.findall(QUERIES) if kind == "yaml"]
    file = tmp_path / "rules.yml"
    file.write_text(rules)
    done = subprocess.run(
        [found[1], "check", "rules", str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(yaml.safe_load(rules)['groups'][0]['rules'])} rules found" in done.stdout
