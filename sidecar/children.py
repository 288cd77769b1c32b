"""Child processes: stdio servers and coding agents. Children are treated as hostile.

A child gets six variables of our environment and what its configuration says, nothing else; a
session and process group of its own; no descriptor but its three pipes. It is ended as a whole
tree, grandchildren in sessions of their own included.

What it writes on stderr is kept in a bounded ring, so it never blocks on it.

With ``users.run_as`` every child is another user's: without capabilities, supplementary groups or a
way to new privileges, and with that user's HOME.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from sidecar import descriptors, processes, users
from sidecar.privileges import PrivilegeError
from sidecar.processes import descendants

__all__ = ["INHERITED", "Child", "SpawnError", "descendants", "environment_of", "spawn"]

log = logging.getLogger(__name__)

INHERITED = ("PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR")
"""The variables a child gets of our environment."""

_RING = 64 << 10
_READ_AHEAD = 256 << 10
"""Bytes of stdout read ahead of its reader; beyond twice that the child has to wait."""
_KILL_WAIT = 1.5
"""Seconds that killed processes get to vanish; only one stuck in the kernel needs longer."""
_FRESH = 0.05
"""Seconds: how old a look at the process table may be when nothing has happened since."""
_SETTLE = 0.01
"""Seconds between the exit of a child and the look for what it left."""


class SpawnError(Exception):
    """A child could not be started. Says which server and which command, never arguments."""


class _Ring(asyncio.Protocol):
    """Keeps the last 64 KiB of what it is given."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._cut = False

    def data_received(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > _RING:
            del self._kept[:-_RING]
            self._cut = True

    def text(self) -> str:
        text = self._kept.decode("utf-8", "replace")
        return "…" + text if self._cut else text


class _Stdin(asyncio.StreamReaderProtocol):
    """Of a write pipe; a reader's protocol is the only public one a StreamWriter can drain."""

    lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        super().connection_lost(exc)


class Child:
    """A running child. Whoever spawned it calls ``end``, also when it has exited by itself.

    ``stdout`` has no line limit: read chunks from it. After ``end`` it is at its end.
    """

    def __init__(self, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.pid = popen.pid
        self.stdin: asyncio.StreamWriter
        self._stdin: _Stdin
        self.stdout = asyncio.StreamReader(limit=_READ_AHEAD)
        self._popen = popen
        self._returncode: int | None = None
        self._tree = processes.Tree(popen.pid)
        self._ring = _Ring()
        self._exited = asyncio.Event()
        self._pipes: list[asyncio.BaseTransport] = []
        self._ending = asyncio.Lock()
        self._ended = False
        processes.claimed.add(popen.pid)
        self._watch()

    @property
    def returncode(self) -> int | None:
        """The exit status, ``-n`` for signal n, ``None`` while it runs."""
        return self._returncode

    def tail(self) -> str:
        """The last 64 KiB of its stderr; a leading ``…`` when there was more."""
        return self._ring.text()

    def members(self, since: float | None = None) -> list[int]:
        """The processes of its tree that live; one that was seen here is found by ``end``, also
        when the child has died meanwhile and it hangs below somebody else. ``since`` as in
        ``processes.table``."""
        return self._tree.living(since)

    async def wait(self) -> int:
        """Wait until the child itself has exited; its status. Its children may still run."""
        await self._exited.wait()
        assert self._returncode is not None
        return self._returncode

    async def end(self, grace: float = 2.0) -> None:
        """End the child and all that came out of it.

        Closes stdin and waits ``grace`` seconds, then SIGTERM to all and as long again, then
        SIGKILL to all. Never longer than twice ``grace`` and two seconds. Can be called at any
        time and more than once; cancelled, it kills at once.
        """
        async with self._ending:
            if self._ended:
                return
            gone = False
            try:
                gone = await self._end(grace)
            finally:
                if not gone:  # cancelled, or stuck in the kernel
                    self._kill()
                self._close()
                self._ended = True
                if self._returncode is not None:
                    self._reap()

    # ------------------------------------------------------------------------- inside

    async def _end(self, grace: float) -> bool:
        # While the child lives its whole tree hangs below it; afterwards it may not.
        self._tree.living(time.monotonic() - _FRESH)
        self.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), grace)
        exited = time.monotonic()
        # Its children saw the same end of stdin; and many that end at once share one look.
        await asyncio.sleep(_SETTLE)
        left = self._tree.living(exited)
        if self._returncode is not None and not left:
            return True
        processes.terminate(left or [self.pid])
        if await self._gone(grace):
            return True
        count = self._kill()
        log.info("%s: killed %d processes that did not end when asked", self.name, count)
        if await self._gone(_KILL_WAIT):
            return True
        stuck = self._tree.living()
        log.warning("%s: processes %s are stuck in the kernel", self.name, stuck)
        return False

    async def _gone(self, within: float) -> bool:
        """Whether the whole tree is gone within so many seconds."""
        since = time.monotonic()
        until = since + within
        pause = 0.01
        while self._returncode is None or self._tree.living(since):
            since = time.monotonic()
            if since >= until:
                return False
            await asyncio.sleep(min(pause, until - since))
            pause = min(pause * 1.5, 0.1)
        return True

    def _kill(self) -> int:
        count = processes.kill(self._tree)
        if not processes.LINUX and self._returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        return count

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            fd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or a sandbox without it
            threading.Thread(
                target=self._wait_blocking, args=(loop,), name=f"wait {self.name}", daemon=True
            ).start()
            return

        def on_exit() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            self._on_exit(_status(self._popen, os.WNOHANG))

        loop.add_reader(fd, on_exit)

    def _wait_blocking(self, loop: asyncio.AbstractEventLoop) -> None:
        status = _status(self._popen, 0)
        with contextlib.suppress(RuntimeError):  # the loop was closed first
            loop.call_soon_threadsafe(self._on_exit, status)

    def _on_exit(self, status: int) -> None:
        # Not reaped yet: dead, it still holds the number by which its session is known.
        self._returncode = status
        self._exited.set()
        if self._ended:
            self._reap()

    def _reap(self) -> None:
        self._popen.wait()
        processes.claimed.discard(self.pid)
        self._tree.reap()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        popen = self._popen
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        transport, stdin = await loop.connect_write_pipe(
            lambda: _Stdin(asyncio.StreamReader()), popen.stdin
        )
        self._pipes.append(transport)
        self._stdin = stdin
        self.stdin = asyncio.StreamWriter(transport, stdin, None, loop)
        transport_out, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.stdout), popen.stdout
        )
        self._pipes.append(transport_out)
        transport_err, _ = await loop.connect_read_pipe(lambda: self._ring, popen.stderr)
        self._pipes.append(transport_err)

    def _close(self) -> None:
        for pipe in self._pipes:
            if isinstance(pipe, asyncio.WriteTransport):
                if not self._stdin.lost:  # asyncio cannot abort twice
                    pipe.abort()
            else:
                pipe.close()

    def _abandon(self) -> None:
        """Undo a spawn that did not finish."""
        self._kill()
        self._close()
        self._ended = True
        streams = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        for stream in streams[len(self._pipes) :]:  # the others belong to their transports
            assert stream is not None
            with contextlib.suppress(OSError):  # a transport that was half made closed it
                stream.close()


def _status(popen: subprocess.Popen[bytes], flags: int) -> int:
    """The exit status of a child, which stays a zombie where the system can do that."""
    try:
        found = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT | flags)
    except (AttributeError, ChildProcessError):
        found = None
    if found is None:
        return popen.wait()
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def environment_of(env: Mapping[str, str]) -> dict[str, str]:
    """All the variables of a child that is given ``env``."""
    environment = {key: os.environ[key] for key in INHERITED if key in os.environ}
    user = users.current()
    if user is not None:
        environment.pop("TMPDIR", None)
        environment |= {"HOME": str(user.home), "USER": user.name}
    return environment | dict(env)


async def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    name: str,
    called: str = "server",
    adopts: bool = False,
) -> Child:
    """Start ``command`` for the server ``name``, without a shell; ``called``: what else it is.

    With ``adopts``, what it starts stays below it even when the parent in between is gone, as
    the shell is that put a command into the background: ``end`` finds it. It costs the start
    30 ms.

    ``env`` comes on top of ``INHERITED`` and may replace it; a child of another user has that
    user's HOME and USER, begins in that HOME unless ``cwd`` says otherwise, and has no TMPDIR
    of ours. Raises SpawnError. Call it from the main thread: where ``setpriv`` can be had the
    child dies with the thread that made it.
    """
    if processes.closing:
        raise SpawnError(f"{called} {name!r}: the sidecar is ending")
    user = users.current()
    if user is not None:
        cwd = cwd or user.home
    environment = environment_of(env)
    with _explained(f"{called} {name!r}", command[0], cwd):
        child = Child(name, _popen(command, environment, cwd, adopts))
    try:
        await child._connect()
    except BaseException:  # cancelled too: nobody else knows of the child yet
        child._abandon()
        raise
    return child


def _popen(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, adopts: bool
) -> subprocess.Popen[bytes]:
    program = command[0]
    if "/" not in program:
        found = shutil.which(program, path=env.get("PATH", os.defpath))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "not found on PATH", program)
        program = found
    # `setpriv` would report a bad program as an exit; without it we get the error here.
    runs = _runs(Path(cwd or "", program))
    user = users.current()
    if user is not None:
        # Never without it: the child would be us.
        if not runs:
            code = errno.EACCES if Path(cwd or "", program).exists() else errno.ENOENT
            raise OSError(code, os.strerror(code), program)
        prefix = users.switching(user)
    else:
        prefix = _dies_with_us() if runs else ()
    # First, while it is still us: another user could not raise it again.
    files = descriptors.prefix() if runs else ()
    adopting = _ADOPTING if adopts and runs and processes.LINUX else ()
    argv = [*files, *adopting, *prefix, program, *command[1:]]
    # A blocked signal would stay blocked in the child, which then never hears SIGTERM.
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        popen = _started(argv, env, cwd)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if not files:
        descriptors.give_back(popen.pid)
    return popen


# A subreaper: kept over exec and a change of user, and not inherited by what it forks. Python
# ignores two signals that the program must not find ignored. Source: prctl(2).
_ADOPTING = (
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
    "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n",
)


def _started(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None
) -> subprocess.Popen[bytes]:
    """The process, with three pipes that belong to whom it is: another user could not open its
    own /dev/stderr otherwise."""
    user = users.current()
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        ends: list[int] = []
        files: list[IO[bytes]] = []
        for mode in ("wb", "rb", "rb"):
            reading, writing = os.pipe()
            end, own = (reading, writing) if mode == "wb" else (writing, reading)
            theirs.callback(os.close, end)
            file = cast("IO[bytes]", os.fdopen(own, mode, 0))
            files.append(ours.enter_context(file))
            ends.append(end)
            if user is not None:
                with contextlib.suppress(OSError):  # without CHOWN it has to do without
                    os.fchown(end, user.uid, user.gid)
        with users.lent():
            popen = subprocess.Popen(
                argv,
                stdin=ends[0],
                stdout=ends[1],
                stderr=ends[2],
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                close_fds=True,
            )
        popen.stdin, popen.stdout, popen.stderr = files
        ours.pop_all()
    return popen


def _runs(program: Path) -> bool:
    """Whether it is executable and, when a script, its interpreter is there."""
    if not os.access(program, os.X_OK):
        return False
    try:
        with program.open("rb") as file:
            first = file.readline(256)
    except OSError:  # a program may be executable without being readable
        return True
    words = first[2:].split() if first.startswith(b"#!") else []
    return not words or os.access(words[0], os.X_OK)


@functools.cache
def _dies_with_us() -> tuple[str, ...]:
    """A prefix that has the kernel kill the child when this process dies, where there is one.

    The supervisor ends everything when this process dies; this is for the moment when both are
    killed at once. Set between fork and exec it would cost 3 ms of a stopped event loop and
    Python code in a forked child (``preexec_fn``); ``setpriv`` costs 1 ms of the child's time.
    """
    for path in users.SETPRIV:
        prefix = (path, "--pdeathsig", "KILL", "--")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if (
                subprocess.run(
                    [*prefix, path, "--version"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=5,
                    check=False,
                ).returncode
                == 0
            ):
                return prefix
    return ()


@contextlib.contextmanager
def _explained(whose: str, program: str, cwd: Path | None) -> Iterator[None]:
    """Turn what the system says into what a person can act on."""
    try:
        yield
    except FileNotFoundError:
        if cwd is not None and not cwd.is_dir():
            why = f"its working directory {cwd} does not exist"
        elif "/" in program:
            why = f"command {program!r} does not exist, or the interpreter it names does not"
        else:
            why = f"command {program!r} is not on PATH; install it or give its full path"
    except NotADirectoryError:
        why = f"its working directory {cwd} or command {program!r} is not in a directory"
    except PermissionError:
        why = f"command {program!r} may not be run (or its working directory not be entered)"
    except OSError as error:
        why = f"command {program!r} could not be started: {os.strerror(error.errno or 0)}"
    except PrivilegeError as error:
        why = str(error)
    except ValueError:
        why = f"command {program!r}, its arguments or environment hold a NUL character"
    else:
        return
    raise SpawnError(f"{whose}: {why}") from None
