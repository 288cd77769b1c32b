"""Through a real collector: rotel reads what we send, and hands it on to a receiver of ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import rotel

from sidecar.events import Bus
from sidecar.model import NO_TRACE, TraceContext
from sidecar.telemetry.otlp.batches import Counts
from sidecar.telemetry.traces import Tracing
from tests.cases.behind import dead_port
from tests.telemetry.spans import Receiver, receiving

AGENT = Path(rotel.__file__).with_name("rotel-agent")
PARENT = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01", "x=y")


@asynccontextmanager
async def collector(
    receiver: Receiver, folder: Path, grpc_port: int | None = None
) -> AsyncIterator[str]:
    """A collector in front of the receiver; its address."""
    http, grpc = dead_port(), grpc_port or dead_port()
    command = [str(AGENT), "start", "--pid-file", str(folder / "pid")]
    options = {
        "otlp-http-endpoint": f"127.0.0.1:{http}",
        "otlp-grpc-endpoint": f"127.0.0.1:{grpc}",
        "exporter": "otlp",
        "otlp-exporter-endpoint": receiver.url,
        "otlp-exporter-protocol": "http",
    }
    command += [part for key, value in options.items() for part in (f"--{key}", value)]
    log = folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, cwd=folder
        )
    url = f"http://127.0.0.1:{http}"
    try:
        end = time.monotonic() + 40
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(url):
                        break
                except aiohttp.ClientError:
                    assert process.returncode is None and time.monotonic() < end, log.read_text()
                    await asyncio.sleep(0.05)
        yield url
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)


@pytest.mark.parametrize("how", ["none", "gzip"])
async def test_a_real_collector_reads_and_hands_on(how: str, tmp_path: Path) -> None:
    async with receiving() as receiver, collector(receiver, tmp_path) as url:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": how,
            "OTEL_BSP_SCHEDULE_DELAY": "20",
        }
        made = Tracing("me", Bus(), environ)
        await made.start()
        whole = made.tracer.start("tools/call s__x", "server", PARENT)
        whole.set("text", "ä\u2028\U0001f600")
        whole.set("yes", True)
        whole.set("n", -(1 << 60))
        whole.set("x", 0.25)
        whole.set("many", ["a", ""])
        whole.event("happened", {"k": "v"})
        whole.link(TraceContext(f"00-{'c' * 32}-{'d' * 16}-01"))
        whole.end("-32050", "it broke")
        for number in range(500):
            made.tracer.start(f"n{number}", "client", NO_TRACE).end()
        found = await receiver.until(lambda spans: len(spans) == 501)
        await made.close()
        assert made.batches[0].counts == Counts(sent=501)
    assert sorted(span.name for span in found) == sorted(
        ["tools/call s__x", *(f"n{number}" for number in range(500))]
    )
    (seen,) = (span for span in found if span.name == "tools/call s__x")
    assert (seen.service, seen.kind, seen.trace, seen.parent) == (
        "me",
        "server",
        "a" * 32,
        "b" * 16,
    )
    assert seen.attributes == {
        "text": "ä\u2028\U0001f600",
        "yes": True,
        "n": -(1 << 60),
        "x": 0.25,
        "many": ["a", ""],
        "error.type": "-32050",
    }
    assert seen.links == [("c" * 32, "d" * 16)]
    assert (seen.error, seen.message, seen.raw.trace_state) == (True, "it broke", "x=y")
    assert [event.name for event in seen.raw.events] == ["happened"]
    assert 0 < seen.began <= seen.ended


async def test_over_grpc_with_the_sdks_exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = dead_port()
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    # The SDK's exporter reads the process's own environment.
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    async with receiving() as receiver, collector(receiver, tmp_path, port):
        made = Tracing("me", Bus(), environ)
        await made.start()
        made.tracer.start("over gRPC", "server", PARENT).end("denied")
        found = await receiver.until(lambda spans: len(spans) == 1)
        await made.close()
    assert (found[0].name, found[0].parent, found[0].error) == ("over gRPC", "b" * 16, True)
    assert made.batches[0].counts == Counts(sent=1)
