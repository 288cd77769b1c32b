"""What is remembered of each work's runs: the agent's session, and how the last one ended.

One file a work beside its record, so that the next call goes on where the last one ended,
whatever ended it: the agent's own end, a crash, or a sidecar that was killed in the middle.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sidecar.harness.naming import WorkKey, WorkName
from sidecar.harness.records import write_durably

__all__ = ["Episode", "Memories", "Memory"]

log = logging.getLogger(__name__)

_LARGEST = 8 << 20
"""Bytes of one memory. An answer that would make it larger is not kept."""
_EPISODES = 5
_TASK, _MESSAGE = 4_000, 8_000
"""Characters of what is kept of a task, and of its answer, to tell the next session."""
KEPT_FOR = 86400.0
"""Seconds for which an answer waits for whoever asked."""


class Episode(msgspec.Struct, frozen=True):
    """One task and what became of it, shortened."""

    task: str
    last_message: str
    stop_reason: str


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One work's.

    ``claim`` and ``call`` are those of its last run, ``running`` while that is not over:
    found so at start, it was interrupted. ``answer`` is the JSON of its result, where nobody
    has had it yet. ``session`` is the agent's own; empty for none that can be taken up.
    ``unfinished``: it did not come to the agent's own end. ``ended`` is in seconds since the
    epoch.
    """

    name: WorkName
    claim: str
    call: str
    running: bool
    session: str = ""
    profile: str = ""
    unfinished: bool = False
    answer: str = ""
    ended: float = 0.0
    episodes: tuple[Episode, ...] = ()

    def with_episode(self, task: str, last_message: str, stop_reason: str) -> Memory:
        """With one more thing that happened; the oldest of many go."""
        message = last_message
        if len(message) > _MESSAGE:
            message = "…" + message[-_MESSAGE:]
        episode = Episode(task[:_TASK], message, stop_reason)
        kept = (*self.episodes, episode)[-_EPISODES:]
        return msgspec.structs.replace(self, episodes=kept)


_decoder = msgspec.json.Decoder(Memory)


class Memories:
    """The memories in one directory. Every method blocks, and may be called in any thread; a write
    is durable when it returns."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The answer of one run is handed over while the next one of the same work begins.
        self._writing = threading.RLock()

    def get(self, key: WorkKey) -> Memory | None:
        """``None`` for none, and for one that is damaged."""
        return self._read(self._path(key))

    def put(self, memory: Memory) -> None:
        path = self._path(memory.name.key)
        data = msgspec.json.encode(memory)
        if len(data) > _LARGEST:
            data = msgspec.json.encode(msgspec.structs.replace(memory, answer=""))
        with self._writing:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, data)

    def handed_over(self, key: WorkKey, call: str) -> None:
        """The answer of this call was given: nobody else is to have it."""
        with self._writing:
            memory = self.get(key)
            if memory is not None and memory.call == call and memory.answer:
                self.put(msgspec.structs.replace(memory, answer=""))

    def delete(self, key: WorkKey) -> None:
        path = self._path(key)
        with self._writing:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            with contextlib.suppress(OSError):
                for parent in list(path.parents)[:3]:
                    parent.rmdir()

    def all(self) -> Iterator[Memory]:
        """Every memory that can be read."""
        for path in sorted(self._directory.glob("*/*/*/*.json")):
            memory = self._read(path)
            if memory is not None and self._path(memory.name.key) == path:
                yield memory

    def _path(self, key: WorkKey) -> Path:
        return self._directory.joinpath(*key.parts[:3], f"{key.work}.json")

    def _read(self, path: Path) -> Memory | None:
        try:
            with path.open("rb") as file:
                memory = _decoder.decode(file.read(_LARGEST + 1))
            # Names that can have no slug were written by nobody here.
            _ = memory.name.key
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError):
            log.warning("what was remembered in %s is damaged; its next run begins anew", path)
            return None
        return memory
