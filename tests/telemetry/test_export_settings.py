"""Where traces go: ``OTEL_*`` as the specification has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.events import Bus
from sidecar.ports.tracer import PassingTracer
from sidecar.telemetry import apart
from sidecar.telemetry.environ import SettingError, flag
from sidecar.telemetry.otlp import settings
from sidecar.telemetry.otlp.batches import BatchLimits
from sidecar.telemetry.traces import Tracing, exporters

BASE = "OTEL_EXPORTER_OTLP_"
OWN = "OTEL_EXPORTER_OTLP_TRACES_"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ()),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp",)),
        ({"OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_TRACES_EXPORTER": " otlp , console "}, ("otlp", "console")),
        ({BASE + "ENDPOINT": "http://x"}, ("otlp",)),
        ({OWN + "ENDPOINT": "http://x"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, ()),
        ({BASE + "ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, ()),
        ({BASE + "ENDPOINT": ""}, ()),
        ({BASE + "ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, ()),
        ({BASE + "ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "1"}, ("otlp",)),
    ],
)
def test_which_exporters(environ: dict[str, str], found: tuple[str, ...]) -> None:
    assert exporters("traces", environ) == found
    tracing = Tracing("x", Bus(), environ)
    assert (tracing.kept is not None) == bool(found)
    assert isinstance(tracing.tracer, PassingTracer) == (not found)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://localhost:4318/v1/traces"),
        ({BASE + "ENDPOINT": "https://c.example/otlp/"}, "https://c.example/otlp/v1/traces"),
        ({BASE + "ENDPOINT": "http://c:1?a=b"}, "http://c:1/v1/traces?a=b"),
        ({OWN + "ENDPOINT": "http://c/own"}, "http://c/own"),
        ({OWN + "ENDPOINT": "http://c"}, "http://c/"),
        ({BASE + "ENDPOINT": "http://a", OWN + "ENDPOINT": "http://b/x"}, "http://b/x"),
    ],
)
def test_the_endpoint(environ: dict[str, str], url: str) -> None:
    assert settings.settings("traces", environ).url == url


def test_everything_else(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("x")
    found = settings.settings(
        "traces",
        {
            BASE + "HEADERS": "Api-Key=a%20b%3D,x=1, ",
            BASE + "TIMEOUT": "2500",
            BASE + "COMPRESSION": "none",
            OWN + "COMPRESSION": "gzip",
            BASE + "CERTIFICATE": str(pem),
            OWN + "CLIENT_CERTIFICATE": str(pem),
            OWN + "CLIENT_KEY": str(pem),
        },
    )
    assert found.headers == {"api-key": "a b=", "x": "1"}
    assert (found.timeout, found.compression) == (2.5, "gzip")
    assert (found.certificate, found.client_certificate, found.client_key) == (pem, pem, pem)
    own = settings.settings("traces", {BASE + "HEADERS": "a=1", OWN + "HEADERS": "b=2"})
    assert own.headers == {"b": "2"}


def test_what_is_secret_is_not_shown() -> None:
    environ = {BASE + "ENDPOINT": "http://u:SECRET@c:1/x?k=SECRET", BASE + "HEADERS": "k=SECRET"}
    found = settings.settings("traces", environ)
    assert "SECRET" not in repr(found) + found.shown
    assert found.shown == "http://c:1/x/v1/traces"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("ENDPOINT", "localhost:4318", "is not a URL such as"),
        ("ENDPOINT", "http://[::1", "is not a URL"),
        ("ENDPOINT", "grpc://c:4317", "is not a URL such as"),
        ("PROTOCOL", "http/json", "is not spoken here; use http/protobuf or grpc"),
        ("HEADERS", "SECRET", "is a list such as"),
        ("HEADERS", "a=SECRET%0d%0ax:y", "the value of a cannot be sent"),
        ("COMPRESSION", "zstd", "is none of none, gzip, deflate"),
        ("CERTIFICATE", "/nowhere/ca.pem", "there is no file /nowhere/ca.pem"),
    ],
)
def test_what_nothing_can_be_done_with_is_an_error(key: str, value: str, told: str) -> None:
    environ = {"OTEL_TRACES_EXPORTER": "otlp", OWN + key: value}
    with pytest.raises(SettingError) as caught:
        Tracing("x", Bus(), environ)
    assert str(caught.value).startswith(OWN + key)
    assert told in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_an_exporter_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="no exporter 'zipkin' is installed"):
        Tracing("x", Bus(), {"OTEL_TRACES_EXPORTER": "zipkin"})
    # This one is, for the tests.
    monkeypatch.setattr(apart, "entry_points", lambda **_: ())
    with pytest.raises(SettingError, match=r"install mcp-sidecar\[grpc\]"):
        Tracing("x", Bus(), {BASE + "ENDPOINT": "http://c:4317", BASE + "PROTOCOL": "grpc"})


def test_limits_of_batches(caplog: pytest.LogCaptureFixture) -> None:
    assert BatchLimits.of("OTEL_BSP", {}, 10.0) == BatchLimits(2048, 512, 5.0, 10.0)
    environ = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "200",
        "OTEL_BSP_SCHEDULE_DELAY": "250",
        "OTEL_BSP_EXPORT_TIMEOUT": "1500",
    }
    assert BatchLimits.of("OTEL_BSP", environ, 10.0) == BatchLimits(100, 100, 0.25, 1.5)
    assert BatchLimits.of("OTEL_BSP", {"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, 10.0).queue == 2048
    assert "OTEL_BSP_MAX_QUEUE_SIZE is not a whole number from 1 on" in caplog.text


def test_propagators_that_mcp_does_not_carry_are_told(caplog: pytest.LogCaptureFixture) -> None:
    Tracing("x", Bus(), {"OTEL_TRACES_EXPORTER": "console", "OTEL_PROPAGATORS": "b3,baggage"})
    assert "OTEL_PROPAGATORS: MCP carries W3C trace contexts, always; b3 is not" in caplog.text


def test_a_flag_that_is_neither(caplog: pytest.LogCaptureFixture) -> None:
    assert not flag("OTEL_SDK_DISABLED", {"OTEL_SDK_DISABLED": "yes"})
    assert "OTEL_SDK_DISABLED is neither true nor false" in caplog.text
