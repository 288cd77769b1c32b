"""Decisions about dials in the log, for a person."""

from __future__ import annotations

import logging
from typing import Final

from sidecar.model import Decision
from sidecar.policy.lines import beside

log = logging.getLogger("sidecar.egress")

MOST: Final = 1024
"""Decisions that are remembered, so that a connection that is made again and again is told once."""


class Lines:
    """What was denied to a client of the forward proxy, what audited rules would decide, and
    rules that failed. Other denials reach whoever asked: they are answered to who adds a server,
    and the state of the one that cannot be dialled."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, ...], None] = {}

    def tell(self, reason: str, target: str, who: str, decision: Decision) -> None:
        """``target`` is an origin, empty for what cannot be read: nothing of it is a secret."""
        where = target or "an address that cannot be read"
        if reason == "proxy":
            if decision.decision != "allow":
                log.info("connect to %s for %s: denied by %s", where, who, decision.rule)
        elif not self._new(reason, target, who, decision):
            return
        beside(log, f"connect to {where} for {who}", decision)

    def _new(self, reason: str, target: str, who: str, decision: Decision) -> bool:
        if decision.mode != "audit" and decision.error is None:
            return False
        told = (reason, target, who, decision.revision, decision.rule, decision.would_rule or "")
        if told in self._told:
            return False
        if len(self._told) >= MOST:
            del self._told[next(iter(self._told))]
        self._told[told] = None
        return True
