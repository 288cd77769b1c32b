"""How long to wait before a server is tried again. No clock in here: callers pass durations."""

from __future__ import annotations

import random
from collections.abc import Callable

HEALTHY = 10.0
"""Seconds a leg must have been up for its failures to be forgotten: a flapping server is not."""


class Backoff:
    """Exponential with full jitter: ``uniform(floor, min(cap, base · 2ⁿ))`` seconds.

    The first wait is short, so that a server that was only restarted is back at once.
    """

    def __init__(
        self,
        base: float = 0.5,
        cap: float = 60.0,
        *,
        floor: float = 0.05,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._base = base
        self._cap = cap
        self._floor = floor
        self._uniform = uniform
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures in a row so far."""
        return self._failures

    def failed(self) -> float:
        """Count a failure; the seconds to wait before the next attempt."""
        # 2**n is not computed for an n that only the cap can answer.
        top = min(self._cap, self._base * 2 ** min(self._failures, 32))
        self._failures += 1
        return self._uniform(min(self._floor, top), top)

    def ran(self, seconds: float) -> None:
        """A run of this length has ended; a healthy one wipes the slate."""
        if seconds >= HEALTHY:
            self._failures = 0
