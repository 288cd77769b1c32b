"""Runs a worker's code under the real supervisor."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sidecar import processes

PATIENCE = 30.0
"""Seconds for what takes a moment on a quiet machine."""

ANIMALS = str(Path(__file__).with_name("animals.py"))
BEFORE = """
import os, signal, subprocess, sys, time
from sidecar import supervisor
supervisor._REAP_EVERY = 0.1
"""
PRELUDE = f"""
status = supervisor.supervise()
if status is not None:
    sys.exit(status)
marker = sys.argv[1]

def say(*words):
    print(*words, flush=True)

def start(code, **options):
    return subprocess.Popen([sys.executable, "-c", code, marker], **options)

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"

def zoo():
    '''A meek child, a stubborn one in its own session, a daemon, a grandchild of a shell.

    Returns when each is what it is to be.'''
    heard, told = os.pipe()
    def animal(kind):
        return [sys.executable, {ANIMALS!r}, kind, marker, str(told)]
    def keep(command, **options):
        return subprocess.Popen(command, pass_fds=[told], **options)
    keep(animal("meek"))
    keep(animal("stubborn"), start_new_session=True)
    keep(animal("daemon")).wait()
    keep(["/bin/sh", "-c", " ".join(animal("stubborn")) + " & wait"])
    os.close(told)
    for _ in range(4):
        assert os.read(heard, 1) == b"."
    os.close(heard)
"""
ZOO = 5
"""Processes with the marker that ``zoo`` makes, the shell among them."""


class Run:
    """A supervisor, its worker and whatever they start; nothing is left of it at the end."""

    def __init__(
        self, code: str, command: Sequence[str] = (), *, before: str = "", **options: Any
    ) -> None:
        self.marker = f"marker-{uuid.uuid4().hex}"
        text = f"{BEFORE}{before}\n{PRELUDE}{code}"
        argv = [*command, sys.executable, "-c", text, self.marker]
        self.process = subprocess.Popen(
            argv,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            | options,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, within: float = PATIENCE) -> str:
        """The next line of stdout, unbuffered reads so that nothing is swallowed."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        got = b""
        until = time.monotonic() + within
        while not got.endswith(b"\n"):
            ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no line within {within} s, only {got!r}"
            byte = os.read(fd, 1)
            assert byte, f"stdout ended after {got!r}"
            got += byte
        return got.decode().strip()

    def worker(self) -> int:
        """Its pid: the supervisor's first child."""
        found: list[int] = []

        def there() -> bool:
            found[:] = [p.pid for p in processes.table().values() if p.parent == self.pid]
            return bool(found)

        until(there)
        return min(found)

    def status(self, within: float = PATIENCE) -> int:
        return self.process.wait(within)

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def carrying(self, *, zombies: bool = False) -> list[int]:
        """The processes of this run, the supervisor and its worker among them."""
        found = []
        for pid, process in processes.table().items():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
                if self.marker.encode() in file.read() and (zombies or not process.dead):
                    found.append(pid)
        return sorted(found)

    def gone(self) -> None:
        """Wait until nothing is left."""
        until(lambda: not self.carrying())


def until(true: Callable[[], bool], within: float = PATIENCE) -> None:
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.005)


@contextlib.contextmanager
def running(
    code: str, command: Sequence[str] = (), *, before: str = "", **options: Any
) -> Iterator[Run]:
    """``before`` runs in front of the fork, so in both processes."""
    run = Run(code, command, before=before, **options)
    try:
        yield run
    finally:
        left = run.carrying()
        processes.send(left, signal.SIGKILL)
        with contextlib.suppress(OSError):
            run.process.kill()
        run.process.wait()
        for stream in (run.process.stdin, run.process.stdout, run.process.stderr):
            if stream is not None:
                stream.close()
