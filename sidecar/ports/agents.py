"""Coding agents' runs, as the gateway and the admin API see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sidecar.model import JsonObject


class AgentRuns(Protocol):
    """The works that exist and what their agents are doing."""

    def works(self) -> Sequence[JsonObject]:
        """Every work: its harness, checkout, principal, name, branch, path and state."""
        ...

    async def sweep(self, *, dry_run: bool = False) -> JsonObject:
        """Remove the worktrees whose work has landed; ``{removed: […], kept: […]}``."""
        ...
