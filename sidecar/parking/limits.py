"""How often a principal may make people look. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.config import Rate

MOST: Final = 10_000
"""Principals of which something is remembered."""


class Buckets:
    """A bucket of tokens for each principal; a full one is the same as none."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        """``clock`` is in seconds, and never goes back."""
        self._rate = rate
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}

    def reconfigure(self, rate: Rate) -> None:
        """Another rate, from full buckets on."""
        if rate != self._rate:
            self._rate = rate
            self._levels.clear()

    def take(self, principal: str) -> bool:
        """Take a token, if there is one."""
        now, level = self._clock(), self._level(principal)
        if level < 1:
            return False
        if principal not in self._levels and len(self._levels) >= MOST:
            self._forget()
        self._levels[principal] = (level - 1, now)
        return True

    def give_back(self, principal: str) -> None:
        """It was not used after all."""
        if principal in self._levels:
            self._levels[principal] = (self._level(principal) + 1, self._clock())

    def _level(self, principal: str) -> float:
        level, at = self._levels.get(principal, (float(self._rate.count), 0.0))
        refilled = (self._clock() - at) * self._rate.count / self._rate.seconds
        return min(level + refilled, float(self._rate.count))

    def _forget(self) -> None:
        """Those that are full again; if there is none, the one that was asked longest ago."""
        for principal in [p for p in self._levels if self._level(p) >= self._rate.count]:
            del self._levels[principal]
        if len(self._levels) >= MOST:
            del self._levels[min(self._levels, key=lambda p: self._levels[p][1])]
