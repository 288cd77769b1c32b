"""What runs need of the account of trust labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sidecar.model import Caller

__all__ = ["Labels"]


class Labels(Protocol):
    """The gate's own: see ``sidecar.gate.ledger.Ledger``."""

    def of(self, caller: Caller) -> tuple[str, ...]:
        """What a caller has gathered."""
        ...

    async def add(self, caller: Caller, labels: Iterable[str], call: str, target: str) -> bool:
        """One gathers more. ``False``: that cannot be kept."""
        ...
