"""One trace from the agent's own span to the server's, through everything in between.

The agent and the servers are instrumented with the SDK, the receiver reads with the real classes:
nothing here takes our word for what a trace is.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from sidecar.admin import AdminClient
from tests.kit.client import CLIENTS, Client, Legacy, Modern
from tests.kit.running import ROOT, Sidecar, running
from tests.telemetry.spans import Got, Receiver, receiving

SCRIPT = str(Path(__file__).with_name("instrumented.py"))


def environment(receiver: Receiver, service: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": service,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def over_http(receiver: Receiver, folder: Path) -> Iterator[str]:
    """The instrumented server on a port; its address."""
    port = folder / "port"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "http", str(port)],
        cwd=ROOT,
        env={**os.environ, **environment(receiver, "server")},
    )
    try:
        end = time.monotonic() + 50
        while not port.exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text()}/mcp"
    finally:
        process.terminate()
        process.wait(30)


class Agent:
    """A client whose calls have spans of its own, as an instrumented agent's have."""

    def __init__(self, receiver: Receiver, about: dict[str, str] | None = None) -> None:
        self._provider = TracerProvider(
            resource=Resource({"service.name": "agent", **(about or {})})
        )
        exporter = OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")
        self._provider.add_span_processor(SimpleSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("agent")

    async def call(self, client: Client, name: str, **arguments: Any) -> dict[str, Any]:
        span = self._tracer.start_span("agent's turn")
        from opentelemetry.trace import set_span_in_context

        meta: dict[str, str] = {}
        inject(meta, set_span_in_context(span))
        params = {"name": name, "arguments": arguments, "_meta": meta}
        try:
            return await client.request("tools/call", params)
        finally:
            # It exports in place, to a receiver that needs this loop.
            await asyncio.to_thread(span.end)


@asynccontextmanager
async def world(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Any
) -> AsyncIterator[tuple[Receiver, Sidecar, Agent]]:
    async with receiving() as receiver:
        for name, value in environment(receiver, "sidecar").items():
            monkeypatch.setenv(name, value)
        web = over_http(receiver, folder)
        url = await asyncio.to_thread(web.__enter__)
        try:
            servers = {
                "web": {"url": url, "gated": True},
                "pipe": {
                    "command": [sys.executable, SCRIPT, "stdio"],
                    "env": environment(receiver, "server"),
                    "gated": True,
                },
            }
            gating = {"policy": {"shipped": ["gating"]}}
            async with running({"servers": servers, **gating, **config}) as sidecar:
                yield receiver, sidecar, Agent(receiver)
        finally:
            await asyncio.to_thread(web.__exit__, None, None, None)


async def approved(sidecar: Sidecar) -> str:
    """Approve the one call that waits, as soon as it does; its id."""
    admin = AdminClient(sidecar.admin)
    end = time.monotonic() + 30
    while not (waiting := await asyncio.to_thread(admin.calls, "waiting")):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    (call,) = waiting
    await asyncio.to_thread(lambda: admin.answer(str(call["id"]), approve=True))
    return str(call["id"])


def one(spans: list[Got], name: str, **about: object) -> Got:
    """The one span of this name with such attributes or parts."""
    found = [
        span
        for span in spans
        if span.name == name and all(getattr(span, key) == value for key, value in about.items())
    ]
    assert len(found) == 1, [(s.service, s.kind, s.name, s.attributes) for s in spans]
    return found[0]


async def test_from_the_agent_to_the_server_in_both_eras_and_over_stdio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        aiohttp.ClientSession() as http,
        world(tmp_path, monkeypatch) as (receiver, sidecar, agent),
    ):
        for era in CLIENTS:
            client = CLIENTS[era](http, sidecar.mcp)
            await client.open()
            await client.until_listed("web__echo", "pipe__echo", within=30)
            for server in ("web", "pipe"):
                receiver.requests.clear()
                call = asyncio.create_task(agent.call(client, f"{server}__echo", message="hello"))
                id = await approved(sidecar)
                assert (await call)["content"][0]["text"] == "hello"
                request = (f"tools/call {server}__echo", "server")
                spans = await receiver.until(
                    lambda spans, request=request: (
                        {"agent", "server"} <= {s.service for s in spans}
                        and request in {(s.name, s.kind) for s in spans}
                    )
                )
                turn = one(spans, "agent's turn")
                whole = [span for span in spans if span.trace == turn.trace]
                unbroken(whole, turn, server, era, id)


def unbroken(spans: list[Got], turn: Got, server: str, era: str, id: str) -> None:
    """agent → request → decision, wait → answer; request → attempt → server."""
    name = f"tools/call {server}__echo"
    request = one(spans, name, kind="server", service="sidecar")
    # It is decided once more as it is let through, and asks again.
    decision = next(span for span in spans if span.name == "sidecar.decide")
    wait = one(spans, "sidecar.approval")
    answer = one(spans, "sidecar.answer")
    attempt = one(spans, name, kind="client", service="sidecar")
    theirs = one(spans, "tools/call echo", service="server", kind="server")
    assert [span.parent for span in (turn, request, decision, wait, answer, attempt, theirs)] == [
        "",
        turn.id,
        request.id,
        request.id,
        wait.id,
        request.id,
        attempt.id,
    ]
    assert request.attributes["sidecar.era"] == era
    assert request.attributes["gen_ai.operation.name"] == "execute_tool"
    assert request.attributes["sidecar.outcome"] == "ok"
    assert decision.attributes["sidecar.rule"] == "gating/gated"
    assert wait.attributes["sidecar.approval"] == answer.attributes["sidecar.approval"] == id
    assert wait.attributes["sidecar.approval.outcome"] == "approved"
    assert wait.attributes["sidecar.approval.by"] == answer.attributes["sidecar.approval.by"]
    assert str(answer.attributes["sidecar.approval.by"]).startswith("uid:")
    assert attempt.attributes["network.transport"] == ("pipe" if server == "pipe" else "tcp")
    # The wait is seen, and is in between.
    assert request.began <= wait.began < answer.began <= wait.ended <= attempt.began
    assert attempt.began <= theirs.began <= theirs.ended <= request.ended
    assert not any(span.error for span in spans)
    assert "hello" not in str([span.attributes for span in spans])


async def test_who_comes_back_is_linked_to_who_waited_and_to_who_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = {"parking": {"hold": "200ms"}}
    async with (
        aiohttp.ClientSession() as http,
        world(tmp_path, monkeypatch, **waits) as (receiver, sidecar, agent),
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("pipe__echo", within=30)
        parked = await agent.call(client, "pipe__echo", message="x")
        assert "sidecar/parked" in parked["_meta"]
        id = await approved(sidecar)
        answered = await agent.call(client, "pipe__echo", message="x")
        assert answered["content"][0]["text"] == "x"
        spans = await receiver.until(
            lambda spans: (
                len([s for s in spans if s.name == "agent's turn"]) == 2
                and len([s for s in spans if s.name == "sidecar.approval"]) == 2
                and any(s.name == "sidecar.answer" for s in spans)
            )
        )
    first, second = sorted(
        (span for span in spans if span.name == "sidecar.approval"), key=lambda s: s.began
    )
    answer = one(spans, "sidecar.answer")
    assert first.trace != second.trace
    assert (answer.trace, answer.parent) == (first.trace, first.id)
    assert first.links == []
    assert second.links == [(first.trace, first.id), (answer.trace, answer.id)]
    assert first.attributes["sidecar.approval.outcome"] == "parked"
    assert second.attributes["sidecar.approval.outcome"] == "approved"
    assert {span.attributes["sidecar.approval"] for span in (first, second, answer)} == {id}


async def test_sigterm_sends_what_waits_and_what_changed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver:
        for name, value in environment(receiver, "sidecar").items():
            monkeypatch.setenv(name, value)
        # Nothing would be sent by itself within this test.
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
        server = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}
        async with running({"servers": {"notes": server}, "name": "me"}) as sidecar:
            async with aiohttp.ClientSession() as http:
                client = Legacy(http, sidecar.mcp)
                await client.open()
                await client.until_listed("notes__search", within=30)
                for number in range(20):
                    flags = "01" if number % 2 else "00"
                    parent = f"00-{number + 1:032x}-{1:016x}-{flags}"
                    await client.request(
                        "tools/call",
                        {
                            "name": "notes__search",
                            "arguments": {},
                            "_meta": {"traceparent": parent},
                        },
                    )
            assert receiver.asked == 0
            assert await asyncio.to_thread(sidecar.stop) == 0
    spans = receiver.spans
    calls = [s for s in spans if s.name == "tools/call notes__search" and s.kind == "server"]
    # Every second trace is kept by whoever began it, and the others by nobody.
    assert [int(span.trace, 16) for span in calls] == [n + 1 for n in range(20) if n % 2]
    assert not [s for s in spans if int(s.trace, 16) in range(1, 21, 2)]
    assert one(spans, "initialize").attributes["sidecar.client"] == "tests"
    listed = [s for s in spans if s.name == "sidecar.tools_changed"]
    assert listed[0].attributes["sidecar.name"] == "me"
    assert listed[0].attributes["sidecar.tools.added"] == ["add", "search"]
    assert listed[0].attributes["sidecar.tools.count"] == 2
    states = [s.attributes["sidecar.leg.state"] for s in spans if s.name == "sidecar.leg"]
    assert states[:2] == ["connecting", "ready"]
