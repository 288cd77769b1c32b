"""What the kernel says about processes, and how a whole tree of them is ended.

The supervisor lives on this module alone, so it imports nothing heavy. Everything here is
synchronous and takes milliseconds. Outside Linux there is no ``/proc`` and no ``prctl``: the
tables are empty, the switches do nothing, and only process groups are ended.

Sources: proc(5) ``/proc/pid/stat``, prctl(2).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

LINUX = sys.platform == "linux"

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_FREEZE_ROUNDS = 200
"""A tree that still forks faster than it is stopped after this many looks is killed as it is."""

closing = False
"""Everything is being ended from another thread: start nothing more."""

claimed: set[int] = set()
"""Children somebody of ours waits for: ``reap_adopted`` leaves them alone."""


class Process:
    """One line of the process table.

    ``started`` is in clock ticks since boot: with ``pid`` it names a process for good, which a
    pid alone does not.
    """

    __slots__ = ("parent", "pid", "session", "started", "state")

    def __init__(self, pid: int, state: str, parent: int, session: int, started: int) -> None:
        self.pid = pid
        self.state = state
        self.parent = parent
        self.session = session
        self.started = started

    @property
    def dead(self) -> bool:
        """Whether it is a zombie: over, and only waiting for its parent to notice."""
        return self.state in ("Z", "X")


Table = dict[int, Process]


def read(pid: int) -> Process | None:
    """The process, or ``None`` when there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(fd, 2048)
    except OSError:
        return None
    finally:
        os.close(fd)
    # The name is in parentheses and may itself contain any of them.
    fields = line[line.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


_last: tuple[float, Table] = (0.0, {})


def table(since: float | None = None) -> Table:
    """Every process we may see. About 12 µs a process.

    With ``since`` (``time.monotonic``) a table that was read after it will do: a hundred
    children that end at once look at the same few.
    """
    global _last  # noqa: PLW0603
    if since is None or _last[0] < since:
        now = time.monotonic()
        _last = (now, _newcomers({}))
    return _last[1]


def _newcomers(known: Table) -> Table:
    """A table for which only processes not in ``known`` were looked at: ten times faster."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    result: Table = {}
    for name in names:
        if name.isdigit():
            pid = int(name)
            process = known.get(pid) or read(pid)
            if process is not None:
                result[pid] = process
    return result


def descendants(pid: int) -> list[int]:
    """The living descendants of ``pid``, without itself, parents before their children."""
    return _descendants(pid, table())


def _descendants(pid: int, now: Table) -> list[int]:
    by_parent: dict[int, list[Process]] = {}
    for process in now.values():
        by_parent.setdefault(process.parent, []).append(process)
    found: list[int] = []
    queue = [pid]
    for parent in queue:
        for process in by_parent.get(parent, ()):
            queue.append(process.pid)
            if not process.dead:
                found.append(process.pid)
    return found


class Tree:
    """A process and everything that came out of it, also what no longer descends from it.

    A process whose parent died hangs below somebody else. It still belongs to the tree when it
    was seen in it before, or when it is in the session of a member: nobody can join a session
    from outside. Only a daemon that left its session between two looks is lost.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        root_process = read(root)
        self._known: dict[int, int] = {} if root_process is None else {root: root_process.started}

    def living(self, since: float | None = None) -> list[int]:
        """Look again (see ``table``): the members that live, the root among them."""
        return self.members(table(since))

    def members(self, now: Table) -> list[int]:
        """The members that live according to a table; which they were is remembered."""
        members = {
            pid
            for pid, started in self._known.items()
            if pid in now and now[pid].started == started
        }
        # A zombie still pins its session's number, so it is used before the dead are dropped.
        foreign = {os.getsid(0), 0}
        sessions = {now[pid].session for pid in members} - foreign
        grew = True
        while grew:
            grew = False
            for pid, process in now.items():
                if pid not in members and (
                    process.parent in members or process.session in sessions
                ):
                    members.add(pid)
                    sessions.add(process.session)
                    grew = True
            sessions -= foreign
        members.discard(os.getpid())
        self._known = {pid: now[pid].started for pid in members}
        return [pid for pid in members if not now[pid].dead]

    def reap(self) -> None:
        """Collect members that became our children when their parent died (see subreaper)."""
        for pid in list(self._known):
            if pid not in claimed:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)


class Below(Tree):
    """Everything below a process, that one and ourselves excluded.

    When it is a subreaper nothing can leave it.
    """

    def members(self, now: Table) -> list[int]:
        us = os.getpid()
        return [pid for pid in _descendants(self.root, now) if pid != us]


def send(pids: list[int], number: int) -> None:
    """Send a signal to each; those that are gone or not ours are passed over."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def terminate(pids: list[int]) -> None:
    """Ask each to end, the stopped ones too."""
    send(pids, signal.SIGTERM)
    send(pids, signal.SIGCONT)


def kill(tree: Tree) -> int:
    """Kill the whole tree and return how many were alive.

    First everything is stopped, looking again until nothing new turns up: a stopped process
    forks no more, so none can slip away between the look and the kill.
    """
    stopped: set[int] = set()
    now: Table = {}
    quiet = 0
    for _ in range(_FREEZE_ROUNDS):
        now = _newcomers(now)
        new = [pid for pid in tree.members(now) if pid not in stopped]
        # Twice: in the middle of a look one may exit unseen and leave another behind it.
        quiet = 0 if new else quiet + 1
        if quiet == 2:
            break
        send(new, signal.SIGSTOP)
        stopped.update(new)
    send(list(stopped), signal.SIGKILL)
    return len(stopped)


# ---------------------------------------------------------------------------------- prctl


def _prctl(option: int, value: int) -> bool:
    if not LINUX:
        return False
    try:
        # Not at the top: half of a small supervisor's memory, and only needed once.
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).prctl
        return bool(call(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def subreap() -> bool:
    """Make orphans below this process its children, so that none leaves the tree.

    Whoever calls this has to reap them (``reap_adopted``).
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide() -> bool:
    """Forbid other processes of the same user to read this one's memory or environment.

    PR_SET_DUMPABLE 0. Inherited by fork, ended by exec. ``/proc/self`` then belongs to root:
    without root, files of mode 0400 there (``environ``, ``mem``) cannot be opened even by the
    process itself, no core is dumped, and debuggers and samplers need CAP_SYS_PTRACE.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


_unclaimed: set[tuple[int, int]] = set()


def reap_adopted() -> list[int]:
    """Collect orphans that died in our care; their pids. Call it now and then.

    A dead child that somebody of ours started looks the same, so only those are taken that
    nobody has claimed and that were found dead at the previous call as well.
    """
    global _unclaimed  # noqa: PLW0603
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return []
    except OSError:
        return []
    us = os.getpid()
    dead = {
        (process.pid, process.started)
        for process in table().values()
        if process.parent == us and process.dead and process.pid not in claimed
    }
    taken = [pid for pid, started in dead & _unclaimed]
    for pid in taken:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
    _unclaimed = dead
    return taken
