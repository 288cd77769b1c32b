"""One warning per kind of fault, however often a server commits it."""

from __future__ import annotations

import logging

log = logging.getLogger("sidecar.upstream")


class Complaints:
    """Warnings about one server. Each kind is told once until ``forgive``, so that a server
    that speaks garbage cannot fill the log. Texts never hold what a server sent."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._told: set[str] = set()

    def warn(self, kind: str, text: str) -> None:
        """Warn with the server's name, unless this kind was told already."""
        if kind in self._told:
            log.debug("server %s: %s", self._server, text)
            return
        self._told.add(kind)
        log.warning("server %s: %s", self._server, text)

    def forgive(self, kind: str) -> bool:
        """The fault is gone: tell it again if it comes back. Whether it was told."""
        told = kind in self._told
        self._told.discard(kind)
        return told
