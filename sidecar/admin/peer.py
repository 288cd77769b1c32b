"""Who is at the other end of the admin socket (SO_PEERCRED, unix(7)).

A peer of the sidecar's own uid, or root, is an operator, unless it descends from the sidecar:
stdio servers and coding agents run as our children and must never reach this API.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

_UCRED = struct.Struct("3i")
_MAX_ANCESTRY = 1024


@dataclass(frozen=True, slots=True)
class Operator:
    """An accepted peer, recorded as ``uid:NAME``."""

    name: str


class Stranger(Exception):
    """The peer may not use the socket; the text says why."""


def parent_of(pid: int) -> int | None:
    """The parent's pid, or ``None`` when the process cannot be seen (proc_pid_stat(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return None
    # The command name may hold spaces and parentheses; the fields start after the last one.
    fields = text.rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def descends(
    pid: int, ancestors: frozenset[int], parent: Callable[[int], int | None] = parent_of
) -> bool:
    """Whether ``pid`` is one of ``ancestors`` or below one. What cannot be seen counts as below."""
    for _ in range(_MAX_ANCESTRY):
        if pid in ancestors:
            return True
        if pid == 1:
            return False
        above = parent(pid)
        if above is None or above < 0:
            return True
        if above == 0:
            return False
        pid = above
    return True


def identify(peer: socket.socket, own: frozenset[int]) -> Operator:
    """The operator behind a unix socket.

    ``own`` are the pids whose descendants are refused: the worker's, and its supervisor's.

    Raises:
        Stranger: another uid, a process of another pid namespace, or a descendant.
    """
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(raw)
    if uid not in (0, os.getuid()):
        raise Stranger(f"uid {uid} is not the sidecar's; run this as the user that runs sidecar")
    if pid <= 0:
        raise Stranger("the peer's process is in another pid namespace and cannot be checked")
    if descends(pid, own):
        raise Stranger("processes started by the sidecar may not use the admin API")
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Operator(f"uid:{name}")
