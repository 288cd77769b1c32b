"""The revisions of MCP and which era each belongs to."""

from __future__ import annotations

from typing import Final

from sidecar.model import Era

LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that open with ``initialize``, oldest first."""

LATEST_LEGACY: Final = LEGACY_VERSIONS[-1]

ASSUMED_LEGACY: Final = "2025-03-26"
"""What a request without ``MCP-Protocol-Version`` speaks (2025-06-18, transports)."""

MODERN_VERSION: Final = "2026-07-28"

MODERN_VERSIONS: Final = (MODERN_VERSION,)
"""Stateless revisions that we serve: what an error -32022 lists as supported."""


def era_of_header(value: str | None) -> Era:
    """The era that a request's ``MCP-Protocol-Version`` puts it in.

    Absent or one of the legacy revisions means legacy. Anything else, also a revision that
    nobody knows, gets the modern checks, which end in -32022 and the list of what is supported.
    """
    if value is None or value in LEGACY_VERSIONS:
        return Era.LEGACY
    return Era.MODERN


def negotiate(requested: object) -> str:
    """The revision that answers ``initialize``: the requested one if we speak it, else our latest.

    A client that cannot speak the counter-offer disconnects (2025-11-25, lifecycle).
    """
    if isinstance(requested, str) and requested in LEGACY_VERSIONS:
        return requested
    return LATEST_LEGACY
