"""The trace of a call: one span for the request, one for each attempt, handed on."""

from __future__ import annotations

import dataclasses

import pytest

from sidecar.events import Bus, CallFinished
from sidecar.gateway import Gateway
from sidecar.model import Era, RpcError, TraceContext, Unavailable, Unroutable
from sidecar.ports.tracer import SpanKind
from tests.gateway.conftest import CONFIG, Serve
from tests.gateway.scripted import Scripted, caller, config, offers, resource, result, tool


class Spans:
    """A tracer that keeps what it starts."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.sampled = sampled
        self.started: list[Kept] = []

    def start(self, name: str, kind: SpanKind, parent: TraceContext) -> Kept:
        span = Kept(self, name, kind, parent)
        self.started.append(span)
        return span


class Kept:
    def __init__(self, tracer: Spans, name: str, kind: SpanKind, parent: TraceContext) -> None:
        self.name, self.kind, self.parent = name, kind, parent
        self.sampled = tracer.sampled
        self.context = TraceContext(f"00-{len(tracer.started)}")
        self.attributes: dict[str, object] = {}
        self.ended: list[str | None] = []

    def set(self, key: str, value: str | float | bool) -> None:
        assert self.sampled
        self.attributes[key] = value

    def end(self, error: str | None = None) -> None:
        self.ended.append(error)


@pytest.fixture
def tracer() -> Spans:
    return Spans()


PARENT = TraceContext("00-parent", "a=b", "c=d")


async def test_spans_of_a_call_that_is_tried_twice(bus: Bus, tracer: Spans) -> None:
    events: list[CallFinished] = []
    bus.listen(CallFinished, events.append)
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    server = Scripted("s", offers(["x"]))
    server.answers["tools/call"] = [Unavailable("s", "refused", ran="no"), result()]
    gateway.attach(server, config("s"))
    answer = await gateway.request("tools/call", {"name": "s__x"}, caller(trace=PARENT))
    request, first, second = tracer.started
    assert [s.name for s in tracer.started] == ["tools/call s__x"] * 3
    assert [s.kind for s in tracer.started] == ["server", "client", "client"]
    assert request.parent is PARENT
    assert first.parent == second.parent == request.context
    assert [s.ended for s in tracer.started] == [[None], ["unavailable"], [None]]
    assert [c.trace for _, _, c in server.asked] == [first.context, second.context]
    assert second.attributes["sidecar.attempt"] == 2
    assert request.attributes == {
        "mcp.method.name": "tools/call",
        "sidecar.server": "s",
        "sidecar.call": answer["_meta"]["sidecar/call"],  # type: ignore[index]
        "mcp.session.id": "s1",
        "gen_ai.tool.name": "s__x",
        "gen_ai.operation.name": "execute_tool",
        "sidecar.decision": "allow",
        "sidecar.rule": "default",
    }
    assert events[0].trace is request.context
    await gateway.close()


@pytest.mark.parametrize(
    ("scripted", "errors"),
    [
        (result(isError=True), ["tool_error", None]),
        (RpcError(-32050, "x"), ["-32050", "-32050"]),
        (Unavailable("s", "x", ran="maybe"), ["unavailable", "unavailable"]),
        (ValueError("SECRET"), ["ValueError", "ValueError"]),
    ],
)
async def test_a_failure_is_named_and_not_quoted(
    bus: Bus, tracer: Spans, scripted: Exception, errors: list[str | None]
) -> None:
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    server = Scripted("s", offers([tool("x")]))
    server.answers["tools/call"] = scripted
    gateway.attach(server, config("s"))
    try:
        await gateway.request("tools/call", {"name": "s__x"}, caller())
    except (RpcError, Unavailable, ValueError) as failure:
        assert failure is scripted
    assert [s.ended for s in tracer.started] == [[e] for e in errors]
    await gateway.close()


async def test_a_uri_is_part_of_no_name_and_lists_have_spans_too(bus: Bus, tracer: Spans) -> None:
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    gateway.attach(Scripted("s", offers([], resources=(resource("f:///x"),))), config("s"))
    await gateway.request("resources/read", {"uri": "f:///x"}, caller(trace=PARENT))
    await gateway.request("tools/list", {}, caller(trace=PARENT))
    with pytest.raises(Unroutable):
        await gateway.request("tools/list", {}, caller(server="nobody"))
    with pytest.raises(Unroutable):
        await gateway.request("tools/call", {"name": "SECRET"}, caller(trace=PARENT))
    assert [(s.name, s.kind, s.ended) for s in tracer.started] == [
        ("resources/read", "server", [None]),
        ("resources/read", "client", [None]),
        ("tools/list", "server", [None]),
        ("tools/list", "server", ["unknown_server"]),
        ("tools/call", "server", ["no_separator"]),
    ]
    assert tracer.started[-1].parent is PARENT
    await gateway.close()


async def test_an_unsampled_span_gets_no_attributes_but_its_context_goes_on(bus: Bus) -> None:
    tracer = Spans(sampled=False)
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    server = Scripted("s", offers(["x"]))
    gateway.attach(server, config("s"))
    await gateway.request("tools/call", {"name": "s__x"}, caller(trace=PARENT))
    assert [s.attributes for s in tracer.started] == [{}, {}]
    assert server.asked[0][2].trace == tracer.started[1].context
    await gateway.close()


async def test_by_default_the_callers_own_context_and_caller_go_on(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", offers(["x"]))
    who = caller(trace=PARENT)
    await gateway.request("tools/call", {"name": "s__x"}, who)
    assert server.asked[0][2] is who


async def test_under_another_span_the_caller_is_otherwise_the_same(bus: Bus, tracer: Spans) -> None:
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    server = Scripted("s", offers(["x"]))
    gateway.attach(server, config("s"))

    def told(method: str, params: object) -> None:
        raise AssertionError

    who = caller(
        era=Era.MODERN,
        session="z",
        trace=PARENT,
        deadline=1e12,
        progress="tok",
        log_level="info",
        notify=told,
        capabilities={"x": {}},
    )
    await gateway.request("tools/call", {"name": "s__x"}, who)
    got = server.asked[0][2]
    assert got.trace != PARENT
    assert repr(dataclasses.replace(got, trace=PARENT)) == repr(who)
    assert (got.notify, got.deadline, got.progress, got.log_level) == (told, 1e12, "tok", "info")
    await gateway.close()
