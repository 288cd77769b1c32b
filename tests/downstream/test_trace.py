"""Which span a request is part of: what its message says, and what its HTTP headers say."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from sidecar.downstream.trace import trace_of
from sidecar.model import NO_TRACE, TraceContext
from tests.downstream.kit import Rig, running

OURS = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
HTTP = "00-0af7651916cd43dd8448eb211c80319c-1111111111111111-01"
CALL = {"name": "echo", "arguments": {}}


async def send(rig: Rig, era: str, meta: dict[str, object], headers: dict[str, str]) -> None:
    params = {**CALL, "_meta": meta}
    if era == "modern":
        await rig.modern("tools/call", params, headers=headers, id=5)
        return
    session = await rig.initialize()
    message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
    await rig.post(message, headers={**session, **headers})


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("meta", "headers", "trace", "link"),
    [
        ({}, {}, NO_TRACE, NO_TRACE),
        # Whoever instruments HTTP alone is part of the trace all the same.
        (
            {},
            {"traceparent": HTTP, "tracestate": "a=b", "baggage": "c=d"},
            TraceContext(HTTP, "a=b", "c=d"),
            NO_TRACE,
        ),
        (
            {"traceparent": OURS, "baggage": "x=y"},
            {"traceparent": HTTP},
            TraceContext(OURS, "", "x=y"),
            TraceContext(HTTP),
        ),
        # The same span by two ways is one.
        ({"traceparent": OURS}, {"traceparent": OURS}, TraceContext(OURS), NO_TRACE),
        ({"traceparent": OURS}, {"traceparent": "junk"}, TraceContext(OURS), NO_TRACE),
    ],
)
async def test_parent_and_link(
    era: str,
    meta: dict[str, object],
    headers: dict[str, str],
    trace: TraceContext,
    link: TraceContext,
) -> None:
    async with running() as rig:
        await send(rig, era, meta, headers)
        _, _, caller = rig.gateway.seen[-1]
        assert (caller.trace, caller.link, caller.request) == (trace, link, 5)


async def test_what_no_server_answers_has_a_span() -> None:
    async with running() as rig:
        session = await rig.initialize()
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {}}
        await rig.post(ping, headers=session)
        await rig.modern("server/discover", {"_meta": {"traceparent": OURS}})
        assert [method for method, _ in rig.gateway.spans] == [
            "initialize",
            "ping",
            "server/discover",
        ]
        assert rig.gateway.spans[-1][1] == TraceContext(OURS)


def test_headers_of_several_lines() -> None:
    lines = [
        ("Traceparent", HTTP),
        ("tracestate", "a=b"),
        ("Tracestate", "c=d"),
        ("baggage", "e=f"),
    ]
    headers = CIMultiDictProxy(CIMultiDict(lines))
    assert trace_of(headers) == TraceContext(HTTP, "a=b,c=d", "e=f")
    twice = CIMultiDictProxy(CIMultiDict([*lines, ("traceparent", OURS)]))
    assert trace_of(twice) == TraceContext("", "", "e=f")
