"""Whose user a process is, and what it may do beyond that.

A sidecar that runs its children as another user needs a few capabilities to do so. It holds
them without being root, and lends them to a program for the moment in which that is started:
what a program inherits otherwise is nothing.

Linux only; everything here is of the calling thread, as capabilities are. Used by the
supervisor, so nothing heavy is imported at the top.

Sources: capabilities(7), capget(2), prctl(2), setresuid(2).
"""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SETPCAP = 0, 1, 3, 5, 6, 7, 8
NAMES = {
    CHOWN: "CHOWN",
    DAC_OVERRIDE: "DAC_OVERRIDE",
    FOWNER: "FOWNER",
    KILL: "KILL",
    SETGID: "SETGID",
    SETUID: "SETUID",
    SETPCAP: "SETPCAP",
}
SWITCH = (SETUID, SETGID, KILL)
"""What starting, and ending, a child of another user takes."""
FILES = (CHOWN, FOWNER, DAC_OVERRIDE)
"""What working on files that belong to another user takes."""
HELD = (*SWITCH, SETPCAP, *FILES)
"""All that a worker keeps when the supervisor makes it another user."""
WORKER = "SIDECAR_USER"
"""The variable by which a supervisor that starts as root is told who the worker is."""

_KEEPCAPS, _AMBIENT, _RAISE, _CLEAR = 8, 47, 2, 4
_VERSION_3 = 0x20080522


class PrivilegeError(Exception):
    """A user or a capability cannot be had. Says what to do."""


def effective() -> int:
    """The effective capabilities of this thread, as a mask; none outside Linux."""
    return _mask("CapEff")


def _mask(field: str) -> int:
    try:
        with open("/proc/thread-self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                name, _, value = line.partition(":")
                if name == field:
                    return int(value, 16)
    except OSError:
        pass
    return 0


def has(*capabilities: int) -> bool:
    """Whether this thread has all of these in effect."""
    mask = effective()
    return all(mask >> each & 1 for each in capabilities)


def missing(capabilities: Iterable[int]) -> list[str]:
    """The names of those that are not in effect."""
    mask = effective()
    return [NAMES[each] for each in capabilities if not mask >> each & 1]


def worker_of(value: str) -> tuple[int, int]:
    """``UID`` or ``UID:GID``; the gid is the uid's own number when it is not said.

    Raises PrivilegeError.
    """
    uid, colon, gid = value.partition(":")
    numbers = [uid, gid if colon else uid]
    if not all(each.isascii() and each.isdigit() and 0 < int(each) < 1 << 32 for each in numbers):
        raise PrivilegeError(f"{WORKER} is UID or UID:GID in numbers, and not 0")
    return int(numbers[0]), int(numbers[1])


def become(uid: int, gid: int) -> None:
    """Be this user from now on, with what of ``HELD`` there is, in effect. Before any thread.

    Raises PrivilegeError.
    """
    kept = effective() & _bits(HELD)
    try:
        _prctl(_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _set(kept, kept, 0)
    except OSError as error:
        raise PrivilegeError(
            f"{WORKER}: the worker cannot become uid {uid}: {error.strerror}; start as root with "
            "the capabilities SETUID and SETGID"
        ) from None


def forgo() -> None:
    """Give up for good what ``become`` kept, in this thread and those it starts. What somebody
    else gave us is no business of ours."""
    if os.environ.get(WORKER) and sys.platform == "linux" and os.geteuid() != 0:
        kept = _mask("CapPrm") & ~_bits(HELD)
        _set(kept & effective(), kept, 0)


@contextlib.contextmanager
def lent(capabilities: Iterable[int]) -> Iterator[None]:
    """A program that this thread starts meanwhile has what of these there is.

    Root lends everything by being root. Nothing may be awaited meanwhile.
    """
    bits = _bits(capabilities) & effective() if sys.platform == "linux" and os.geteuid() else 0
    if not bits:
        yield
        return
    held = effective()
    _set(held, held, bits)
    try:
        for number in range(bits.bit_length()):
            if bits >> number & 1:
                _prctl(_AMBIENT, _RAISE, number)
        yield
    finally:
        _prctl(_AMBIENT, _CLEAR)
        _set(held, held, 0)


def _bits(capabilities: Iterable[int]) -> int:
    return sum(1 << each for each in capabilities)


def _set(effective: int, permitted: int, inheritable: int) -> None:
    import ctypes

    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = [effective, permitted, inheritable]
    low = [each & 0xFFFFFFFF for each in words]
    high = [each >> 32 for each in words]
    data = (ctypes.c_uint32 * 6)(*low, *high)
    if ctypes.CDLL(None, use_errno=True).capset(header, data) != 0:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))


def _prctl(option: int, second: int, third: int = 0) -> None:
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).prctl
    if call(option, *[ctypes.c_ulong(each) for each in (second, third, 0, 0)]) != 0:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
