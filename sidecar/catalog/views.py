"""Which part of the catalog somebody sees, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sidecar.catalog.names import matches
from sidecar.model import Caller


@dataclass(frozen=True, slots=True)
class View:
    """Servers by globs; or, with ``server``, that one alone (when the globs allow it) with the
    names that it gave its own tools and prompts. ``harnesses`` are globs over coding agents,
    which have the same name space and rights of their own."""

    globs: tuple[str, ...] = ("*",)
    server: str | None = None
    harnesses: tuple[str, ...] = ("*",)

    @classmethod
    def of(cls, caller: Caller) -> View:
        """What this caller sees."""
        principal = caller.principal
        return cls(principal.servers, caller.server, principal.harnesses)

    def sees(self, server: str, *, harness: bool = False) -> bool:
        """Whether the server, or the harness, is part of the view."""
        if self.server is not None and self.server != server:
            return False
        return _matches(self.harnesses if harness else self.globs, server)


_matches = lru_cache(maxsize=4096)(matches)
"""Asked at every call, of servers that are there: a look-up is a tenth of matching."""

EVERYTHING = View()
