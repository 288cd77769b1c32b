"""Looking at processes through /proc: descendants, and whether they are gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent of a process, or ``None`` when there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything; what follows the last one is regular.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1])


def alive(pid: int) -> bool:
    """Runs, or at least could: a zombie is not alive."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def parents() -> dict[int, int]:
    """Every live process with its parent."""
    found = {}
    for entry in os.listdir(PROC):
        if entry.isdigit() and (stat := _stat(int(entry))) and stat[0] not in "ZX":
            found[int(entry)] = stat[1]
    return found


def descendants(pid: int) -> list[int]:
    """All live processes below one, itself excluded."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def status(pid: int) -> dict[str, str]:
    """The fields of ``/proc/PID/status``; empty when the process is gone."""
    try:
        text = (PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def command_line(pid: int) -> str:
    """Empty when the process is gone."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def marked(marker: str) -> list[int]:
    """Live processes whose command line holds ``marker``, ourselves excluded."""
    return [pid for pid in parents() if pid != os.getpid() and marker in command_line(pid)]


def left_of(pids: Iterable[int], within: float = 20.0) -> list[int]:
    """Those of ``pids`` that still live ``within`` seconds from now; empty as soon as none does."""
    end = time.monotonic() + within
    left = [pid for pid in pids if alive(pid)]
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = [pid for pid in left if alive(pid)]
    return left


def memory(pids: Iterable[int]) -> int:
    """Proportional set size of some processes, in bytes."""
    total = 0
    for pid in pids:
        try:
            rollup = (PROC / str(pid) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        for line in rollup.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that some processes and their reaped children have used so far."""
    ticks = 0
    for pid in pids:
        try:
            text = (PROC / str(pid) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = text[text.rindex(")") + 2 :].split()
        ticks += sum(int(value) for value in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")
