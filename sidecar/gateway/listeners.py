"""Who is told of changes, and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from sidecar.model import JsonObject

# A notification's method and params. Never blocks.
Callback: TypeAlias = Callable[[str, JsonObject], None]


class Listening(Protocol):
    """One listener, from ``Gateway.listen`` until ``stop``."""

    async def watch(self, uris: Iterable[str]) -> list[str]:
        """Also tell of updates of these resources, for as long as this listener lives.

        For ``subscriptions/listen`` of the stateless era; each URI passes the gate like any
        call. Returns those that are watched now; one that leads nowhere, is denied, or whose
        server cannot watch resources is left out.
        """
        ...

    def stop(self) -> None:
        """Tell nothing any more. Idempotent, never waits."""
        ...
