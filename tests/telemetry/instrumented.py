"""``tests/upstream/sdk_server.py``, instrumented: its spans go where ``OTEL_*`` say."""

from __future__ import annotations

import runpy
from pathlib import Path

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
SERVER = Path(__file__).resolve().parents[1] / "upstream" / "sdk_server.py"
runpy.run_path(str(SERVER), run_name="__main__")
