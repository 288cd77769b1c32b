"""The trace of a call: one span for the request, one for each attempt, handed on."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from sidecar.config import CaptureConfig, ParkingConfig, TelemetryConfig
from sidecar.events import Bus, CallFinished, RequestFinished
from sidecar.gateway import Gateway
from sidecar.model import NO_TRACE, Era, JsonObject, RpcError, TraceContext, Unavailable, Unroutable
from sidecar.ports.tracer import CURRENT, SpanKind, Value
from tests.gateway.conftest import CONFIG, Serve
from tests.gateway.scripted import Scripted, caller, config, offers, resource, result, tool


class Spans:
    """A tracer that keeps what it starts."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.sampled = sampled
        self.started: list[Kept] = []

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext,
        *,
        at: int | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Kept:
        span = Kept(self, name, kind, parent)
        span.attributes |= dict(attributes or {})
        self.started.append(span)
        return span


class Kept:
    def __init__(self, tracer: Spans, name: str, kind: SpanKind, parent: TraceContext) -> None:
        self.name, self.kind, self.parent = name, kind, parent
        self.sampled = tracer.sampled
        self.context = TraceContext(f"00-{len(tracer.started)}")
        self.attributes: dict[str, object] = {}
        self.links: list[TraceContext] = []
        self.ended: list[str | None] = []
        self.messages: list[str] = []

    def set(self, key: str, value: Value) -> None:
        assert self.sampled
        self.attributes[key] = value

    def link(self, context: TraceContext) -> None:
        if context.traceparent:
            self.links.append(context)

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        assert self.sampled

    def end(self, error: str | None = None, message: str = "", *, at: int | None = None) -> None:
        self.ended.append(error)
        self.messages.append(message)


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
        "sidecar.principal": "agent",
        "sidecar.era": "legacy",
        "sidecar.server": "s",
        "sidecar.call": answer["_meta"]["sidecar/call"],  # type: ignore[index]
        "mcp.session.id": "s1",
        "gen_ai.tool.name": "s__x",
        "gen_ai.operation.name": "execute_tool",
        "sidecar.decision": "allow",
        "sidecar.rule": "default",
        "sidecar.outcome": "ok",
        "sidecar.attempts": 2,
    }
    assert second.attributes["network.transport"] == "pipe"
    assert first.messages == ["refused"]
    assert events[0].trace is request.context
    assert events[0].trace != NO_TRACE and CURRENT.get() is NO_TRACE
    await gateway.close()


@pytest.mark.parametrize(
    ("scripted", "errors"),
    [
        (result(isError=True), ["tool_error", "tool_error"]),
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
        ("tools/call", "server", ["unknown_tool"]),
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
    assert got.sent is not None
    assert repr(dataclasses.replace(got, trace=PARENT, sent=None)) == repr(who)
    assert (got.notify, got.deadline, got.progress, got.log_level) == (told, 1e12, "tok", "info")
    await gateway.close()


async def test_what_asks_wrongly_and_what_is_no_call_have_spans(bus: Bus, tracer: Spans) -> None:
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    gateway.attach(Scripted("s", offers(["x"])), config("s"))
    http = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")
    await gateway.request("ping", {}, caller(trace=PARENT, link=http, request=7))
    with pytest.raises(RpcError):
        await gateway.request("tools/call", {"name": 1}, caller(trace=PARENT))
    ping, wrong = tracer.started
    assert (ping.name, ping.parent, ping.ended, ping.links) == ("ping", PARENT, [None], [http])
    assert ping.attributes["jsonrpc.request.id"] == "7"
    assert (wrong.name, wrong.ended) == ("tools/call", ["-32602"])
    await gateway.close()


async def test_arguments_and_results_only_when_asked_for_and_redacted(
    bus: Bus, tracer: Spans
) -> None:
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    server = Scripted("s", offers(["x"]))
    gateway.attach(server, config("s"))
    content = result(structuredContent={"token": "S2", "n": 1})
    server.answers["tools/call"] = [content, content]
    params: JsonObject = {"name": "s__x", "arguments": {"a": {"password": "S1"}, "b": [2]}}
    await gateway.request("tools/call", params, caller())
    assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"} & {
        key for span in tracer.started for key in span.attributes
    }
    gateway.reconfigure(
        dataclasses.replace(
            CONFIG,
            telemetry=TelemetryConfig(CaptureConfig(True, True, ("structuredContent.token",))),
            parking=ParkingConfig(redact=("pass*",)),
        )
    )
    await gateway.request("tools/call", params, caller())
    span = tracer.started[-2]
    assert span.attributes["gen_ai.tool.call.arguments"] == '{"a":{"password":"[hidden]"},"b":[2]}'
    told = str(span.attributes["gen_ai.tool.call.result"])
    assert '"structuredContent":{"token":"[hidden]","n":1}' in told
    long: JsonObject = {"name": "s__x", "arguments": {"a": "x" * 10_000}}
    server.answers["tools/call"] = [content]
    await gateway.request("tools/call", long, caller())
    kept = str(tracer.started[-2].attributes["gen_ai.tool.call.arguments"])
    assert len(kept) == 8193
    await gateway.close()


async def test_what_a_call_began_works_for_nobody_when_it_is_over(bus: Bus, tracer: Spans) -> None:
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    seen: list[TraceContext] = []
    over = asyncio.Event()

    class Busy(Scripted):
        """Leaves something running, as a leg of a session of its own is."""

        async def request(self, *given: Any) -> Any:
            seen.append(CURRENT.get())
            self.left = asyncio.create_task(self.later())
            return await super().request(*given)

        async def later(self) -> None:
            await over.wait()
            seen.append(CURRENT.get())

    server = Busy("s", offers(["x"]))
    gateway.attach(server, config("s"))
    await gateway.request("tools/call", {"name": "s__x"}, caller(trace=PARENT))
    over.set()
    await server.left
    assert seen == [tracer.started[0].context, NO_TRACE]
    await gateway.close()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("logging/setLevel", {"level": "loud"}),
        ("resources/unsubscribe", {}),
        ("tools/list", {"cursor": "made up"}),
    ],
)
async def test_a_refused_request_that_is_no_call_is_told_once(
    bus: Bus, tracer: Spans, method: str, params: JsonObject
) -> None:
    told: list[RequestFinished] = []
    bus.listen(RequestFinished, told.append)
    gateway = Gateway(CONFIG, bus, tracer=tracer)
    with pytest.raises(RpcError):
        await gateway.request(method, params, caller())
    assert [(each.name, each.ended) for each in tracer.started] == [(method, ["-32602"])]
    assert [(each.method, each.error) for each in told] == [(method, "-32602")]
