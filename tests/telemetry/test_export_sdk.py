"""Exporters of the SDK's that somebody installed: they get its own spans, and hold nobody up."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from sidecar.events import Bus
from sidecar.model import NO_TRACE, TraceContext
from sidecar.telemetry.otlp.batches import Counts
from sidecar.telemetry.traces import Tracing
from tests.kit.running import ROOT

PARENT = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01", "x=y")

MODULE = """
import time
from opentelemetry.sdk.trace.export import SpanExportResult, SpanExporter

seen, ended = [], []

class Exporter(SpanExporter):
    def export(self, spans):
        if any(span.name == "hangs" for span in spans):
            time.sleep(3600)
        if any(span.name == "raises" for span in spans):
            raise RuntimeError("SECRET")
        if any(span.name == "fails" for span in spans):
            return SpanExportResult.FAILURE
        seen.extend(spans)
        return SpanExportResult.SUCCESS
    def shutdown(self):
        ended.append(True)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with an exporter, as pip would leave it."""
    (tmp_path / "odd_exporter.py").write_text(MODULE)
    about = tmp_path / "odd-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[opentelemetry_traces_exporter]\nodd = odd_exporter:Exporter\nnone_such = nowhere:X\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_exporter", raising=False)
    return tmp_path


def odd(**more: str) -> Tracing:
    environ = {"OTEL_TRACES_EXPORTER": "odd", "OTEL_BSP_SCHEDULE_DELAY": "10"} | more
    return Tracing("me", Bus(), environ)


@pytest.mark.usefixtures("installed")
async def test_it_gets_the_sdks_spans() -> None:
    made = odd()
    await made.start()
    span = made.tracer.start("tools/call s__x", "client", PARENT)
    span.set("n", 1)
    span.event("e", {"k": "v"})
    span.link(TraceContext(f"00-{'c' * 32}-{'d' * 16}-01"))
    span.end("-32000", "it broke")
    await made.close()
    import odd_exporter  # type: ignore[import-not-found]

    (found,) = odd_exporter.seen
    assert odd_exporter.ended == [True]
    assert isinstance(found, ReadableSpan)
    assert (found.name, found.kind) == ("tools/call s__x", SpanKind.CLIENT)
    assert found.context.trace_id == int("a" * 32, 16)
    assert found.context.trace_state.to_header() == "x=y"
    assert (found.parent.span_id, found.parent.is_remote) == (int("b" * 16, 16), False)
    assert dict(found.attributes) == {"n": 1, "error.type": "-32000"}
    assert (found.status.status_code, found.status.description) == (StatusCode.ERROR, "it broke")
    assert [(e.name, dict(e.attributes)) for e in found.events] == [("e", {"k": "v"})]
    assert [link.context.span_id for link in found.links] == [int("d" * 16, 16)]
    assert found.resource.attributes["service.name"] == "me"
    assert found.instrumentation_scope.name == "sidecar"
    assert json.loads(found.to_json())["kind"] == "SpanKind.CLIENT"


@pytest.mark.usefixtures("installed")
async def test_what_it_fails_is_counted_and_the_next_batch_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = odd()
    await made.start()
    counts = made.batches[0].counts
    for name in ("raises", "fails", "well"):
        made.tracer.start(name, "server", NO_TRACE).end()
        end = time.monotonic() + 20
        while sum((counts.sent, counts.failed)) == 0 or len(made.batches[0]):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    await made.close()
    assert counts == Counts(sent=1, failed=2)
    assert "the exporter odd failed" in caplog.text


@pytest.mark.usefixtures("installed")
async def test_one_that_hangs_holds_up_nothing() -> None:
    made = odd(OTEL_BSP_EXPORT_TIMEOUT="200")
    await made.start()
    made.tracer.start("hangs", "server", NO_TRACE).end()
    await asyncio.sleep(0.1)
    made.tracer.start("x", "server", NO_TRACE).end()
    began = time.monotonic()
    await made.close()
    assert time.monotonic() - began < 25
    assert made.batches[0].lost() == 2


def test_a_process_ends_although_its_exporter_hangs(installed: Path) -> None:
    code = (
        "import asyncio, time\n"
        "from tests.telemetry.test_export_sdk import odd\n"
        "from sidecar.model import NO_TRACE\n"
        "async def main():\n"
        "    made = odd(OTEL_BSP_EXPORT_TIMEOUT='100')\n"
        "    await made.start()\n"
        "    made.tracer.start('hangs', 'server', NO_TRACE).end()\n"
        "    await asyncio.sleep(0.2)\n"
        "    await made.close()\n"
        "asyncio.run(main())\n"
    )
    path = {"PYTHONPATH": f"{installed}:{ROOT}", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=path, cwd=ROOT, timeout=50, check=False)
    assert done.returncode == 0


@pytest.mark.usefixtures("installed")
def test_one_that_cannot_be_loaded_is_named() -> None:
    from sidecar.telemetry.environ import SettingError

    with pytest.raises(SettingError, match="'none_such' cannot be used: ModuleNotFoundError"):
        Tracing("x", Bus(), {"OTEL_TRACES_EXPORTER": "none_such"})


async def test_the_console_is_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    made = Tracing("me", Bus(), {"OTEL_TRACES_EXPORTER": "console"})
    await made.start()
    made.tracer.start("shown", "server", NO_TRACE).end()
    await made.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert '"name": "shown"' in err


@pytest.mark.usefixtures("installed")
async def test_two_exporters_get_everything(capfd: pytest.CaptureFixture[str]) -> None:
    made = odd(OTEL_TRACES_EXPORTER="odd,console,odd")
    await made.start()
    made.tracer.start("shown", "server", NO_TRACE).end()
    await made.close()
    import odd_exporter

    assert [batches.counts for batches in made.batches] == [Counts(sent=1)] * 2
    assert [span.name for span in odd_exporter.seen] == ["shown"]
    assert '"name": "shown"' in capfd.readouterr().err
