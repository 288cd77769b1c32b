"""The forward proxy, as those who start programs see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sidecar.config import ServerConfig


class NoProxy(Exception):
    """There is no proxy to use; the text says what to do."""


class Grant(Protocol):
    """One program's access to the proxy."""

    @property
    def env(self) -> Mapping[str, str]:
        """The variables that tell the program of it. They hold a secret."""
        ...

    def revoke(self) -> None:
        """End the access, and what still runs on it. Idempotent."""
        ...


class ChildProxy(Protocol):
    """Lets a program use the proxy, with a credential of its own."""

    def grant(self, config: ServerConfig) -> Grant:
        """Access for one process of a server.

        Raises:
            NoProxy: the proxy does not listen.
        """
        ...
