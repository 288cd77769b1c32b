"""A receiver of spans in the test's own loop, which reads what it gets with the real classes."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.telemetry.receiver import attributes

KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass
class Got:
    """One span, as a person would write it down. Ids are hex; ``service`` is its resource's."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    error: bool
    message: str
    service: str
    began: int
    ended: int
    raw: Span = field(repr=False)


def spans_of(request: ExportTraceServiceRequest) -> list[Got]:
    found = []
    for whole in request.resource_spans:
        about = attributes(whole.resource.attributes)
        for scope in whole.scope_spans:
            for span in scope.spans:
                found.append(
                    Got(
                        span.name,
                        KINDS[span.kind],
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        attributes(span.attributes),
                        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                        span.status.code == 2,
                        span.status.message,
                        about.get("service.name", ""),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        span,
                    )
                )
    return found


@dataclass
class Receiver:
    """``answer`` decides what is answered to a request; what was not taken is not kept."""

    url: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: int = 0
    answer: Callable[[], web.Response | None] = lambda: None

    @property
    def spans(self) -> list[Got]:
        return [span for request in self.requests for span in spans_of(request)]

    async def until(self, done: Callable[[list[Got]], object], within: float = 30.0) -> list[Got]:
        """Every span so far, once they are what is waited for."""
        end = time.monotonic() + within
        while not done(found := self.spans):
            assert time.monotonic() < end, [(span.service, span.name) for span in found]
            await asyncio.sleep(0.02)
        return found

    async def take(self, request: web.Request) -> web.Response:
        self.asked += 1
        body = await request.read()
        if (refused := self.answer()) is not None:
            return refused
        assert request.content_type == "application/x-protobuf"
        self.headers.append(dict(request.headers))
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )


async def other_signal(request: web.Request) -> web.Response:
    """Metrics and logs are for other tests."""
    return web.Response(content_type="application/x-protobuf")


@asynccontextmanager
async def receiving(context: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a free port; its ``url`` is what goes into ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
    receiver = Receiver()
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/traces", receiver.take)
    app.router.add_post("/v1/{signal}", other_signal)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    receiver.url = f"http{'s' if context else ''}://localhost:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
