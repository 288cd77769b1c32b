"""The small parent: whatever way the worker ends, nothing it started outlives it.

``supervise`` forks the worker before anything heavy is imported. The parent forwards signals,
reaps (it may be PID 1), and when the worker is gone ends every descendant and exits with the
worker's status. The worker in turn notices when the parent is killed and does the same.

Both are subreapers: an orphan below them becomes their child, so that no daemon leaves the tree.

Sources: prctl(2), pid_namespaces(7), sigaction(2) for ``si_code``.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import signal
import time

from sidecar import descriptors, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GRACE = 1.0
"""Seconds that what the worker left behind has between SIGTERM and SIGKILL."""
ORPHAN_GRACE = 0.5
"""The same, when it is the parent that was killed."""
SECOND_INTERRUPT = 0.5
"""Seconds: an interrupt this long after the first is a second one, not its echo."""
IMPATIENT = 1.5
"""Seconds the worker has left after a second interrupt."""

_KILL_WAIT = 2.0
_TICK = 0.02
_REAP_EVERY = 5.0

_FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_WANTED = {*_FORWARDED, signal.SIGCHLD}
_SI_KERNEL = 0x80
"""``si_code`` of a signal that a terminal sends, to its whole foreground group."""


def supervise() -> int | None:
    """Fork. ``None`` in the worker, which goes on; in the parent its exit status at the end.

    A worker ended by signal n gives 128 + n, one that ignored two interrupts 130. Call it
    before any thread is started.
    """
    processes.hide()
    processes.subreap()
    # Explicitly ignored it would reap children before we hear of them.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # `nohup` asks to live on when the terminal goes away.
    nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WANTED)
    _have_stdio()
    ours, theirs = os.pipe()
    try:
        worker = os.fork()
    except OSError as error:
        os.write(2, f"sidecar: cannot start a process: {error.strerror}\n".encode())
        return 1
    if worker == 0:
        os.close(theirs)
        # PID 1 of a container gets nothing that it has no handler for; its child does.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask - _WANTED)
        if not _be_the_worker():
            os._exit(1)
        processes.subreap()
        descriptors.take()
        install_orphan_guard(ours)
        return None
    os.close(ours)
    _let_go_of_stdio()
    status = _Parent(worker, nohup=nohup).run()
    os.close(theirs)
    return status


def _be_the_worker() -> bool:
    """Become another user where SIDECAR_USER says so; whether that went well."""
    wanted = os.environ.get("SIDECAR_USER")
    if not wanted:
        return True
    # Not before: whoever is not told to be somebody else needs none of it.
    from sidecar import privileges

    try:
        uid, gid = privileges.worker_of(wanted)
        if os.geteuid() != uid:
            privileges.become(uid, gid)
            # What changes its user can be read again by others of that user.
            processes.hide()
        return True
    except privileges.PrivilegeError as error:
        os.write(2, f"sidecar: {error}\n".encode())
        return False


def _have_stdio() -> None:
    """Started with a closed stdin, say, the next file opened would become it."""
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)


def _let_go_of_stdio() -> None:
    """The worker alone reads and writes them: with it they end. stderr stays for one line."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)


class _Parent:
    def __init__(self, worker: int, *, nohup: bool) -> None:
        self._worker = worker
        self._nohup = nohup
        self._status: int | None = None
        self._interrupted: float | None = None
        self._deadline: float | None = None
        self._hurry = False
        self._gave_up = False

    def run(self) -> int:
        self._reap()
        while self._status is None:
            self._take(self._deadline)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._deadline = None
                self._gave_up = True
                processes.send([self._worker], signal.SIGKILL)
        left = len(processes.descendants(os.getpid()))
        self._report(left)
        if left:
            end_descendants(GRACE, wait=self._wait)
        if self._gave_up:
            return 128 + signal.SIGINT
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _take(self, until: float | None) -> None:
        """Wait for a signal and act on it."""
        if until is None:
            got = signal.sigwaitinfo(_WANTED)
        else:
            timed = signal.sigtimedwait(_WANTED, max(0.0, until - time.monotonic()))
            if timed is None:
                return
            got = timed
        if got.si_signo == signal.SIGCHLD:
            self._reap()
        else:
            self._forward(got)

    def _forward(self, got: signal.struct_siginfo) -> None:
        number = got.si_signo
        terminal = got.si_code == _SI_KERNEL
        if number == signal.SIGINT:
            now = time.monotonic()
            if self._interrupted is None:
                self._interrupted = now
            elif now - self._interrupted >= SECOND_INTERRUPT:
                self._hurry = True
                if self._deadline is None:
                    self._deadline = now + IMPATIENT
        if self._status is not None:
            self._hurry = self._hurry or number in (signal.SIGTERM, signal.SIGINT)
        elif number == signal.SIGHUP and terminal:
            # Its terminal is gone. To the worker a hangup means "reload"; this means "end".
            if not self._nohup:
                processes.send([self._worker], signal.SIGTERM)
        elif not terminal:
            # What a terminal sends has reached the worker already.
            processes.send([self._worker], number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._worker:
                    self._status = status

    def _wait(self, seconds: float) -> bool:
        """Reap for so long; whether somebody lost patience."""
        self._take(time.monotonic() + seconds)
        self._reap()
        return self._hurry

    def _report(self, left: int) -> None:
        assert self._status is not None
        if not os.WIFSIGNALED(self._status) or os.WTERMSIG(self._status) in _FORWARDED:
            return
        name = signal.Signals(os.WTERMSIG(self._status)).name
        also = f"; ending {left} processes it left" if left else ""
        with contextlib.suppress(OSError):
            os.write(2, f"sidecar: the worker was ended by {name}{also}\n".encode())


def end_descendants(grace: float, *, wait: Callable[[float], bool]) -> None:
    """End everything below this process: SIGTERM, ``grace`` seconds, SIGKILL; bounded.

    ``wait(seconds)`` reaps what has died and says whether to skip the rest of the grace.
    """
    below = processes.Below(os.getpid())
    _ask(below, grace, wait)
    _kill(below, wait)


def _ask(below: processes.Below, grace: float, wait: Callable[[float], bool]) -> None:
    processes.terminate(below.living())
    until = time.monotonic() + grace
    while below.living() and time.monotonic() < until:
        if wait(_TICK):
            break


def _kill(below: processes.Below, wait: Callable[[float], bool]) -> None:
    until = time.monotonic() + _KILL_WAIT
    while processes.kill(below) and time.monotonic() < until:
        wait(_TICK)


# ------------------------------------------------------------------------------- the worker


def install_orphan_guard(pipe: int) -> None:
    """Watch the parent from a thread of its own: its death closes the other end of ``pipe``.

    The thread needs neither the event loop nor the main thread, only the interpreter now and
    then, so a loop that is blocked does not keep it from ending the tree. It also reaps orphans
    that died in the worker's care. ``supervise`` calls this.
    """
    # Signals are the main thread's. The guard inherits this: were it to block them itself, it
    # could take one before it gets to run, and a main thread that sleeps would not wake for it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(_guard, (pipe,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _guard(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while not poll.poll(_REAP_EVERY * 1000):
        processes.reap_adopted()
    processes.closing = True
    try:
        with contextlib.suppress(OSError):
            os.write(2, b"sidecar: the supervisor was killed; ending everything\n")
        _ask(processes.Below(os.getpid()), ORPHAN_GRACE, _sleep)
        _kill_all_and_us()
    finally:
        os._exit(128 + signal.SIGKILL)


def _kill_all_and_us() -> None:
    """The main thread may still start processes, so somebody else has to stop it first.

    A fork that runs nothing but this: it stops the worker, kills what is below it, and the
    worker last, when nothing can slip away any more.
    """
    worker = os.getpid()
    below = processes.Below(worker)
    try:
        killer = os.fork()
    except OSError:  # no process to be had: the best that can be done from inside
        _kill(below, _sleep)
        return
    if killer == 0:
        try:
            os.kill(worker, signal.SIGSTOP)
            _kill(below, _sleep)
            os.kill(worker, signal.SIGKILL)
        finally:
            os._exit(0)
    time.sleep(2 * _KILL_WAIT)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
