"""Instruments, what events become in them, and how both formats of the page read."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from sidecar.events import (
    AttemptFinished,
    Bus,
    CallFinished,
    DialDecided,
    LegChanged,
    ParkedChanged,
    RequestFinished,
    SessionClosed,
    SessionOpened,
    ToolsChanged,
)
from sidecar.model import State, TraceContext
from sidecar.telemetry import metrics_events, resource
from sidecar.telemetry.measures import Measures
from sidecar.telemetry.metrics import OTHER, OVERFLOW, SECONDS, Histogram, Known, Registry, by
from sidecar.telemetry.metrics_events import Meters
from sidecar.telemetry.prometheus import Page, accepted, name_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
KEPT = TraceContext(f"00-{TRACE}-b7ad6b7169203331-01")


def call(**other: Any) -> CallFinished:
    said: dict[str, Any] = {
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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def page(registry: Registry, format: str = "text", **resource: object) -> dict[str, Any]:
    """Samples by name and labels, as Prometheus' own parser reads them."""
    text = (await Page(registry, resource).read(format == "open")).decode()
    parse = open_metrics if format == "open" else plain_text
    found: dict[str, Any] = {}
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def total(samples: dict[str, Any], name: str, **labels: str) -> float:
    """The sum of all samples of a name that have these labels."""
    wanted = labels.items()
    return sum(
        value for (each, found), value in samples.items() if each == name and wanted <= set(found)
    )


# ------------------------------------------------------------------------------ instruments


@given(st.lists(st.floats(0, 500), max_size=50))
def test_each_value_is_in_the_bucket_of_the_first_bound_that_is_not_below_it(
    values: list[float],
) -> None:
    histogram = Histogram("x", "s", "X.")
    for value in values:
        histogram.record((), value)
    if not values:
        assert histogram.series == {}
        return
    series = histogram.series[()]
    bounds = [-math.inf, *SECONDS, math.inf]
    for at, count in enumerate(series.counts):
        assert count == sum(bounds[at] < value <= bounds[at + 1] for value in values)
    assert series.total == pytest.approx(sum(values))


def test_series_are_bounded_and_what_is_beyond_is_counted_together() -> None:
    registry = Registry()
    counter, histogram = registry.counter("c", "1", "C.", ("k",)), Histogram("h", "s", "H.", ("k",))
    for number in range(5000):
        counter.add((f"v{number}",))
        histogram.record((f"v{number}",), 1.0)
    assert len(counter.series) == len(histogram.series) == 2000
    assert counter.series[()] == 3001
    assert histogram.series[()].count == 3001
    assert counter.attributes(()) == [(OVERFLOW, "true")]
    # Those that are known go on.
    counter.add(("v7",))
    assert counter.series["v7",] == 2


async def test_gauges_that_are_asked_for_are_bounded_too() -> None:
    registry = Registry()
    registry.gauge("g", "1", "G.", ("k",), ask=lambda: by({f"v{n}": 1 for n in range(5000)}))
    samples = await page(registry)
    assert len(samples) == 2001  # and target_info
    assert total(samples, "g", otel_metric_overflow="true") == 3001


def test_values_beyond_the_bound_are_other() -> None:
    known = Known(2)
    assert [known(name) for name in ("a", "b", "a", "c", "", "b")] == [
        "a",
        "b",
        "a",
        OTHER,
        "",
        "b",
    ]


def test_a_name_stands_for_one_instrument() -> None:
    registry = Registry()
    registry.counter("c", "1", "C.")
    with pytest.raises(ValueError, match="there is an instrument c"):
        registry.histogram("c", "s", "C.")


def test_only_spans_that_are_kept_are_exemplars() -> None:
    histogram = Histogram("x", "s", "X.")
    histogram.record((), 0.5, KEPT.traceparent[:-2] + "00")
    histogram.record((), 0.5)
    assert histogram.series[()].exemplars == {}
    histogram.record((), 0.5, KEPT.traceparent)
    [(bucket, (value, trace, span, _))] = histogram.series[()].exemplars.items()
    assert (SECONDS[bucket], value, trace, span) == (0.5, 0.5, TRACE, "b7ad6b7169203331")


def test_a_span_is_kept_whatever_its_other_flags_are() -> None:
    """03 is sampled, and its trace id random (W3C trace context, level 2)."""
    histogram = Histogram("x", "s", "X.")
    histogram.record((), 0.5, KEPT.traceparent[:-2] + "02")
    assert histogram.series[()].exemplars == {}
    histogram.record((), 0.5, KEPT.traceparent[:-2] + "03")
    assert len(histogram.series[()].exemplars) == 1


# ----------------------------------------------------------------------------- the events


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(bus: Bus, clock: Clock) -> Registry:
    made = Registry()
    Meters(made, bus, clock=clock)
    return made


async def test_calls_by_decision_rule_and_outcome(bus: Bus, registry: Registry) -> None:
    bus.publish(call())
    bus.publish(call(seconds=0.3))
    bus.publish(call(decision="deny", rule="house/no", outcome="denied", error="denied"))
    bus.publish(call(outcome="rpc_error", error="-32602"))
    samples = await page(registry)
    calls = "sidecar_calls_total"
    assert total(samples, calls, sidecar_decision="allow", sidecar_rule="default") == 3
    assert total(samples, calls, sidecar_decision="deny", sidecar_rule="house/no") == 1
    assert total(samples, calls, sidecar_outcome="ok", sidecar_server="notes") == 2
    took = "mcp_server_operation_duration_seconds"
    labels = {"mcp_method_name": "tools/call", "gen_ai_tool_name": "notes__add"}
    assert total(samples, f"{took}_count", gen_ai_operation_name="execute_tool", **labels) == 4
    assert total(samples, f"{took}_count", error_type="denied") == 1
    assert total(samples, f"{took}_count", rpc_response_status_code="-32602") == 1
    good = {key for key in samples if key[0] == f"{took}_count" and "error" not in str(key)}
    assert [samples[key] for key in good] == [2]
    assert total(samples, f"{took}_bucket", le="0.05") == 3
    assert total(samples, f"{took}_sum") == pytest.approx(0.39)


async def test_only_tools_and_prompts_have_names(bus: Bus, registry: Registry) -> None:
    bus.publish(call(kind="prompt", method="prompts/get", target="notes__summary"))
    bus.publish(call(kind="resource", method="resources/read", target="file:///secret/1"))
    bus.publish(RequestFinished(method="tools/list", seconds=0.01))
    samples = await page(registry)
    took = "mcp_server_operation_duration_seconds_count"
    assert total(samples, took, gen_ai_prompt_name="notes__summary") == 1
    assert total(samples, took, mcp_method_name="resources/read") == 1
    assert total(samples, took, mcp_method_name="tools/list") == 1
    assert "file:///" not in str(samples)


async def test_attempts_by_server(bus: Bus, registry: Registry) -> None:
    said: dict[str, Any] = {"method": "tools/call", "target": "notes__add", "kind": "mcp"}
    bus.publish(AttemptFinished(server="notes", transport="stdio", seconds=0.02, **said))
    bus.publish(
        AttemptFinished(server="web", transport="http", seconds=9.0, error="unavailable", **said)
    )
    samples = await page(registry)
    took = "mcp_client_operation_duration_seconds"
    assert total(samples, f"{took}_count", sidecar_server="notes", network_transport="pipe") == 1
    assert total(samples, f"{took}_sum", sidecar_server="web", network_transport="tcp") == 9.0
    assert total(samples, f"{took}_count", error_type="unavailable") == 1


async def test_names_of_strangers_are_bounded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_events, "MOST_NAMES", 3)
    registry = Registry()
    Meters(registry, bus)
    for number in range(10):
        bus.publish(call(target=f"notes__t{number}"))
        bus.publish(RequestFinished(method=f"made/up{number}", seconds=0.1))
    samples = await page(registry)
    took = "mcp_server_operation_duration_seconds_count"
    assert total(samples, took, gen_ai_tool_name=OTHER) == 7
    assert total(samples, took, gen_ai_tool_name="notes__t2") == 1


async def test_sessions(bus: Bus, registry: Registry, clock: Clock) -> None:
    for name in ("a", "b"):
        bus.publish(SessionOpened(session=name, principal="agent", client=""))
    clock.now += 30
    bus.publish(SessionClosed(session="a", principal="agent", why="deleted"))
    samples = await page(registry)
    assert samples["sidecar_sessions", ()] == 1
    assert samples["mcp_server_session_duration_seconds_sum", ()] == 30


async def test_legs_and_tools(bus: Bus, registry: Registry, clock: Clock) -> None:
    bus.publish(LegChanged(server="notes", state=State.CONNECTING))
    bus.publish(LegChanged(server="notes", state=State.READY))
    bus.publish(ToolsChanged(name="sidecar", server="notes", count=7))
    clock.now += 100
    bus.publish(LegChanged(server="notes", state=State.BACKOFF, error="gone", retry_in=1.0))
    before = await page(registry)
    bus.publish(ToolsChanged(name="sidecar", server="notes", count=0))
    samples = await page(registry)
    assert total(before, "sidecar_tools", sidecar_server="notes") == 7
    assert total(samples, "sidecar_tools", sidecar_server="notes") == 0
    changes = "sidecar_leg_changes_total"
    assert total(samples, changes, sidecar_server="notes", sidecar_leg_state="ready") == 1
    lasted = "mcp_client_session_duration_seconds"
    assert total(samples, f"{lasted}_sum", error_type="unavailable") == 100


async def test_a_server_that_is_gone_makes_room_for_others(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_events, "MOST_NAMES", 3)
    registry = Registry()
    meters = Meters(registry, bus)
    bus.publish(call())
    for number in range(50):
        server = f"s{number}"
        about: dict[str, Any] = {"server": server, "target": f"{server}__read"}
        bus.publish(LegChanged(server=server, state=State.READY))
        bus.publish(ToolsChanged(name="sidecar", server=server, count=7))
        bus.publish(call(**about, rule="default"))
        bus.publish(
            AttemptFinished(method="tools/call", kind="mcp", transport="http", seconds=0.1, **about)
        )
        samples = await page(registry)
        took = "mcp_server_operation_duration_seconds_count"
        assert total(samples, took, gen_ai_tool_name=f"{server}__read", sidecar_server=server) == 1
        assert total(samples, "sidecar_calls_total", sidecar_server=server) == 1
        assert total(samples, "sidecar_tools", sidecar_server=server) == 7
        bus.publish(LegChanged(server=server, state=State.BACKOFF, error="gone"))
        meters.forget(server)
        assert f'"{server}"' not in str(await page(registry))
    assert total(await page(registry), "sidecar_calls_total", sidecar_server="notes") == 1
    meters.close()
    assert not bus.wanted(CallFinished)


def parked(state: str, before: str) -> ParkedChanged:
    return ParkedChanged(
        call="p1",
        state=state,
        before=before,
        target="notes__add",
        server="notes",
        principal="agent",
        session="",
        rules=(),
    )


async def test_how_long_people_take(bus: Bus, registry: Registry, clock: Clock) -> None:
    bus.publish(parked("waiting", ""))
    clock.now += 20
    bus.publish(parked("approved", "waiting"))
    clock.now += 100
    bus.publish(parked("taken", "approved"))
    bus.publish(parked("done", "taken"))
    samples = await page(registry)
    waited = "sidecar_approval_wait_seconds"
    assert total(samples, f"{waited}_sum", sidecar_approval_state="approved") == 20
    assert total(samples, f"{waited}_count") == 1


async def test_dials(bus: Bus, registry: Registry) -> None:
    bus.publish(DialDecided(decision="deny", rule="egress/private", reason="dial"))
    samples = await page(registry)
    told = {"sidecar_rule": "egress/private", "sidecar_egress_reason": "dial"}
    assert total(samples, "sidecar_egress_decisions_total", **told) == 1


def test_what_began_and_never_ended_is_bounded(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(metrics_events, "MOST_TIMED", 10)
    began = metrics_events.Began(clock)
    for number in range(50):
        began.begin(str(number))
    assert len(began) == 10
    assert (began.end("0"), began.end("49")) == (None, 0.0)


# ------------------------------------------------------------------------------- the page


async def test_both_formats_say_the_same(bus: Bus, registry: Registry) -> None:
    bus.publish(call(trace=KEPT))
    bus.publish(call(decision="deny", rule='a"b\\c\nd', outcome="denied", error="denied"))
    plain, opened = await page(registry), await page(registry, "open")
    assert plain == opened
    assert total(plain, "sidecar_calls_total", sidecar_rule='a"b\\c\nd') == 1


async def test_exemplars_lead_to_traces(bus: Bus, registry: Registry) -> None:
    bus.publish(call(trace=KEPT))
    text = (await Page(registry, {}).read(True)).decode()
    found = [
        sample.exemplar
        for family in open_metrics(text)
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert [(each.labels["trace_id"], each.value) for each in found] == [(TRACE, 0.03)]
    assert "# {" not in (await Page(registry, {}).read()).decode()


async def test_families_have_types_units_and_help(bus: Bus, registry: Registry) -> None:
    bus.publish(call())
    text = (await Page(registry, {}).read(True)).decode()
    families = {family.name: family for family in open_metrics(text)}
    took = families["mcp_server_operation_duration_seconds"]
    assert (took.type, took.unit) == ("histogram", "seconds")
    assert families["sidecar_calls"].type == "counter"
    assert families["sidecar_sessions"].type == "gauge"
    assert all(family.documentation.endswith(".") for family in families.values())


async def test_who_tells(registry: Registry) -> None:
    about: dict[str, object] = {
        "service.name": "desk",
        "service.tags": ["a", "b"],
        "some.flag": True,
        "some-flag": "same label",
        "1st": 1,
    }
    text = (await Page(registry, about).read()).decode()
    [info] = [family for family in plain_text(text) if family.name == "target_info"]
    assert info.samples[0].labels == {
        "service_name": "desk",
        "service_tags": "a,b",
        "some_flag": "same label",
        "_1st": "1",
    }


async def test_the_page_says_who_tells_as_the_exporters_do(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "team = a%2C%20b, service.name=the%20desk ,no pair"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", said)
    measures = Measures("sidecar", bus, {"OTEL_RESOURCE_ATTRIBUTES": said})
    text = (await measures.page.read()).decode()
    [info] = [family for family in plain_text(text) if family.name == "target_info"]
    labels = info.samples[0].labels
    assert (labels["team"], labels["service_name"]) == ("a, b", "the desk")
    exported = resource.attributes("sidecar", {"OTEL_RESOURCE_ATTRIBUTES": said})
    assert {name.replace(".", "_"): exported[name] for name in ("team", "service.name")} == {
        name: labels[name] for name in ("team", "service_name")
    }
    await measures.close()


async def test_many_series_let_others_have_their_turn() -> None:
    registry = Registry()
    histograms = [registry.histogram(f"h{n}", "s", "H.", ("k",)) for n in range(5)]
    for number in range(1900):
        for histogram in histograms:
            histogram.record((f"value-{number}",), 0.1)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(others())
    writer = Page(registry, {})
    first, second = await asyncio.gather(writer.read(), writer.read())
    beside.cancel()
    assert first is second
    assert len(first.splitlines()) > 5 * 1900 * 17
    assert turns > 40


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.3", True),
        ("text/plain, application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.0,text/plain", False),
    ],
)
def test_who_gets_open_metrics(accept: str, wanted: bool) -> None:
    assert accepted(accept) is wanted


def test_names_are_translated_as_the_specification_has_it() -> None:
    assert name_of(Histogram("mcp.server.operation.duration", "s", "")) == (
        "mcp_server_operation_duration_seconds"
    )
    assert name_of(Histogram("process.memory.usage", "By", "")) == "process_memory_usage_bytes"
    assert name_of(Histogram("sidecar.calls", "{call}", "")) == "sidecar_calls"
    assert name_of(Histogram("sidecar.build.info", "1", "")) == "sidecar_build_info"


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
async def test_whatever_a_rule_is_called_it_can_be_read_back(rule: str) -> None:
    registry = Registry()
    registry.counter("c", "1", "C.", ("rule",)).add((rule,), 3)
    for format in ("text", "open"):
        samples = await page(registry, format)
        wanted = (("rule", rule),) if rule else ()
        assert samples["c_total", wanted] == 3
