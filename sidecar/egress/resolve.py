"""The system's resolver, off the event loop, with a short memory."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from sidecar.ports.resolver import Unresolved

log = logging.getLogger("sidecar.egress")

TIMEOUT: Final = 8.0
"""Seconds that a look-up gets; less than what a connection gets as a whole."""
KEEP: Final = 10.0
"""Seconds that an answer is used again: connections that are made together ask once."""
THREADS: Final = 8
"""Look-ups at once, those that hang included. They have threads of their own, which slow DNS
holds up instead of anybody else's, and which do not hold up the end of the process."""
MOST_KEPT: Final = 1000

LookUp = Callable[[str], Sequence[str]]


def look_up(host: str) -> list[str]:
    """``getaddrinfo``: DNS, the hosts file, and whatever else the system is set up to ask.

    Raises:
        OSError, UnicodeError: there is no answer, or no such name can be asked for.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    # A zone belongs to a link-local address: it is kept, so that the address is refused.
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class SystemResolver:
    """A ``Resolver``. ``close`` when nothing dials any more."""

    def __init__(
        self, look: LookUp = look_up, *, timeout: float = TIMEOUT, keep: float = KEEP
    ) -> None:
        """``look`` runs in a thread. Times are in seconds."""
        self._look = look
        self._timeout = timeout
        self._keep = keep
        self._slots = asyncio.Semaphore(THREADS)
        self._kept: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._asking: dict[str, asyncio.Task[tuple[str, ...]]] = {}

    async def addresses(self, host: str) -> Sequence[str]:
        """See :class:`sidecar.ports.resolver.Resolver`."""
        now = asyncio.get_running_loop().time()
        kept = self._kept.get(host)
        if kept is not None and kept[0] > now:
            return kept[1]
        task = self._asking.get(host)
        if task is None:
            task = asyncio.create_task(self._ask(host), name="look-up of a name")
            self._asking[host] = task
            task.add_done_callback(lambda _: self._asking.pop(host, None))
        # Whoever stops waiting does not stop the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Give up what is still asked. Idempotent."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, host: str) -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        found: tuple[str, ...] = ()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._slots.acquire()
                found = await self._in_thread(loop, host)
        if not found:
            raise Unresolved("the host name cannot be resolved")
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[host] = (loop.time() + self._keep, found)
        return found

    def _in_thread(
        self, loop: asyncio.AbstractEventLoop, host: str
    ) -> asyncio.Future[tuple[str, ...]]:
        """A look-up in a thread of its own; nothing where it failed."""
        answer: asyncio.Future[tuple[str, ...]] = loop.create_future()

        def done(found: tuple[str, ...]) -> None:
            self._slots.release()
            if not answer.done():
                answer.set_result(found)

        def work() -> None:
            found: tuple[str, ...] = ()
            try:
                found = tuple(self._look(host))
            except (OSError, UnicodeError):
                pass  # There is no such name, or nobody answers.
            except Exception:
                log.exception("a look-up failed")
            with suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(done, found)

        threading.Thread(target=work, name="look-up", daemon=True).start()
        return answer
