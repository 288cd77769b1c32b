"""Waits as spans: one for each who waits, one for the answer, and links between them."""

from __future__ import annotations

import pytest

from sidecar.model import TraceContext
from sidecar.parking.machine import WrongState
from sidecar.telemetry.sampling import Sampling, always
from sidecar.telemetry.span import KeptSpan, SpanLimits
from sidecar.telemetry.tracer import KeepingTracer
from tests.parking.kit import Node, moment, plain, store, virtually


def agent(number: int, flags: str = "01") -> TraceContext:
    """The trace of another request."""
    return TraceContext(f"00-{number:032x}-{number:016x}-{flags}")


class Watched:
    """What a node's tracer kept."""

    def __init__(self) -> None:
        self.kept: list[KeptSpan] = []
        self.tracer = KeepingTracer(Sampling(True, always), SpanLimits(), self.kept.append)

    def named(self, name: str) -> list[KeptSpan]:
        return [span for span in self.kept if span.name == name]


def ids(span: KeptSpan) -> tuple[str, str]:
    return span.trace_id, span.span_id


def links(span: KeptSpan) -> list[tuple[str, str]]:
    return [(link.traceparent[3:35], link.traceparent[36:52]) for link in span.links]


@virtually
async def test_a_wait_that_is_answered() -> None:
    seen = Watched()
    async with Node(await store(), tracer=seen.tracer) as node:
        call = node.call(trace=agent(1))
        await moment(3.5)
        parked = node.only("waiting")
        await node.approve()
        await call
    (wait,), (answer,) = seen.named("sidecar.approval"), seen.named("sidecar.answer")
    assert (wait.trace_id, wait.parent_id) == (f"{1:032x}", f"{1:016x}")
    assert (answer.trace_id, answer.parent_id) == ids(wait)
    assert links(wait) == [ids(answer)]
    assert wait.attributes == {
        "sidecar.call": parked.id,
        "sidecar.target": "s__write",
        "sidecar.server": "s",
        "sidecar.approval": parked.id,
        "sidecar.approval.state": "taken",
        "sidecar.rules": ("p/gated",),
        "sidecar.approval.by": "alice",
        "sidecar.approval.way": "token",
        "sidecar.approval.waited": pytest.approx(3.5, abs=0.1),
        "sidecar.approval.outcome": "approved",
    }
    assert answer.attributes == {
        "sidecar.approval": parked.id,
        "sidecar.approval.state": "approved",
        "sidecar.approval.by": "alice",
        "sidecar.approval.way": "token",
        "sidecar.target": "s__write",
        "sidecar.server": "s",
        "sidecar.principal": "agent",
    }


@virtually
async def test_who_joins_links_to_who_was_there() -> None:
    seen = Watched()
    async with Node(await store(), tracer=seen.tracer) as node:
        first = node.call(trace=agent(1))
        await moment()
        second = node.call(trace=agent(2))
        await moment()
        await node.approve()
        assert "isError" not in plain(await first) and "isError" not in plain(await second)
    (answer,) = seen.named("sidecar.answer")
    waits = {span.trace_id: span for span in seen.named("sidecar.approval")}
    one, two = waits[f"{1:032x}"], waits[f"{2:032x}"]
    assert links(one) == [ids(answer)]
    assert links(two) == [ids(one), ids(answer)]
    outcomes = {span.attributes["sidecar.approval.outcome"] for span in (one, two)}
    assert outcomes == {"approved", "joined"}


@virtually
async def test_on_another_node_days_later() -> None:
    shared, one, two, three = await store(), Watched(), Watched(), Watched()
    async with Node(shared, tracer=one.tracer) as node:
        assert "sidecar/parked" in plain(await node.call(trace=agent(1)))["_meta"]
    async with Node(shared, tracer=two.tracer) as node:
        await moment(3600)
        await node.approve()
    async with Node(shared, tracer=three.tracer) as node:
        await moment(3600)
        assert "isError" not in plain(await node.call(trace=agent(9)))
    (parked,), (answer,), (back,) = one.kept, two.kept, three.kept
    assert parked.attributes["sidecar.approval.outcome"] == "parked"
    assert (answer.name, answer.trace_id, answer.parent_id) == ("sidecar.answer", *ids(parked))
    assert back.trace_id == f"{9:032x}"
    assert links(back) == [ids(parked), ids(answer)]


@virtually
async def test_a_denial_and_an_answer_that_comes_too_late() -> None:
    seen = Watched()
    async with Node(await store(), tracer=seen.tracer) as node:
        call = node.call(trace=agent(1))
        await moment()
        id = node.only("waiting").id
        await node.deny()
        assert plain(await call)["isError"]
        with pytest.raises(WrongState):
            await node.approve(id)
    (wait,), (denied, late) = seen.named("sidecar.approval"), seen.named("sidecar.answer")
    assert wait.attributes["sidecar.approval.outcome"] == "denied"
    assert wait.error is None
    assert (denied.attributes["sidecar.approval.state"], denied.error) == ("denied", None)
    assert late.error == "WrongState"
    assert links(wait) == [ids(denied)]


@virtually
async def test_a_trace_that_is_not_kept_leaves_nothing_to_link_to() -> None:
    seen = Watched()
    async with Node(await store(), tracer=seen.tracer) as node:
        call = node.call(trace=agent(1, "00"))
        await moment()
        assert node.only("waiting").trace == ""
        await node.approve()
        await call
    # Nobody keeps who waited; the answer is a trace of its own.
    assert seen.named("sidecar.approval") == []
    (answer,) = seen.named("sidecar.answer")
    assert answer.parent_id == ""


@virtually
async def test_hanging_up_is_seen() -> None:
    seen = Watched()
    async with Node(await store(), tracer=seen.tracer) as node:
        call = node.call(trace=agent(1))
        await moment()
        call.cancel()
        await moment()
    (wait,) = seen.kept
    assert wait.attributes["sidecar.approval.outcome"] == "cancelled"
