"""How much memory a tree of processes has for itself."""

from __future__ import annotations

import os
from collections.abc import Iterable

_PAGE = os.sysconf("SC_PAGE_SIZE")


def private(pids: Iterable[int]) -> int:
    """Bytes that these processes hold alone: resident, less what is shared with files and
    others. Processes that are gone count nothing. Source: proc(5), ``/proc/pid/statm``."""
    pages = 0
    for pid in pids:
        try:
            fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fields = os.read(fd, 256).split()
        except OSError:
            continue
        finally:
            os.close(fd)
        if len(fields) > 2:
            pages += max(0, int(fields[1]) - int(fields[2]))
    return pages * _PAGE
