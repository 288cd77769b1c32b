"""Coding agents' runs, as the gateway and the admin API see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sidecar.model import Call, Caller, Fields, JsonObject
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
