"""Spans on their way to a receiver: what is sent, sent again, given up, and flushed."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from sidecar.events import Bus
from sidecar.model import NO_TRACE
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.otlp import batches
from sidecar.telemetry.traces import Tracing
from tests.telemetry.spans import Receiver, receiving

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20"}


@asynccontextmanager
async def tracing(environ: Mapping[str, str]) -> AsyncIterator[Tracing]:
    made = Tracing("name-of-the-sidecar", Bus(), {**QUICK, **environ})
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def spans(made: Tracing, *names: str) -> None:
    for name in names:
        made.tracer.start(name, "server", NO_TRACE).end()


async def until(done: object, within: float = 20.0) -> None:
    assert callable(done)
    end = time.monotonic() + within
    while not done():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_what_is_sent() -> None:
    async with receiving() as receiver:
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b"}
        async with tracing({ENDPOINT: receiver.url, **headers}) as made:
            spans(made, "one", "two")
            found = await receiver.until(lambda spans: len(spans) == 2)
            # Later ones follow without anything else happening.
            spans(made, "three")
            await receiver.until(lambda spans: len(spans) == 3)
        assert [span.name for span in found] == ["one", "two"]
        assert found[0].service == "name-of-the-sidecar"
        assert receiver.headers[0]["api-key"] == "a b"
        assert receiver.headers[0]["User-Agent"].startswith("mcp-sidecar/")
        about = receiver.requests[0].resource_spans[0]
        assert about.scope_spans[0].scope.name == "sidecar"
        keys = {pair.key for pair in about.resource.attributes}
        assert {"service.instance.id", "service.version", "telemetry.sdk.name"} <= keys
        assert made.batches[0].counts == batches.Counts(sent=3)


@pytest.mark.parametrize("how", ["gzip", "deflate"])
@pytest.mark.parametrize("count", [3, 400])
async def test_compressed(how: str, count: int) -> None:
    async with receiving() as receiver:
        environ = {ENDPOINT: receiver.url, "OTEL_EXPORTER_OTLP_COMPRESSION": how}
        async with tracing(environ) as made:
            spans(made, *(f"n{n}" for n in range(count)))
        assert [span.name for span in receiver.spans] == [f"n{n}" for n in range(count)]
        assert receiver.headers[0]["Content-Encoding"] == how


async def test_the_name_of_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    # The SDK's detectors read the process's own environment.
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=prod,service.name=no")
    async with receiving() as receiver:
        environ = {ENDPOINT: receiver.url, "OTEL_SERVICE_NAME": "mine"}
        async with tracing(environ) as made:
            spans(made, "x")
        assert receiver.spans[0].service == "mine"
        about = receiver.requests[0].resource_spans[0].resource
        assert ("deployment.environment", "prod") in {
            (pair.key, pair.value.string_value) for pair in about.attributes
        }


async def test_what_is_refused_for_now_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batches, "FIRST_PAUSE", 0.01)
    answers = [web.Response(status=503), web.Response(status=429, headers={"Retry-After": "0"})]
    async with receiving() as receiver:
        receiver.answer = lambda: answers.pop(0) if answers else None
        async with tracing({ENDPOINT: receiver.url}) as made:
            spans(made, "x")
            await receiver.until(lambda spans: len(spans) == 1)
        assert receiver.asked == 3
        assert made.batches[0].counts == batches.Counts(sent=1)
    assert caplog.records == []


async def test_what_is_refused_for_good_is_lost_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    refuse = [True]
    async with receiving() as receiver:
        receiver.answer = lambda: web.Response(status=400) if refuse else None
        async with tracing({ENDPOINT: receiver.url}) as made:
            counts = made.batches[0].counts
            spans(made, "x")
            await until(lambda: counts.failed == 1)
            spans(made, "y")
            await until(lambda: counts.failed == 2)
            refuse.clear()
            spans(made, "z")
            await receiver.until(lambda spans: len(spans) == 1)
        assert receiver.asked == 3
    told = [record.getMessage() for record in caplog.records]
    assert sum("cannot be exported" in text for text in told) == 1
    assert any("it answers 400" in text for text in told)
    assert any("are exported again; 2 were lost so far" in text for text in told)


async def test_what_was_taken_in_part_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    partial = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="no")
    )
    async with receiving() as receiver:
        receiver.answer = lambda: web.Response(body=partial.SerializeToString())
        async with tracing({ENDPOINT: receiver.url}) as made:
            spans(made, "a", "b", "c")
        assert made.batches[0].counts == batches.Counts(sent=1, failed=2)
    assert "but not 2 spans" in caplog.text


async def test_closing_sends_what_waits() -> None:
    async with receiving() as receiver:
        environ = {ENDPOINT: receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
        async with tracing(environ) as made:
            spans(made, *(f"n{n}" for n in range(2000)))
        assert [span.name for span in receiver.spans] == [f"n{n}" for n in range(2000)]
        assert made.batches[0].counts == batches.Counts(sent=2000)


async def test_closing_is_quick_where_nobody_listens(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CLOSE_SILENCE", 600.0)
    monkeypatch.setattr(batches, "CLOSE_LIMIT", 600.0)
    async with receiving() as receiver:
        url = receiver.url
    async with tracing({ENDPOINT: url, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}) as made:
        spans(made, *(f"n{n}" for n in range(2000)))
        began = time.monotonic()
        await made.close()
        # It is refused at once; there is nothing to wait for.
        assert time.monotonic() - began < 30
    assert made.batches[0].lost() == 2000
    assert f"2000 spans were lost on the way to {url}/v1/traces" in caplog.text


async def test_closing_is_bounded_where_nobody_answers() -> None:
    async with black_hole() as url, tracing({ENDPOINT: url}) as made:
        spans(made, *(f"n{n}" for n in range(2000)))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await made.close()
        assert time.monotonic() - began < batches.CLOSE_SILENCE + 20.0
        assert made.batches[0].lost() == 2000


@asynccontextmanager
async def black_hole() -> AsyncIterator[str]:
    """Takes connections, and never answers."""
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


# ------------------------------------------------------------------------------------- TLS


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    found = trustme.CA()
    found.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    found.issue_cert("client@example").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "client.pem")
    )
    return found


async def test_tls_with_our_authority_and_certificate(
    authority: trustme.CA, tmp_path: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    async with receiving(context) as receiver:
        environ = {
            ENDPOINT: receiver.url,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem"),
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(tmp_path / "client.pem"),
        }
        async with tracing(environ) as made:
            spans(made, "x")
        assert [span.name for span in receiver.spans] == ["x"]
        # A stranger's certificate is not taken.
        async with tracing({ENDPOINT: receiver.url}) as made:
            spans(made, "y")
        assert made.batches[0].counts == batches.Counts(failed=1)


async def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE"):
        environ = {ENDPOINT: "https://localhost:1", f"OTEL_EXPORTER_OTLP_{name}": str(junk)}
        made = Tracing("x", Bus(), environ)
        with pytest.raises(SettingError, match=f"OTEL_EXPORTER_OTLP_{name}: "):
            await made.start()
        await made.close()


async def test_nobody_connects_before_there_is_something_to_send() -> None:
    async with receiving() as receiver:
        async with tracing({ENDPOINT: receiver.url}):
            await asyncio.sleep(0.1)
        assert receiver.asked == 0


def test_of_no_request_and_no_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies of the environment are not asked: they are for what the operator browses."""

    async def run() -> Receiver:
        async with receiving() as receiver, receiving() as elsewhere:
            monkeypatch.setenv("http_proxy", elsewhere.url)
            there = {"Location": f"{elsewhere.url}/v1/traces"}
            receiver.answer = lambda: web.Response(status=307, headers=there)
            async with tracing({ENDPOINT: receiver.url}) as made:
                spans(made, "x")
            assert made.batches[0].counts == batches.Counts(failed=1)
            assert receiver.asked == 1
            return elsewhere

    assert asyncio.run(run()).asked == 0
