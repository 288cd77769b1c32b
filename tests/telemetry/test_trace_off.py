"""Without tracing nothing of it is there: no import, no listener, and the caller's own context."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sidecar.events import Bus, DialDecided, LegChanged, SessionUpdate, Swept, ToolsChanged
from sidecar.model import TraceContext
from sidecar.telemetry.traces import Tracing

CODE = """
import json, sys, tempfile
from pathlib import Path
from sidecar.app import App
from sidecar.config import Config
App(Config())
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] == "opentelemetry")))
"""


@pytest.mark.parametrize(
    "more", [{}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}]
)
def test_nothing_of_opentelemetry_is_imported(more: dict[str, str]) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=env | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == []


def test_nobody_listens_and_contexts_go_on() -> None:
    bus = Bus()
    tracing = Tracing("x", bus, {})
    for kind in (DialDecided, LegChanged, SessionUpdate, Swept, ToolsChanged):
        assert not bus.wanted(kind)
    assert tracing.kept is None
    parent = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01", "a=b", "c=d")
    span = tracing.tracer.start("x", "server", parent)
    assert not span.sampled
    assert span.context is parent
