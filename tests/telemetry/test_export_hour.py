"""An hour of a receiver that does not take anything, at full load, on a clock that a test moves."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from sidecar.model import NO_TRACE
from sidecar.telemetry.otlp import batches
from sidecar.telemetry.otlp.batches import Batches, BatchLimits
from sidecar.telemetry.otlp.http import Sent
from sidecar.telemetry.otlp.trace import SpanEncoder
from sidecar.telemetry.sampling import Sampling, always
from sidecar.telemetry.span import KeptSpan, SpanLimits
from sidecar.telemetry.tracer import KeepingTracer
from tests.parking.kit import virtually

LIMITS = BatchLimits(queue=512, batch=128)
HOUR, STEP, BURST = 3600.0, 4.0, 120
Sending = Callable[[bytes, float], Awaitable[Sent]]


class Batch:
    """An ``OtlpBatch`` whose connection a test holds."""

    def __init__(self, send: Sending, encoder: SpanEncoder) -> None:
        self.send_ = send
        self.encoder = encoder
        self.records: list[bytes] = []

    def add(self, item: KeptSpan) -> None:
        self.records.append(self.encoder.record(item))

    async def send(self, timeout: float) -> Sent:
        return await self.send_(self.encoder.request(self.records), timeout)


def queue_of(send: Sending, limits: BatchLimits = LIMITS) -> Batches[KeptSpan]:
    encoder = SpanEncoder({"service.name": "x"}, "1")
    return Batches("spans", lambda: Batch(send, encoder), limits, where="somewhere")


def tracer_of(made: Batches[KeptSpan]) -> KeepingTracer:
    return KeepingTracer(Sampling(True, always), SpanLimits(), made.put)


def burst(tracer: KeepingTracer, count: int = BURST) -> float:
    """So many spans, as calls make them; what one took, in seconds."""
    began = time.perf_counter()
    for _ in range(count):
        span = tracer.start("tools/call s__x", "server", NO_TRACE)
        span.set("mcp.method.name", "tools/call")
        span.set("gen_ai.tool.name", "s__x")
        span.end()
    return (time.perf_counter() - began) / count


async def taken(body: bytes, timeout: float) -> Sent:
    await asyncio.sleep(0.001)
    return Sent()


async def refused(body: bytes, timeout: float) -> Sent:
    return Sent("it cannot be reached", again=True)


async def silent(body: bytes, timeout: float) -> Sent:
    await asyncio.sleep(timeout)
    return Sent("it does not answer in time", again=True)


async def busy(body: bytes, timeout: float) -> Sent:
    await asyncio.sleep(0.01)
    return Sent("it answers 503", again=True, after=3.0)


async def broken(body: bytes, timeout: float) -> Sent:
    raise RuntimeError("a fault of ours")


async def hour(send: Sending, steps: int) -> tuple[Batches[KeptSpan], float]:
    """So many steps of full load; the median of what a span took in them."""
    made = queue_of(send)
    tracer = tracer_of(made)
    made.start()
    times, early = [], 0
    for step in range(steps):
        times.append(burst(tracer))
        assert len(made) <= LIMITS.queue
        await asyncio.sleep(STEP)
        if step == steps // 6:
            early = sys.getallocatedblocks()
    # What waits is bounded, and nothing else is kept.
    assert sys.getallocatedblocks() - early < 20_000
    return made, statistics.median(times)


@pytest.mark.parametrize("send", [refused, silent, busy, broken])
@virtually
async def test_an_hour_without_a_receiver(send: Sending) -> None:
    healthy, usual = await hour(taken, 100)
    await healthy.close()
    assert healthy.counts == batches.Counts(sent=100 * BURST)
    steps = int(HOUR / STEP)
    made, then = await hour(send, steps)
    # Whoever makes a span does not notice that nobody takes it.
    assert then < 3 * usual
    counts, total = made.counts, steps * BURST
    loop = asyncio.get_running_loop()
    began = loop.time()
    await made.close()
    assert loop.time() - began <= batches.CLOSE_SILENCE + 0.1
    # Every single one of them is accounted for.
    assert (counts.sent, counts.dropped + counts.failed) == (0, total)
    assert counts.dropped > total // 8 or send is broken  # which is over at once


@virtually
async def test_it_goes_on_when_the_receiver_is_back() -> None:
    up = [False]

    async def send(body: bytes, timeout: float) -> Sent:
        return Sent() if up[0] else Sent("it cannot be reached", again=True)

    made = queue_of(send)
    tracer = tracer_of(made)
    made.start()
    for _ in range(50):
        burst(tracer)
        await asyncio.sleep(STEP)
    lost = made.lost()
    assert lost
    up[0] = True
    await asyncio.sleep(30)
    assert len(made) == 0
    assert made.counts.sent + made.lost() == 50 * BURST
    # What waited has arrived, and from then on nothing is lost.
    lost = made.lost()
    burst(tracer, LIMITS.queue)
    await asyncio.sleep(10)
    assert made.lost() == lost
    await made.close()


@virtually
async def test_what_is_slow_but_answers_gets_its_time_at_the_end() -> None:
    async def slow(body: bytes, timeout: float) -> Sent:
        await asyncio.sleep(1.0)
        return Sent()

    made = queue_of(slow, BatchLimits())
    made.start()
    burst(tracer_of(made), 2000)
    await made.close()
    assert made.counts == batches.Counts(sent=2000)


@virtually
async def test_what_answers_too_slowly_is_left_at_the_limit() -> None:
    async def slow(body: bytes, timeout: float) -> Sent:
        await asyncio.sleep(1.9)
        return Sent()

    made = queue_of(slow, BatchLimits())
    made.start()
    burst(tracer_of(made), 2000)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await made.close()
    assert loop.time() - began == pytest.approx(batches.CLOSE_LIMIT, abs=0.1)
    assert made.counts.sent == 1024
    assert made.counts.sent + made.lost() == 2000


@virtually
async def test_a_full_batch_does_not_wait_for_its_time() -> None:
    made = queue_of(taken, BatchLimits(delay=3600.0))
    tracer = tracer_of(made)
    made.start()
    await asyncio.sleep(1)
    burst(tracer, 511)
    await asyncio.sleep(60)
    assert made.counts.sent == 0
    burst(tracer, 1)
    await asyncio.sleep(1)
    assert made.counts.sent == 512
    await made.close()


@virtually
async def test_a_batch_that_is_not_full_waits_for_its_time() -> None:
    sent: list[float] = []
    loop = asyncio.get_running_loop()

    async def send(body: bytes, timeout: float) -> Sent:
        sent.append(loop.time())
        return Sent()

    made = queue_of(send)
    tracer = tracer_of(made)
    made.start()
    began = loop.time()
    burst(tracer, 1)
    await asyncio.sleep(4)
    burst(tracer, 1)
    await asyncio.sleep(4)
    assert [moment - began for moment in sent] == [pytest.approx(LIMITS.delay)]
    assert made.counts.sent == 2
    await made.close()


@virtually
async def test_the_loop_has_its_turn_while_spans_are_encoded() -> None:
    async def at_once(body: bytes, timeout: float) -> Sent:
        return Sent()

    made = queue_of(at_once, BatchLimits())
    tracer = tracer_of(made)
    burst(tracer, 2048)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while len(made):
            turns += 1
            await asyncio.sleep(0)

    made.start()
    await other()
    await made.close()
    # A turn for every slice at least.
    assert turns >= 2048 // batches.SLICE


@virtually
async def test_another_thread_may_put() -> None:
    made = queue_of(taken, BatchLimits(delay=3600.0))
    tracer = tracer_of(made)
    made.start()
    await asyncio.to_thread(burst, tracer, 512)
    # While a thread works, this clock runs away.
    await asyncio.sleep(2 * 3600)
    assert made.counts.sent == 512
    await made.close()
    burst(tracer, 600)
