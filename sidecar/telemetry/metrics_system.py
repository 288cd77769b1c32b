"""The process itself: what it uses, how long the loop keeps others waiting, what it is."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import time
from typing import Final

from sidecar import __version__
from sidecar.semconv import Label, Metric
from sidecar.telemetry.metrics import SHORT, Registry, single

EVERY: Final = 0.25
"""Seconds between two looks at the loop."""
_PAGE: Final = os.sysconf("SC_PAGESIZE")


class Lag:
    """How late the loop is: what everybody else waits for."""

    def __init__(self, registry: Registry) -> None:
        self._late = registry.histogram(
            Metric.LAG, "s", "How late the event loop did what was due.", bounds=SHORT
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="event loop lag")

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            due = time.perf_counter() + EVERY
            await asyncio.sleep(EVERY)
            self._late.record((), max(time.perf_counter() - due, 0.0))


def observe(registry: Registry) -> None:
    """The gauges and counters of the process."""
    began = time.monotonic()
    version = (__version__, platform.python_version())
    registry.gauge(
        Metric.BUILD,
        "1",
        "What runs: always 1.",
        (Label.VERSION, Label.PYTHON),
        ask=lambda: [(version, 1)],
    )
    registry.counted(Metric.CPU, "s", "CPU time of this process.", ask=lambda: single(_cpu()))
    registry.gauge(Metric.MEMORY, "By", "Resident memory.", ask=lambda: single(_resident()))
    registry.gauge(
        Metric.FILES, "{file_descriptor}", "Open file descriptors.", ask=lambda: single(_files())
    )
    registry.gauge(
        Metric.UPTIME,
        "s",
        "How long this process has run.",
        ask=lambda: single(time.monotonic() - began),
    )


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _resident() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        # No /proc: the most that it ever was, in KiB.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
