"""The functions that policies may call, by room; ``STANDARD`` has them all by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from sidecar.policy.cel.functions import (
    conversions,
    encoders,
    format,
    glob,
    maths,
    net,
    optionals,
    regex,
    strings,
    time,
    url,
)
from sidecar.policy.cel.functions.registry import Functions, table

_TABLE: Final = table(
    function
    for room in (
        conversions,
        encoders,
        format,
        glob,
        maths,
        net,
        optionals,
        regex,
        strings,
        time,
        url,
    )
    for function in room.FUNCTIONS
)
STANDARD: Final[Functions] = MappingProxyType(_TABLE)
"""CEL's standard functions, its strings, math, encoders, sets, optionals and network
extensions, and ``glob``."""
