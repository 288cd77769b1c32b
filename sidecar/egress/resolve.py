"""The system's resolver, off the event loop, with a short memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sidecar.ports.resolver import Unresolved

TIMEOUT: Final = 8.0
"""Seconds that a look-up gets; less than what a connection gets as a whole."""
KEEP: Final = 10.0
"""Seconds that an answer is used again: connections that are made together ask once."""
THREADS: Final = 8
"""Look-ups at once. They have threads of their own: slow DNS must not keep others waiting."""
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
        self._threads: ThreadPoolExecutor | None = None
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
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, host: str) -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="look-up")
        try:
            async with asyncio.timeout(self._timeout):
                found = tuple(await loop.run_in_executor(self._threads, self._look, host))
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise Unresolved("the host name cannot be resolved")
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[host] = (loop.time() + self._keep, found)
        return found
