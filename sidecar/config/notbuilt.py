"""Keys of the design whose features this version lacks: one row each, in one table."""

from __future__ import annotations

from sidecar.config.record import NotBuilt

NOT_BUILT: dict[str, NotBuilt] = {
    "auth.jwt": NotBuilt("JWT tokens"),
}
"""A later feature takes its row out and adds its field below. Only values that change nothing
are let through: what would promise protection (``auth: {jwt: …}``) is refused."""


def rows(where: str) -> dict[str, NotBuilt]:
    """The keys below ``where`` (empty for the root), by their last part."""
    found: dict[str, NotBuilt] = {}
    for path, row in NOT_BUILT.items():
        parent, _, key = path.rpartition(".")
        if parent == where and ": " not in key:
            found[key] = row
    return found
