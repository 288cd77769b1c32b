"""How much memory there is for us, and the bounds that fit into it where nobody set others.

A container that goes over its limit is killed with every call that runs; one that refuses the
call too many, or the result too large, loses that one.

Sources: cgroups(7), the kernel's cgroup-v2 (``memory.max``) and cgroup-v1 (``memory.txt``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.config.types import Limits

MIB: Final = 1 << 20
AT_REST: Final = 96 * MIB
"""What a sidecar with its supervisor holds before the first call, with room to spare."""
LARGEST: Final = 12
"""A result may have this part of what is left: four of the largest at once, each of which is in
memory three times while it is checked and written."""
EACH: Final = 256 << 10
"""What a running request is reckoned to hold."""
LEAST_RESULT: Final = 256 << 10
LEAST_REQUESTS: Final = 32
_UNLIMITED: Final = 1 << 60
"""Version 1 says that there is no limit with a number near 2⁶³."""


def limit(root: Path = Path("/")) -> int | None:
    """The bytes that our cgroup, or one around it, may use; ``None`` without a limit.

    ``root`` is where ``proc`` and ``sys`` are.
    """
    found = [
        value
        for file in _files(root)
        if (value := _number(file)) is not None and 0 < value < _UNLIMITED
    ]
    return min(found, default=None)


def _files(root: Path) -> Iterator[Path]:
    """Where a limit may stand, of either version, from the innermost group outwards."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        lines = []
    base = root / "sys/fs/cgroup"
    # In a cgroup namespace of its own, a container sees its own group at the top.
    yield base / "memory.max"
    yield base / "memory/memory.limit_in_bytes"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top, name = base, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = base / "memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue  # It is outside of what this namespace shows.
        for depth in range(len(parts), 0, -1):
            yield top.joinpath(*parts[:depth]) / name


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def fitted(limits: Limits, memory: int | None) -> Limits:
    """``limits`` with smaller defaults where ``memory`` bytes are all there is.

    What the operator set stays as it is, and no default grows.
    """
    if memory is None:
        return limits
    left = max(memory - AT_REST, memory // 4)
    largest = max(LEAST_RESULT, left // LARGEST)

    def fit(name: str, most: int) -> int:
        now: int = getattr(limits, name)
        return now if name in limits.given else min(now, most)

    return dataclasses.replace(
        limits,
        body=fit("body", largest),
        result=fit("result", largest),
        event=fit("event", largest),
        line=fit("line", largest),
        in_flight=fit("in_flight", max(LEAST_REQUESTS, left // EACH)),
    )


def told(limits: Limits, memory: int) -> str:
    """One line for the operator: the limit, and what it means."""
    return (
        f"memory is limited to {memory // MIB} MiB: at most {limits.in_flight} requests at once "
        f"(limits.in_flight), results of {_size(limits.result)} (limits.result) and bodies of "
        f"{_size(limits.body)} (limits.body)"
    )


def _size(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size >> 10} KiB"
