"""Small work that has to be done also when whoever began it is gone; with an owner all the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sidecar.parking.book import Missing
from sidecar.parking.machine import WrongState
from sidecar.ports.store import StoreError

log = logging.getLogger("sidecar.parking")

T = TypeVar("T")
FAREWELL = 3.0
"""Seconds that what is under way gets at ``close``."""


class Chores:
    """Each is bounded by the store's patience; ``close`` waits for what is left."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def finish(self, work: Coroutine[Any, Any, T], undo: Callable[[T], object]) -> T:
        """The result of ``work``, which is done to its end. When whoever waits for it is
        cancelled meanwhile, ``undo`` is called with the result."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: _undo(done, undo))
            raise

    def start(self, what: str, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Do it; its failure is a line in the log."""
        return self._start(_logged(what, work))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for what is under way, and end what takes too long. Idempotent."""
        end = asyncio.get_running_loop().time() + FAREWELL
        # What is undone may begin one more.
        while self._tasks and (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(tuple(self._tasks), timeout=left)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _undo(task: asyncio.Task[T], undo: Callable[[T], object]) -> None:
    if not task.cancelled() and task.exception() is None:
        undo(task.result())


async def _logged(what: str, work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except (Missing, WrongState) as error:
        # Another node, or time, was faster: then it is done.
        log.debug("%s: %s", what, error)
    except StoreError as error:
        log.warning("%s: %s", what, error)
