"""How many examples a property is tried with."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("SIDECAR_EXAMPLES", "1"))
"""``make test-long`` sets it."""


def examples(number: int) -> int:
    """``number`` in ``make test``, many more in ``make test-long``."""
    return number * FACTOR
