"""The process of a coding agent: its pipes, its memory, its end, and that of all it started."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sidecar.children import Child, spawn
from sidecar.harness import process_memory
from sidecar.harness.agent_errors import Epitaph

_CHUNK = 256 << 10
_FULL = 4 << 20
"""Bytes that may wait for an agent that does not read."""
_LAST_WORDS = 1.0
"""Seconds to read what it wrote before it exited."""
_FRESH = 1.0
"""Seconds: how old a look at the process table may be."""
_SECRET = 6
"""Variables shorter than this are no secrets that could be found again in a text."""
_SAID = 4_000
"""Characters of its last words in a log."""


class Process:
    """Started by ``start``; ``stop`` ends it and everything that came out of it.

    ``heard`` is called with each piece of its stdout, in order; ``ended`` once, after the last
    one, unless ``stop`` came first. Neither may block.
    """

    def __init__(
        self,
        child: Child,
        env: Mapping[str, str],
        heard: Callable[[bytes], None],
        ended: Callable[[Epitaph], None],
        secrets: Iterable[str] = (),
    ) -> None:
        self.pid = child.pid
        self._child = child
        self._born = time.monotonic()
        self._secrets = _secrets((*env.values(), *secrets))
        self._heard = heard
        self._ended = ended
        self._stopping = False
        self._reader = asyncio.create_task(self._read(), name=f"{child.name}: stdout")

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        heard: Callable[[bytes], None],
        ended: Callable[[Epitaph], None],
        secrets: Iterable[str] = (),
    ) -> Process:
        """In a session and process group of its own. ``secrets`` it is told in another way than
        by ``env``. Raises SpawnError."""
        child = await spawn(
            command, env=env, cwd=cwd, name=name, called="coding agent", adopts=True
        )
        return cls(child, env, heard, ended, secrets)

    def write(self, data: bytes) -> bool:
        """Hand it over; false when so much waits already that it surely does not read."""
        stdin = self._child.stdin
        with contextlib.suppress(OSError, RuntimeError):
            if stdin.transport.get_write_buffer_size() > _FULL:
                return False
            if data and not stdin.is_closing():  # one that is gone is told by `ended`
                stdin.write(data)
        return True

    def memory(self) -> int:
        """Bytes that it and everything below it hold for themselves. What is seen here is also
        ended with it, whatever becomes of it."""
        # Many that are looked at share a look; but one from before it was born lacks it.
        since = max(self._born, time.monotonic() - _FRESH)
        return process_memory.private(self._child.members(since))

    def tail(self) -> str:
        """The end of its stderr, without the values of its environment. It may hold other
        secrets: for a person at a terminal of theirs, and never for a log but as
        ``last_words``."""
        text = self._child.tail()
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def last_words(self) -> str:
        """``tail`` as one line of at most ``_SAID`` characters, for the log of somebody who has
        asked for everything. What could be the rest of a secret that was cut is not in it."""
        text = self.tail()
        if text.startswith("…"):
            text = text[1 + max(map(len, self._secrets), default=0) :]
        shown = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode()
            for each in text.strip()[-_SAID:]
        )
        return shown[-_SAID:]

    async def stop(self, grace: float) -> None:
        """End it, and all of it. Never longer than twice ``grace`` and two seconds. Idempotent."""
        self._stopping = True
        try:
            # Its stdout is read to the end: a process that still writes must be able to.
            await self._child.end(grace)
        finally:
            self._reader.cancel()
            await asyncio.wait({self._reader})

    # -------------------------------------------------------------------------------- inside

    async def _read(self) -> None:
        """Until stdout ends. One that a grandchild holds open ends with the process."""
        pump = asyncio.create_task(self._pump(), name=f"{self._child.name}: pump")
        exited = asyncio.create_task(self._child.wait(), name=f"{self._child.name}: exit")
        try:
            await asyncio.wait({pump, exited}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({pump, exited}, timeout=_LAST_WORDS)
        finally:
            pump.cancel()
            exited.cancel()
            await asyncio.wait({pump, exited})
        if not self._stopping:
            self._ended(Epitaph.of(self._child.returncode, self._child.tail()))

    async def _pump(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._child.stdout.read(_CHUNK):
                self._heard(data)
                # A reader with data at hand does not wait: others would never come to run.
                await asyncio.sleep(0)


def _secrets(values: Iterable[str]) -> list[str]:
    """What is not to be shown, the longest first; of a key of many lines each line, too."""
    found = {part for value in values for part in (value, *value.splitlines())}
    return sorted((part for part in found if len(part) >= _SECRET), key=len, reverse=True)
