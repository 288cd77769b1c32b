"""A receiver of OTLP over HTTP in this process, which reads what comes with the real classes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass
class Receiver:
    """``status`` is answered to everything; ``requests`` are path, headers and body."""

    url: str = ""
    status: int = 200
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def bodies(self, path: str) -> list[bytes]:
        return [body for each, _, body in self.requests if each == path]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What each export told, by the metric's name."""
        found = []
        for body in self.bodies("/v1/metrics"):
            request = ExportMetricsServiceRequest.FromString(body)
            assert len(request.resource_metrics) == 1
            assert len(request.resource_metrics[0].scope_metrics) == 1
            told = request.resource_metrics[0].scope_metrics[0].metrics
            found.append({each.name: each for each in told})
            assert len(found[-1]) == len(told)
        return found

    @property
    def logs(self) -> list[Any]:
        """Every log record, in the order in which they came."""
        return [
            record
            for body in self.bodies("/v1/logs")
            for resource in ExportLogsServiceRequest.FromString(body).resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def resource(self, path: str = "/v1/metrics") -> dict[str, Any]:
        """Who told last."""
        kind = ExportMetricsServiceRequest if path == "/v1/metrics" else ExportLogsServiceRequest
        request: Any = kind.FromString(self.bodies(path)[-1])
        each = request.resource_metrics if path == "/v1/metrics" else request.resource_logs
        return attributes(each[0].resource.attributes)


def attributes(found: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""
    pairs: list[KeyValue] = list(found)
    assert len({pair.key for pair in pairs}) == len(pairs)
    return {pair.key: value(pair.value) for pair in pairs}


def value(found: AnyValue) -> Any:
    kind = found.WhichOneof("value")
    if kind == "array_value":
        return [value(each) for each in found.array_value.values]
    return getattr(found, kind) if kind else None


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """One at a free port of loopback."""
    receiver = Receiver()

    async def take(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if receiver.status == 200:
            receiver.requests.append((request.path, dict(request.headers), body))
        return web.Response(status=receiver.status)

    runner = web.ServerRunner(web.Server(take), shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
