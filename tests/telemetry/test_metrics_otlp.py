"""Metrics on their way to a receiver: read back with the real classes, whatever it answers."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from sidecar.events import Bus, CallFinished
from sidecar.model import ServerStatus, State, TraceContext
from sidecar.store.memory import MemoryStore
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.measures import Measures
from sidecar.telemetry.metrics import SECONDS, Registry, by
from sidecar.telemetry.metrics_export import Interval, MetricsExport
from sidecar.telemetry.metrics_ways import OtlpWay
from sidecar.telemetry.prometheus import OPEN_METRICS, TEXT
from sidecar.telemetry.resource import INSTANCE
from tests.kit.client import eventually
from tests.telemetry.receiver import Receiver, attributes, receiving

TRACE = "0af7651916cd43dd8448eb211c80319c"
DELTA, CUMULATIVE = 1, 2


def environ(receiver: Receiver, **other: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_METRIC_EXPORT_INTERVAL": "50",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=s3cr3t",
        **other,
    }


def call(**other: Any) -> CallFinished:
    said: dict[str, Any] = {
        "trace": TraceContext(f"00-{TRACE}-b7ad6b7169203331-01"),
        "call": "c1",
        "method": "tools/call",
        "server": "notes",
        "target": "notes__add",
        "principal": "agent",
        "session": "",
        "outcome": "ok",
        "seconds": 0.03,
        "attempts": 1,
        "kind": "mcp",
        "decision": "allow",
        "rule": "default",
    }
    return CallFinished(**{**said, **other})


async def test_everything_arrives_as_the_protocol_has_it() -> None:
    bus = Bus()
    async with receiving() as receiver:
        measures = Measures("desk", bus, environ(receiver))
        status = ServerStatus("notes", "configured", "stdio", State.READY)
        measures.servers(lambda: [status])
        await measures.start()
        bus.publish(call())
        bus.publish(call(seconds=1000.0))
        await measures.close()
        told, [(path, headers, _), *_] = receiver.metrics[-1], receiver.requests
    assert (path, headers["api-key"]) == ("/v1/metrics", "s3cr3t")
    assert headers["Content-Type"] == "application/x-protobuf"
    took = told["mcp.server.operation.duration"]
    assert took.unit == "s"
    assert took.histogram.aggregation_temporality == CUMULATIVE
    [point] = took.histogram.data_points
    assert attributes(point.attributes) == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "notes__add",
        "gen_ai.operation.name": "execute_tool",
        "sidecar.server": "notes",
    }
    assert (point.count, point.sum) == (2, 1000.03)
    assert tuple(point.explicit_bounds) == SECONDS
    assert [n for n, count in enumerate(point.bucket_counts) if count] == [2, len(SECONDS)]
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    exemplars = {each.as_double: each.trace_id.hex() for each in point.exemplars}
    assert exemplars == {0.03: TRACE, 1000.0: TRACE}
    calls = told["sidecar.calls"]
    assert (calls.sum.is_monotonic, calls.sum.aggregation_temporality) == (True, CUMULATIVE)
    assert [each.as_int for each in calls.sum.data_points] == [2]
    [up] = told["sidecar.server.up"].gauge.data_points
    assert (attributes(up.attributes), up.as_int) == ({"sidecar.server": "notes"}, 1)
    [cpu] = told["process.cpu.time"].sum.data_points
    assert cpu.as_double > 0
    assert all(each.description.endswith(".") for each in told.values())


async def test_exemplars_can_be_off() -> None:
    bus = Bus()
    measures = Measures("desk", bus, {"OTEL_METRICS_EXEMPLAR_FILTER": "always_off"})
    bus.publish(call())
    assert b"# {" not in await measures.page.read(True)
    await measures.close()


async def test_who_tells_is_the_same_everywhere() -> None:
    async with receiving() as receiver:
        given = environ(receiver)
        measures = Measures("desk", Bus(), given)
        await measures.start()
        await eventually(lambda: receiver.requests, within=30)
        await measures.close()
        resource = receiver.resource()
    assert (resource["service.name"], resource["service.instance.id"]) == ("desk", INSTANCE)
    page, _ = await measures.page.answer("")
    assert f'service_instance_id="{INSTANCE}"' in page.decode()


async def exports(
    registry: Registry, receiver: Receiver, *changes: Any, **other: str
) -> list[dict[str, Any]]:
    """One export after each change, as each of them told."""
    given = environ(receiver, **other)
    export = MetricsExport(registry, OtlpWay("desk", given), given)
    await export._way.open()
    for change in changes:
        change()
        await export._export()
    await export._way.close()
    return receiver.metrics


async def test_delta_tells_what_is_new_and_nothing_twice() -> None:
    registry = Registry()
    counter, histogram = (
        registry.counter("c", "1", "C.", ("k",)),
        registry.histogram("h", "s", "H."),
    )
    registry.gauge("g", "1", "G.", ask=lambda: by({}) or [((), 7)])
    async with receiving() as receiver:

        def lost() -> None:
            counter.add(("a",), 10)
            receiver.status = 400

        def back() -> None:
            receiver.status = 200
            histogram.record((), 0.3)

        def first() -> None:
            counter.add(("a",), 2)
            histogram.record((), 0.3)

        told = await exports(
            registry,
            receiver,
            first,
            lambda: counter.add(("b",), 5),
            lost,
            back,
            OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta",
        )
    assert [
        {attributes(p.attributes)["k"]: p.as_int for p in each["c"].sum.data_points}
        for each in told
    ] == [{"a": 2}, {"b": 5}, {"a": 10}]
    assert {each["c"].sum.aggregation_temporality for each in told} == {DELTA}
    assert ["h" in each for each in told] == [True, False, True]
    [point] = told[2]["h"].histogram.data_points
    assert (point.count, math.isclose(point.sum, 0.3)) == (1, True)
    # What is told begins where the last that arrived ended.
    [before] = told[1]["c"].sum.data_points
    assert point.start_time_unix_nano == before.time_unix_nano
    assert all(each["g"].gauge.data_points[0].as_int == 7 for each in told)


async def test_low_memory_is_delta_but_for_counters_of_others() -> None:
    registry = Registry()
    counter = registry.counter("c", "1", "C.")
    registry.counted("o", "1", "O.", ask=lambda: [((), 5)])
    async with receiving() as receiver:
        [told] = await exports(
            registry,
            receiver,
            lambda: counter.add(()),
            OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="lowmemory",
        )
    assert told["c"].sum.aggregation_temporality == DELTA
    assert told["o"].sum.aggregation_temporality == CUMULATIVE


async def test_a_receiver_that_fails_is_told_of_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "sidecar.telemetry")
    async with receiving() as receiver:
        receiver.status = 400
        given = environ(receiver)
        export = MetricsExport(Registry(), OtlpWay("desk", given), given)
        await export.start()
        await eventually(lambda: export.failed >= 3, within=30)
        receiver.status = 200
        await eventually(lambda: receiver.requests, within=30)
        await eventually(lambda: "exported again" in caplog.text, within=30)
        await export.close()
    assert caplog.text.count("metrics cannot be exported") == 1
    assert "it answers 400" in caplog.text
    assert "s3cr3t" not in caplog.text


async def test_the_end_is_bounded_and_tells_the_last_once_more() -> None:
    async with receiving() as receiver:
        measures = Measures("desk", Bus(), environ(receiver, OTEL_METRIC_EXPORT_INTERVAL="60000"))
        await measures.start()
        assert receiver.requests == []
        await measures.close()
        assert len(receiver.requests) == 1
    loop = asyncio.get_running_loop()
    gone = Measures("desk", Bus(), environ(receiver, OTEL_METRIC_EXPORT_INTERVAL="60000"))
    await gone.start()
    began = loop.time()
    await gone.close()
    assert loop.time() - began < 30


def test_nothing_is_exported_unless_somebody_asks() -> None:
    for given in ({}, {"OTEL_METRICS_EXPORTER": "none"}, {"OTEL_METRICS_EXPORTER": "prometheus"}):
        assert Measures("desk", Bus(), given)._exports == ()
    on = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    assert Measures("desk", Bus(), on)._exports
    assert Measures("desk", Bus(), {**on, "OTEL_SDK_DISABLED": "true"})._exports == ()
    assert Measures("desk", Bus(), {**on, "OTEL_METRICS_EXPORTER": "none"})._exports == ()
    own = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1/x"}
    assert Measures("desk", Bus(), own)._exports


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_METRICS_EXPORTER", "carrier-pigeon"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "sideways"),
    ],
)
def test_what_cannot_be_had_is_told(variable: str, value: str) -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", variable: value}
    with pytest.raises(SettingError):
        Measures("desk", Bus(), given)


def test_intervals() -> None:
    assert Interval.of({}) == Interval(60.0, 30.0)
    assert Interval.of({"OTEL_METRIC_EXPORT_INTERVAL": "500"}) == Interval(0.5, 1.0)
    given = {"OTEL_METRIC_EXPORT_INTERVAL": "9000", "OTEL_METRIC_EXPORT_TIMEOUT": "3000"}
    assert Interval.of(given) == Interval(9.0, 3.0)


async def test_the_store_is_measured() -> None:
    measures = Measures("desk", Bus(), {})
    store = measures.store(MemoryStore())
    await store.open()
    await store.put("a", b"1")
    with pytest.raises(Exception, match="a"):
        await store.put("a", b"2", expected=77)
    assert await store.get("a") is not None
    assert len(await store.list("")) == 1
    assert await store.delete("a")
    await store.close()
    text = (await measures.page.read()).decode()
    for operation, count in (("put", 2), ("get", 1), ("list", 1), ("delete", 1)):
        name = "sidecar_store_operation_duration_seconds_count"
        assert f'{name}{{sidecar_store_operation="{operation}"}} {count}\n' in text
    assert 'sidecar_queue_depth{sidecar_queue="store"} 0' in text


async def test_the_page_is_in_the_format_that_is_asked_for() -> None:
    measures = Measures("desk", Bus(), {})
    assert (await measures.page.answer("text/html"))[1] == TEXT
    body, kind = await measures.page.answer("application/openmetrics-text; version=1.0.0")
    assert kind == OPEN_METRICS
    assert body.endswith(b"# EOF\n")


async def test_a_loop_that_is_held_up_is_seen() -> None:
    import time

    measures = Measures("desk", Bus(), {})
    await measures.start()
    await asyncio.sleep(0.01)
    time.sleep(0.6)  # noqa: ASYNC251  it is what must be seen
    lag = next(each for each in measures.registry if each.name == "sidecar.event_loop.lag")
    await eventually(lambda: lag.series, within=30)  # type: ignore[attr-defined]
    await measures.close()
    assert lag.series[()].total > 0.2  # type: ignore[attr-defined]
