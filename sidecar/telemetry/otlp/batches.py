"""A bounded queue of records that one task encodes and sends, out of the way of what it tells of.

``put`` never waits and never fails. When the receiver is slower than what happens, or gone, the
oldest records are lost and counted. Encoding takes turns with everything else on the loop: a
slice at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from sidecar.telemetry.environ import milliseconds, whole
from sidecar.telemetry.otlp.http import OtlpHttp, Sent

log = logging.getLogger("sidecar.telemetry")

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

SLICE: Final = 32
"""Records that are encoded in one turn of the loop: a fraction of a millisecond."""
FIRST_PAUSE: Final = 1.0
"""Seconds before a batch is sent again, doubled each time."""
CLOSE_LIMIT: Final = 5.0
"""Seconds that closing takes at most, while the receiver answers."""
CLOSE_SILENCE: Final = 2.0
"""Seconds that closing waits for a receiver that says nothing."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``queue`` records wait at most; ``batch`` are sent at once, or what there is after
    ``delay`` seconds; ``timeout`` is seconds for one batch, tries again included."""

    queue: int = 2048
    batch: int = 512
    delay: float = 5.0
    timeout: float = 10.0

    @classmethod
    def of(cls, prefix: str, environ: Mapping[str, str], timeout: float) -> BatchLimits:
        """By ``OTEL_BSP_*`` or ``OTEL_BLRP_*``; their ``EXPORT_TIMEOUT`` bounds ``timeout``."""
        default = cls()
        queue = whole(f"{prefix}_MAX_QUEUE_SIZE", environ, default.queue, least=1)
        batch = whole(f"{prefix}_MAX_EXPORT_BATCH_SIZE", environ, default.batch, least=1)
        delay = milliseconds(f"{prefix}_SCHEDULE_DELAY", environ, default.delay)
        most = milliseconds(f"{prefix}_EXPORT_TIMEOUT", environ, 30.0, least=1)
        return cls(queue, min(batch, queue), max(delay, 0.01), min(timeout, most))


class Encoder(Protocol[T_contra]):
    """Of one signal, into OTLP."""

    def record(self, item: T_contra) -> bytes:
        """One record's message."""
        ...

    def request(self, records: Sequence[bytes]) -> bytes:
        """The whole request."""
        ...


class Batch(Protocol[T_contra]):
    """What is made of some records and sent as one."""

    def add(self, item: T_contra) -> None:
        """One more record: this is where it is encoded."""
        ...

    async def send(self, timeout: float) -> Sent:
        """Send all of it, within so many seconds. May be asked again."""
        ...


class OtlpBatch(Generic[T]):
    """A batch for a receiver of OTLP."""

    __slots__ = ("_body", "_encoder", "_http", "_records")

    def __init__(self, encoder: Encoder[T], http: OtlpHttp) -> None:
        self._encoder = encoder
        self._http = http
        self._records: list[bytes] = []
        self._body: bytes | None = None

    def add(self, item: T) -> None:
        self._records.append(self._encoder.record(item))

    async def send(self, timeout: float) -> Sent:
        if self._body is None:
            self._body = self._encoder.request(self._records)
        return await self._http.send(self._body, timeout)


@dataclass(slots=True)
class Counts:
    """Of records, since the start. ``dropped`` found the queue full, ``failed`` were given up
    because the receiver did not take them."""

    sent: int = 0
    dropped: int = 0
    failed: int = 0


class Batches(Generic[T]):
    """``start`` inside a running loop; then ``put`` from any thread; ``close`` once at the end."""

    def __init__(
        self,
        what: str,
        begin: Callable[[], Batch[T]],
        limits: BatchLimits,
        *,
        where: str,
    ) -> None:
        """``what`` is told to people (``spans``), and ``where`` they go; ``begin`` makes an
        empty batch."""
        self.what = what
        self.where = where
        self.counts = Counts()
        self._begin = begin
        self._limits = limits
        self._queue: deque[T] = deque(maxlen=limits.queue)
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._failing = False
        self._why = ""
        self._heard = 0.0
        self._woken = False

    def __len__(self) -> int:
        """Records that wait."""
        return len(self._queue)

    def lost(self) -> int:
        """Records that will never arrive."""
        return self.counts.dropped + self.counts.failed

    def start(self) -> None:
        """Begin to send."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name=f"exporter of {self.what}")

    def put(self, item: T) -> None:
        """Never waits. With a full queue the oldest record is lost."""
        queue = self._queue
        waiting = len(queue)
        if waiting == self._limits.queue:
            self.counts.dropped += 1
        queue.append(item)
        if waiting + 1 >= self._limits.batch and not self._woken and self._loop is not None:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:
                # Another thread is late: the loop has ended.
                self._loop = None

    async def close(self) -> None:
        """Send what waits, as long as the receiver takes it; bounded. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        loop = asyncio.get_running_loop()
        self._closing = True
        self._heard = began = loop.time()
        self._wake.set()
        while not task.done():
            end = min(self._heard + CLOSE_SILENCE, began + CLOSE_LIMIT)
            if loop.time() >= end:
                self._why = self._why or "it does not answer in time"
                break
            await asyncio.wait([task], timeout=end - loop.time())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        lost = len(self._queue)
        self._queue.clear()
        if lost:
            self.counts.dropped += lost
        if self.counts.dropped or self.counts.failed:
            gone = self.counts.dropped + self.counts.failed
            why = f": {self._why}" if self._why else ""
            log.warning("%d %s were lost on the way to %s%s", gone, self.what, self.where, why)

    # ------------------------------------------------------------------------------- the task

    async def _run(self) -> None:
        while True:
            await self._due()
            # A batch that is not full waits for its time, unless it is time or the end.
            while self._queue:
                await self._batch()
                if len(self._queue) < self._limits.batch and not self._closing:
                    break
            if self._closing and not self._queue:
                return

    async def _due(self) -> None:
        self._woken = False
        self._wake.clear()
        if self._closing or len(self._queue) >= self._limits.batch:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.delay):
                await self._wake.wait()

    async def _batch(self) -> None:
        count, most = 0, self._limits.batch
        try:
            batch = self._begin()
            while self._queue and count < most:
                for _ in range(min(SLICE, most - count, len(self._queue))):
                    count += 1
                    batch.add(self._queue.popleft())
                await asyncio.sleep(0)
            sent = await self._deliver(batch)
        except asyncio.CancelledError:
            self.counts.failed += count
            raise
        except Exception as error:
            # One record that cannot be encoded must not end the export of all others.
            if not self._failing:
                log.exception("exporting %s failed", self.what)
            sent = Sent(f"the exporter failed ({type(error).__name__})")
        self._tell(sent, count)

    async def _deliver(self, batch: Batch[T]) -> Sent:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limits.timeout
        pause = FIRST_PAUSE
        while True:
            sent = await batch.send(end - loop.time())
            self._why = sent.why
            if not sent.again:
                self._heard = loop.time()
                return sent
            wait = pause * random.uniform(0.8, 1.2) if sent.after is None else sent.after
            pause *= 2
            if self._closing or loop.time() + wait >= end:
                return sent
            # Closing ends the wait, and the batch gets one more try.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while not self._closing:
                        self._wake.clear()
                        await self._wake.wait()

    def _tell(self, sent: Sent, count: int) -> None:
        if sent.why:
            self.counts.failed += count
            if not self._failing:
                self._failing = True
                log.warning("%s cannot be exported to %s: %s", self.what, self.where, sent.why)
            if self._closing:
                self.counts.dropped += len(self._queue)
                self._queue.clear()
            return
        self.counts.sent += count - sent.rejected
        self.counts.failed += sent.rejected
        if sent.rejected:
            log.warning("%s took the request, but not %d %s", self.where, sent.rejected, self.what)
        if self._failing:
            self._failing = False
            lost = self.counts.dropped + self.counts.failed
            log.info("%s are exported again; %d were lost so far", self.what, lost)
