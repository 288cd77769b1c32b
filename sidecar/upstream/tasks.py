"""Tasks with an owner: bounded in number, awaited at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger("sidecar.upstream")


class Tasks:
    """Small jobs that outlive the call that started them (a cancellation, an answer).

    ``spawn`` refuses when ``limit`` of them are running or the owner is ending; refusing is
    always safe, since none of these jobs carries anybody's answer.
    """

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._running: set[asyncio.Task[None]] = set()
        self._ended = False

    def spawn(self, job: Coroutine[object, object, None], *, name: str) -> bool:
        """Run the job; whether it was taken."""
        if self._ended or len(self._running) >= self._limit:
            job.close()
            return False
        task = asyncio.create_task(job, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return True

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("the job %s failed", task.get_name(), exc_info=fault)

    async def end(self, grace: float) -> None:
        """Take no more jobs, give the running ones ``grace`` seconds, cancel the rest."""
        self._ended = True
        if self._running:
            await asyncio.wait(self._running, timeout=grace)
        await cancelled(*self._running)


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancel the tasks and return when all of them have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
