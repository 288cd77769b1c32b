"""Metrics and logs by exporters of the SDK's and of others, beside our own or in its place."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricExportResult

from sidecar.config import Config, LogConfig
from sidecar.events import Bus
from sidecar.ports.tracer import CURRENT
from sidecar.telemetry import apart, logs_export, metrics_ways
from sidecar.telemetry.apart import Apart, foreign, load
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.logs_house import Logs
from sidecar.telemetry.measures import Measures
from sidecar.telemetry.metrics import Registry
from sidecar.telemetry.metrics_read import Reader, Told
from sidecar.telemetry.otlp.metrics import MetricEncoder
from tests.telemetry.receiver import attributes, receiving
from tests.telemetry.test_logs import KEPT, SPAN, TRACE, call, restored

__all__ = ["restored"]


async def test_the_console_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    bus = Bus()
    measures = Measures("desk", bus, {"OTEL_METRICS_EXPORTER": "console"})
    await measures.start()
    bus.publish(call())
    await measures.close()
    told = capsys.readouterr()
    assert told.out == ""
    assert '"mcp.server.operation.duration"' in told.err
    assert '"service.name": "desk"' in told.err


async def test_several_exporters_at_once(
    restored: None, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("sidecar").setLevel(logging.INFO)
    async with receiving() as receiver:
        given = {
            "OTEL_METRICS_EXPORTER": "otlp,console,prometheus",
            "OTEL_LOGS_EXPORTER": "console,otlp_proto_http",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        }
        bus = Bus()
        measures = Measures("desk", bus, given)
        house = Logs(Config(name="desk", log=LogConfig(access=True)), bus, given)
        await measures.start()
        await house.start()
        bus.publish(call())
        await house.close()
        await measures.close()
        assert "sidecar.calls" in receiver.metrics[-1]
        assert [each.event_name for each in receiver.logs] == ["sidecar.call"]
    told = capsys.readouterr().err
    assert '"sidecar.calls"' in told
    assert '"event_name": "sidecar.call"' in told
    assert f'"trace_id": "0x{TRACE}"' in told


async def test_log_records_are_the_sdks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    class Exporter:
        def export(self, batch: Any) -> Any:
            from opentelemetry.sdk._logs.export import LogRecordExportResult

            found.append(encode_logs(batch))
            return LogRecordExportResult.SUCCESS

        def shutdown(self) -> None:
            found.append("shutdown")

    monkeypatch.setattr(apart, "entry_points", lambda **_: [_Entry(Exporter)])
    house = Logs(Config(name="desk"), Bus(), {"OTEL_LOGS_EXPORTER": "mine"})
    await house.start()
    token = CURRENT.set(KEPT)
    logging.getLogger("sidecar.x").error("within")
    CURRENT.reset(token)
    logging.getLogger("sidecar.x").error("outside")
    await house.close()
    request, end = found
    assert end == "shutdown"
    [resource] = request.resource_logs
    assert attributes(resource.resource.attributes)["service.name"] == "desk"
    within, outside = resource.scope_logs[0].log_records
    assert (within.body.string_value, within.severity_number) == ("within", 17)
    assert (within.trace_id.hex(), within.span_id.hex(), within.flags) == (TRACE, SPAN, 1)
    assert (outside.trace_id, outside.span_id) == (b"", b"")


class _Entry:
    def __init__(self, what: Any) -> None:
        self._what = what

    def load(self) -> Any:
        return self._what


def test_both_ways_tell_the_same() -> None:
    """What the SDK's encoder makes of its shapes is what ours makes of the instruments."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    registry = Registry()
    counter = registry.counter("c", "1", "C.", ("k",))
    histogram = registry.histogram("h", "s", "H.", ("k",))
    registry.gauge("g", "By", "G.", ask=lambda: [((), 2.5)])
    counter.add(("a",), 3)
    histogram.record(("a",), 0.3, KEPT.traceparent)
    histogram.record(("",), 400.0)
    about = {"service.name": "desk"}
    readings = [each for each in Reader(registry, "delta").read(Told(77)) if each is not None]
    encoder = MetricEncoder(about, "1")
    ours: Any = MessageToDict(
        ExportMetricsServiceRequest.FromString(
            encoder.request([encoder.record(each) for each in readings])
        )
    )
    theirs: Any = MessageToDict(encode_metrics(metrics_ways.metrics_data(readings, about)))
    our_metrics = ours["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    their_metrics = theirs["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    assert len(our_metrics) == 3
    for each in their_metrics:
        for point in each.get("histogram", {}).get("dataPoints", ()):
            # They have to have these, and we do not count them.
            assert 0 <= point.pop("min") <= point.pop("max") <= 400
    assert our_metrics == their_metrics
    assert ours["resourceMetrics"][0]["resource"] == theirs["resourceMetrics"][0]["resource"]


@pytest.mark.parametrize("signal", ["metrics", "logs"])
def test_grpc_is_an_exporter_of_the_sdks(signal: Any) -> None:
    name = "otlp_proto_grpc"
    assert foreign(signal, "otlp", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) == name
    own = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    own[f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"] = "http/protobuf"
    assert foreign(signal, "otlp", own) == ""
    assert foreign(signal, "otlp_proto_http", {}) == ""
    assert foreign(signal, "mine", {}) == "mine"
    try:
        import opentelemetry.exporter.otlp.proto.grpc  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(SettingError, match=r"install mcp-sidecar\[grpc\]"):
            load(signal, name)


def test_an_exporter_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("s3cr3t")

    monkeypatch.setattr(apart, "entry_points", lambda **_: [_Entry(broken)])
    with pytest.raises(SettingError, match="'mine' cannot be used: RuntimeError") as caught:
        Measures("desk", Bus(), {"OTEL_METRICS_EXPORTER": "mine"})
    assert "s3cr3t" not in str(caught.value)


async def test_an_exporter_that_hangs_is_left() -> None:
    free = threading.Event()
    exporter = Apart("mine")
    assert (await exporter.run(lambda: free.wait(30), 0.05)).why == "it does not answer in time"
    busy = await exporter.run(lambda: True, 1)
    assert (busy.again, "still busy" in busy.why) == (True, True)
    free.set()
    for _ in range(200):
        again = await exporter.run(lambda: True, 20)
        if not again.why:
            break
        await asyncio.sleep(0.02)
    assert again.why == ""
    assert (await exporter.run(lambda: False, 20)).why == "the exporter gave up"


async def test_an_exporter_that_raises_costs_its_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Exporter:
        calls = 0

        def export(self, data: Any, timeout_millis: float) -> Any:
            Exporter.calls += 1
            if Exporter.calls == 1:
                raise RuntimeError("x")
            return MetricExportResult.SUCCESS

        def shutdown(self, timeout_millis: float) -> None:
            pass

    monkeypatch.setattr(apart, "entry_points", lambda **_: [_Entry(Exporter)])
    given = {"OTEL_METRICS_EXPORTER": "mine", "OTEL_METRIC_EXPORT_INTERVAL": "20"}
    measures = Measures("desk", Bus(), given)
    await measures.start()
    from tests.kit.client import eventually

    await eventually(lambda: Exporter.calls >= 3, within=30)
    await measures.close()
    assert "the exporter failed (RuntimeError)" in caplog.text


def test_what_is_of_the_sdk_is_imported_only_where_it_is_asked_for(tmp_path: Path) -> None:
    import subprocess

    program = (
        "import sys, os\n"
        "from sidecar.events import Bus\n"
        "from sidecar.config import Config\n"
        "from sidecar.telemetry.measures import Measures\n"
        "from sidecar.telemetry.logs_house import Logs\n"
        "Measures('x', Bus(), {}), Logs(Config(), Bus(), {})\n"
        "print(sorted(m for m in sys.modules if m.startswith(('opentelemetry', 'google'))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
    assert logs_export.AUDIT == "sidecar.audit"
