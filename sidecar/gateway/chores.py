"""Small work that nobody waits for, with an owner all the same."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from sidecar.model import RpcError, Unavailable

log = logging.getLogger("sidecar.gateway")

LONGEST = 30.0
_MOST = 10_000


class Chores:
    """Tasks that end by themselves, after ``LONGEST`` seconds at the latest, or at ``close``."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, what: str, work: Coroutine[Any, Any, object]) -> asyncio.Task[None] | None:
        """Run ``work``; its failure is a line in the log. ``None`` when too much is under way."""
        if len(self._tasks) >= _MOST:
            work.close()
            log.warning("%s was skipped: %d such things are under way", what, _MOST)
            return None
        task = asyncio.get_running_loop().create_task(_run(what, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel what is left and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _run(what: str, work: Coroutine[Any, Any, object]) -> None:
    try:
        async with asyncio.timeout(LONGEST):
            await work
    except TimeoutError:
        log.warning("%s took more than %.0f s and was given up", what, LONGEST)
    except (Unavailable, RpcError) as failure:
        # A server that is down or refuses is ordinary, and its leg has said so already.
        log.debug("%s failed: %s", what, failure)
    except Exception:
        log.exception("%s failed", what)
