"""Works as the sessions of editors: which folder means which checkout, which id which work.

An id says the checkout and the work, never the principal: that is whoever asks, so that there
is no id by which one could name the work of another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sidecar.catalog.names import matches, shown
from sidecar.harness.naming import WorkName, new_work
from sidecar.harness.run_memory import Memories
from sidecar.harness.works import Work, Works
from sidecar.harness.worktree import PRIVATE
from sidecar.model import Principal
from sidecar.ports.agents import EditorSession, NoSession

__all__ = ["Editors"]

MOST_LISTED: Final = 100
_LONGEST: Final = 4096


class Editors:
    """Implements ``ports.agents.EditorSessions``. ``checkouts`` are their folders by name,
    ``root`` is that of the works, which are open."""

    def __init__(self, works: Works, root: Path, checkouts: Mapping[str, Path]) -> None:
        self._works = works
        self._root = root
        self._memories = Memories(root / PRIVATE / "sessions")
        self.checkouts = dict(checkouts)

    async def begin(self, harness: str, principal: Principal, cwd: str) -> EditorSession:
        """See the port."""
        checkout, work = await self._where(harness, principal, cwd)
        if work is not None:
            return await self._known(work)
        return self._session(WorkName(harness, checkout, principal.name, new_work()))

    async def find(
        self, harness: str, principal: Principal, cwd: str, session: str
    ) -> EditorSession:
        """See the port."""
        here, _ = await self._where(harness, principal, cwd)
        checkout, _, name = session.partition("/")
        wanted = WorkName(harness, checkout, principal.name, name)
        for work in await self._mine(harness, principal):
            if work.name != wanted:
                continue
            if checkout != here:
                raise NoSession(
                    f"session {shown(session)} is one of checkout {checkout}; open that: "
                    f"{self.checkouts[checkout]}"
                )
            return await self._known(work)
        raise NoSession(f"there is no session {shown(session)} here", missing=True)

    async def listing(
        self, harness: str, principal: Principal, cwd: str | None
    ) -> Sequence[EditorSession]:
        """See the port."""
        found = await self._mine(harness, principal)
        if cwd is not None:
            here, _ = await self._where(harness, principal, cwd)
            found = [work for work in found if work.name is not None and work.name.checkout == here]
        found.sort(key=lambda work: work.created, reverse=True)
        sessions = [await self._known(work) for work in found[:MOST_LISTED]]
        return sorted(sessions, key=lambda session: session.ended, reverse=True)

    # ------------------------------------------------------------------------------- inside

    async def _where(self, harness: str, principal: Principal, cwd: str) -> tuple[str, Work | None]:
        """The checkout that a folder belongs to, and the work whose worktree it is in, if any.
        Raises NoSession."""
        if not cwd.startswith("/") or len(cwd) > _LONGEST:
            raise NoSession("cwd has to be an absolute path")
        folder = await asyncio.to_thread(_real, cwd)
        mine = {
            name: await asyncio.to_thread(_real, str(path))
            for name, path in self.checkouts.items()
            if matches(principal.checkouts, name)
        }
        if folder is not None:
            for work in await self._mine(harness, principal):
                if work.name is not None and folder.is_relative_to(work.path):
                    return work.name.checkout, work
            # A checkout within another is the one that is meant.
            around = [
                (len(path.parts), name)
                for name, path in mine.items()
                if path is not None and folder.is_relative_to(path)
            ]
            if around:
                return max(around)[1], None
        there = ", ".join(f"{name} ({path})" for name, path in mine.items()) or "none"
        raise NoSession(
            f"{shown(cwd)} lies in no checkout that you may use; open one, or add it to "
            f"`checkouts` in sidecar.yaml. There are: {there}"
        )

    async def _mine(self, harness: str, principal: Principal) -> list[Work]:
        """The principal's works with this harness, in checkouts that it may use."""
        return [
            work
            for work in await self._works.works()
            if work.name is not None
            and (work.name.harness, work.name.principal) == (harness, principal.name)
            and work.name.checkout in self.checkouts
            and matches(principal.checkouts, work.name.checkout)
        ]

    async def _known(self, work: Work) -> EditorSession:
        assert work.name is not None
        session = self._session(work.name)
        memory = await asyncio.to_thread(self._memories.get, work.key)
        if memory is None:
            return replace(session, there=True)
        told = tuple((each.task, each.last_message) for each in memory.episodes)
        return replace(session, there=True, ended=memory.ended, episodes=told)

    def _session(self, name: WorkName) -> EditorSession:
        """One of which nothing is known but its name."""
        key = name.key
        return EditorSession(
            f"{name.checkout}/{name.work}",
            name.checkout,
            str(self.checkouts[name.checkout]),
            name.work,
            str(self._root.joinpath(*key.parts)),
            key.branch.removeprefix("refs/heads/"),
            there=False,
        )


def _real(path: str) -> Path | None:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        # Nothing that the system would take lies anywhere.
        return None
