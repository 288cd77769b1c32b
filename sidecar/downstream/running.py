"""Requests that are being answered: one task each, and why it ended when something ended it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import NamedTuple

from sidecar.downstream.auth import Grant
from sidecar.mcp import errors
from sidecar.model import CLIENT_CANCELLED, RequestId, RpcError
from sidecar.wire import jsonrpc


class Answer(NamedTuple):
    """An answer as it goes out: a whole JSON-RPC message, and its error's code (0 for none)."""

    body: bytes
    code: int = 0


class Running:
    """One request being answered.

    Its task never raises but for being cancelled: whatever goes wrong is an ``Answer``. It is
    owned by its ``Crowd`` from ``start`` until it is done.
    """

    __slots__ = ("_calls", "_crowd", "_id", "cancelled", "error", "grant", "status", "task")

    task: asyncio.Task[Answer]

    def __init__(
        self, crowd: Crowd, grant: Grant, id: RequestId | None, calls: InFlight | None = None
    ) -> None:
        """``calls`` are the client's unanswered requests, where it can cancel them by id.

        Raises:
            Rejection: -32600, one of them has the same id.
        """
        self._crowd = crowd
        self._calls = calls
        self._id = id
        self.grant = grant
        self.cancelled = False
        self.error: RpcError | None = None
        self.status: int | None = None
        if calls is not None and id is not None:
            calls.claim(id, self)

    def start(self, work: Coroutine[object, object, Answer]) -> None:
        """Run it."""
        self.task = asyncio.create_task(work)
        self._crowd.add(self)
        self.task.add_done_callback(self._finished)

    def cancel(self) -> None:
        """The client wants it no longer: it ends, and no answer is owed."""
        self.cancelled = True
        self.task.cancel(CLIENT_CANCELLED)

    def end(self, error: RpcError, status: int | None = None) -> None:
        """We end it: ``error`` is its answer, unless it has one already.

        ``status`` is the HTTP status of that answer, ``None`` for the error's own.
        """
        if not self.task.done() and self.error is None:
            self.error = error
            self.status = status
            self.task.cancel()

    def answer(self) -> Answer | None:
        """What to tell the client, once the task is done; ``None`` when no answer is owed."""
        if self.cancelled:
            return None
        if not self.task.cancelled():
            return self.task.result()
        error = self.error or errors.internal("the request was ended")
        return Answer(jsonrpc.error(self._id, error), error.code)

    def tick(self, now: float) -> None:
        """Called every few seconds while it runs."""

    def finished(self) -> None:
        """Called once it is done."""

    def _finished(self, _: asyncio.Task[Answer]) -> None:
        self._crowd.remove(self)
        if self._calls is not None and self._id is not None:
            self._calls.release(self._id)
        self.finished()


class InFlight:
    """One client's unanswered requests by their ids. An idle one costs next to nothing."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[RequestId, Running] | None = None

    def __len__(self) -> int:
        return len(self._by_id) if self._by_id else 0

    def __iter__(self) -> Iterator[Running]:
        return iter(tuple(self._by_id.values()) if self._by_id else ())

    def claim(self, id: RequestId, running: Running) -> None:
        """Take the id for a request that is about to run."""
        if self._by_id is None:
            self._by_id = {}
        if id in self._by_id:
            raise errors.invalid_request(
                "another request of this session with the same id is still unanswered", id=id
            )
        self._by_id[id] = running

    def release(self, id: RequestId) -> None:
        """The request is done."""
        if self._by_id is not None:
            self._by_id.pop(id, None)
            if not self._by_id:
                self._by_id = None

    def cancel(self, id: object) -> bool:
        """Cancel by the client's id; whether there was such a request."""
        if not self._by_id or isinstance(id, bool) or not isinstance(id, (int, str)):
            return False
        running = self._by_id.get(id)
        if running is None:
            return False
        running.cancel()
        return True


class Crowd:
    """Everything that runs for any client, bounded, and ended together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._running: set[Running] = set()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Running]:
        return iter(tuple(self._running))

    @property
    def full(self) -> bool:
        return len(self._running) >= self.most

    def add(self, running: Running) -> None:
        self._running.add(running)

    def remove(self, running: Running) -> None:
        self._running.discard(running)

    async def wait(self, timeout: float) -> None:
        """Return when nothing runs any more, or after ``timeout`` seconds."""
        tasks = [running.task for running in self._running]
        if tasks and timeout > 0:
            await asyncio.wait(tasks, timeout=timeout)

    async def end(self, error: RpcError, timeout: float) -> None:
        """End everything with ``error`` and wait until it is over, at most ``timeout``."""
        for running in self:
            running.end(error)
        await self.wait(timeout)
