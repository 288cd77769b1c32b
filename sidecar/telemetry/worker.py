"""One thread for work that may block, which keeps no process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

T = TypeVar("T")
_Job: TypeAlias = Callable[[], None]


class Worker:
    """Does one thing after another. The thread is a daemon: a disk or a pipe that hangs holds it
    up, and nobody else at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have it done; the future has what ``work`` returns or raises. Inside a running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            value: T | None = None
            error: Exception | None = None
            try:
                value = work()
            except Exception as failure:  # noqa: BLE001  it belongs to whoever asked
                error = failure
            with contextlib.suppress(RuntimeError):
                # The loop may have ended meanwhile.
                loop.call_soon_threadsafe(settle, value, error)

        def settle(value: T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)  # type: ignore[arg-type]

        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return future

    def end(self) -> None:
        """The thread ends when it has done what it was given. Idempotent."""
        if self._thread is not None:
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
