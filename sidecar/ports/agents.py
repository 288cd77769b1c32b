"""Coding agents' runs, as the gateway and the admin API see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sidecar.model import Call, Caller, Fields, JsonObject, Principal
from sidecar.ports.upstream import Upstream


class AgentUpstream(Upstream, Protocol):
    """A harness: an upstream with one tool, whose calls are runs that outlive their requests."""

    def about(self, params: JsonObject, caller: Caller) -> JsonObject:
        """What policies may know of a call before it is decided: the variable ``work``."""
        ...

    def joins(self, call: Call, caller: Caller) -> bool:
        """Whether the call would begin nothing: it waits for the same run, or has its answer."""
        ...

    async def run(self, call: Call, caller: Caller) -> Fields:
        """The result of a call that was admitted. Its ``_meta`` holds keys of ours.

        Cancelling the awaiting task leaves the run; what becomes of it then is the run's to
        know. Raises as ``Upstream.request``.
        """
        ...


class AgentRuns(Protocol):
    """The works that exist and what their agents are doing."""

    async def works(self) -> Sequence[JsonObject]:
        """Every work: its harness, checkout, principal, name, branch, path and state."""
        ...

    async def sweep(self, *, dry_run: bool = False) -> JsonObject:
        """Remove the worktrees whose work has landed; ``{removed: […], kept: […]}``."""
        ...


class NoSession(Exception):
    """An editor cannot have that session. The text says why, and what to do.

    ``missing``: there is none of that id.
    """

    def __init__(self, why: str, *, missing: bool = False) -> None:
        super().__init__(why)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class EditorSession:
    """A work, as the session of an editor.

    ``id`` names it among the works of its harness and principal. ``folder`` is the checkout's,
    ``path`` the worktree in which the agent works, ``branch`` without ``refs/heads/``.
    ``there``: it has been made. ``ended`` is when its last task did, in seconds since the epoch,
    0 where none has. ``episodes`` are its last tasks, each with what the agent said at its end,
    shortened.
    """

    id: str
    checkout: str
    folder: str
    work: str
    path: str
    branch: str
    there: bool
    ended: float = 0.0
    episodes: tuple[tuple[str, str], ...] = ()


class EditorSessions(Protocol):
    """Which works editors may have: those of the principal that asks, in checkouts that it may
    use. ``cwd`` is the folder that the editor has open: it lies in the checkout, or in a worktree
    of a work."""

    async def begin(self, harness: str, principal: Principal, cwd: str) -> EditorSession:
        """A new work, which is made by its first task; in the worktree of a work, that one.

        Raises NoSession: the folder lies in no checkout.
        """
        ...

    async def find(
        self, harness: str, principal: Principal, cwd: str, session: str
    ) -> EditorSession:
        """An earlier one. Raises NoSession."""
        ...

    async def listing(
        self, harness: str, principal: Principal, cwd: str | None
    ) -> Sequence[EditorSession]:
        """All of them, or those of the folder's checkout, the latest first. Raises NoSession."""
        ...
