"""When a failed attempt is made again, and how long after."""

from __future__ import annotations

import random

from sidecar.config import Retry
from sidecar.model import Unavailable

LONGEST = 2.0
"""Seconds: a server that says it will be back later than this is not waited for."""


def pause(
    failure: Unavailable,
    attempt: int,
    retry: Retry,
    *,
    repeatable: bool,
    now: float,
    deadline: float | None,
) -> float | None:
    """Seconds to wait before the next attempt; ``None``: the failure is the answer.

    ``attempt`` is the number of the one that failed, from 1. ``repeatable``: what is asked for
    is read-only or idempotent; anything else is sent again only if it surely did not run.
    """
    if failure.permanent or attempt >= retry.attempts:
        return None
    if not repeatable and failure.ran != "no":
        return None
    # Half of it at least, so that it is a pause; a random rest, so that callers spread.
    wait: float = retry.base * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
    if failure.retry_in is not None:
        wait = max(wait, failure.retry_in)
    if wait > LONGEST:
        return None
    if deadline is not None and now + wait >= deadline:
        return None
    return wait
