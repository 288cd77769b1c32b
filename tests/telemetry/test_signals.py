"""All signals of a real sidecar at once, by the environment alone: one resource, one trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sidecar.config import Config, LogConfig
from sidecar.events import Bus
from sidecar.telemetry.logs_house import Logs
from sidecar.telemetry.measures import Measures
from tests.kit.client import Modern, eventually
from tests.kit.running import Sidecar, running
from tests.telemetry.receiver import Receiver, attributes, receiving
from tests.telemetry.test_export_rotel import collector
from tests.telemetry.test_logs import TRACE, call, restored

__all__ = ["restored"]

NOTES: dict[str, Any] = {
    "command": [sys.executable, "-m", "sidecar.demo.notes"],
    "trusted": True,
    "gated": False,
}


def environment(receiver: Receiver) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_SERVICE_NAME": "desk",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_BLRP_SCHEDULE_DELAY": "50",
    }


def traces(receiver: Receiver) -> list[Any]:
    return [
        resource
        for body in receiver.bodies("/v1/traces")
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
    ]


async def test_every_signal_tells_of_the_same_call() -> None:
    config = {"servers": {"notes": NOTES}, "log": {"access": True}}
    async with receiving() as receiver, aiohttp.ClientSession() as http:
        async with running(config, env=environment(receiver)) as sidecar:
            client = Modern(http, sidecar.mcp)
            await client.until_listed("notes__add")
            await client.call("notes__add", text="s3cr3t")
            await eventually(lambda: _exemplars(receiver), within=30)
            page = await (await http.get(f"{sidecar.health}/metrics")).text()
        spans = [
            span
            for resource in traces(receiver)
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == "tools/call notes__add"
        ]
        [access] = [each for each in receiver.logs if each.event_name == "sidecar.call"]
        resources = [
            attributes(traces(receiver)[-1].resource.attributes),
            receiver.resource("/v1/metrics"),
            receiver.resource("/v1/logs"),
        ]
        told = [body for _, _, body in receiver.requests]
        assert _exemplars(receiver) == {spans[0].trace_id}
    assert {span.trace_id for span in spans} == {access.trace_id}
    server = next(span for span in spans if span.kind == 2)
    assert access.span_id == server.span_id
    assert resources[0] == resources[1] == resources[2]
    assert resources[0]["service.name"] == "desk"
    assert resources[0]["deployment.environment.name"] == "test"
    assert f'service_instance_id="{resources[0]["service.instance.id"]}"' in page
    assert 'deployment_environment_name="test"' in page
    assert not any(b"s3cr3t" in body for body in told)


def _exemplars(receiver: Receiver) -> set[bytes]:
    return {
        exemplar.trace_id
        for told in receiver.metrics
        if "mcp.server.operation.duration" in told
        for point in told["mcp.server.operation.duration"].histogram.data_points
        if "gen_ai.tool.name" in attributes(point.attributes)
        for exemplar in point.exemplars
    }


def test_what_cannot_be_had_is_told_at_the_start() -> None:
    variable = "OTEL_LOGS_EXPORTER"
    sidecar = Sidecar({}, env={variable: "carrier-pigeon"})
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "run", "--config", str(sidecar.file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=sidecar._env,
    )
    assert done.returncode == 1
    assert f"sidecar run: {variable}: no exporter 'carrier-pigeon' is installed" in done.stderr


async def test_a_real_collector_reads_metrics_and_logs(restored: None, tmp_path: Path) -> None:
    import logging

    logging.getLogger("sidecar").setLevel(logging.INFO)
    async with receiving() as receiver, collector(receiver, tmp_path) as url:  # type: ignore[arg-type]
        given = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
        bus = Bus()
        measures = Measures("desk", bus, given)
        house = Logs(Config(name="desk", log=LogConfig(access=True)), bus, given)
        await measures.start()
        await house.start()
        for seconds in (0.03, 0.3, 400.0):
            bus.publish(call(seconds=seconds))
        await house.close()
        await measures.close()

        def arrived() -> bool:
            return bool(receiver.bodies("/v1/metrics")) and len(receiver.logs) == 3

        await eventually(arrived, within=30)
        names: dict[str, Any] = {}
        for told in receiver.metrics:
            names |= told
        points = names["mcp.server.operation.duration"].histogram.data_points
        record = receiver.logs[0]
    assert (points[0].count, points[0].exemplars[0].trace_id.hex()) == (3, TRACE)
    assert names["sidecar.calls"].sum.is_monotonic
    assert (record.event_name or "sidecar.call", record.trace_id.hex()) == ("sidecar.call", TRACE)
    assert attributes(record.attributes)["sidecar.rule"] == "default"
