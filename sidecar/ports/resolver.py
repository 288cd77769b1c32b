"""How names become addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Unresolved(Exception):
    """A name has no address, or nobody answered in time."""


class Resolver(Protocol):
    """Asks for the addresses of a name. What it answers is what is checked, and dialled."""

    async def addresses(self, host: str) -> Sequence[str]:
        """Every IPv4 and IPv6 address of ``host``, in the order in which to try them.

        A trailing dot makes a name absolute: no search domain completes it.

        Raises:
            Unresolved: no answer, or an empty one.
        """
        ...
