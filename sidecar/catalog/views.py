"""Which part of the catalog somebody sees, and under which names."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.catalog.names import matches
from sidecar.model import Caller


@dataclass(frozen=True, slots=True)
class View:
    """Servers by globs; or, with ``server``, that one alone (when the globs allow it) with the
    names that it gave its own tools and prompts."""

    globs: tuple[str, ...] = ("*",)
    server: str | None = None

    @classmethod
    def of(cls, caller: Caller) -> View:
        """What this caller sees."""
        return cls(caller.principal.servers, caller.server)

    def sees(self, server: str) -> bool:
        """Whether the server is part of the view."""
        if self.server is not None and self.server != server:
            return False
        return matches(self.globs, server)


EVERYTHING = View()
