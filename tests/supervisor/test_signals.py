"""Signals, terminals, stdio, PID 1, and what other processes may read."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from typing import Any

import pytest

from sidecar import processes
from tests.supervisor.kit import running, until

# Through a pipe, as an event loop hears them. A handler that prints has two holes: a signal just
# before `sleep` is noticed when the sleep ends, and one during `say` finds it in use.
LISTEN = """
heard, told = os.pipe()
os.set_blocking(told, False)
signal.set_wakeup_fd(told)
for name in "TERM INT HUP QUIT USR1 USR2".split():
    signal.signal(getattr(signal, "SIG" + name), lambda number, frame: None)
say("up")
while True:
    for number in os.read(heard, 16):
        say(signal.Signals(number).name)
"""


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_forwarded(name: str) -> None:
    with running(LISTEN) as run:
        assert run.line() == "up"
        for _ in range(2):
            os.kill(run.pid, getattr(signal, "SIG" + name))
            assert run.line() == "SIG" + name


def test_the_guard_never_takes_a_signal() -> None:
    """Not even before it runs for the first time: the main thread would sleep on."""
    code = """
before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
done = os.pipe()
def born(pipe):
    left = signal.valid_signals() - signal.pthread_sigmask(signal.SIG_BLOCK, [])
    say(sorted(left - {signal.SIGKILL, signal.SIGSTOP}))
    os.write(done[1], b".")
supervisor._guard = born
supervisor.install_orphan_guard(-1)
os.read(done[0], 1)
say(before == signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    with running(code) as run:
        assert run.line() == "[]"
        assert run.line() == "True"
        assert run.status() == 0


def test_default_actions_work_in_the_worker() -> None:
    with running("say('up'); time.sleep(60)") as run:
        assert run.line() == "up"
        run.process.send_signal(signal.SIGTERM)
        assert run.status() == 128 + signal.SIGTERM


def test_a_second_interrupt_is_quick_even_when_the_worker_ignores_both() -> None:
    with running(LISTEN) as run:
        assert run.line() == "up"
        run.process.send_signal(signal.SIGINT)
        assert run.line() == "SIGINT"
        time.sleep(0.6)
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        assert run.status() == 128 + signal.SIGINT


class Terminal:
    """A process in a session of its own with a terminal, as a shell would start it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()

    def options(self) -> dict[str, Any]:
        def take() -> None:
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

        return {"stdin": self.slave, "start_new_session": True, "preexec_fn": take}


def test_ctrl_c_in_a_terminal_is_heard_once() -> None:
    terminal = Terminal()
    with running(LISTEN, **terminal.options()) as run:
        os.close(terminal.slave)
        assert run.line() == "up"
        os.write(terminal.master, b"\x03")
        assert run.line() == "SIGINT"
        run.process.send_signal(signal.SIGUSR1)
        assert run.line() == "SIGUSR1"  # and not a second SIGINT
    os.close(terminal.master)


def test_a_terminal_that_goes_away_ends_it() -> None:
    terminal = Terminal()
    with running(LISTEN, **terminal.options()) as run:
        os.close(terminal.slave)
        assert run.line() == "up"
        os.close(terminal.master)
        assert run.line() == "SIGTERM"


def test_nohup_outlives_its_terminal() -> None:
    terminal = Terminal()
    with running(LISTEN, ["nohup"], **terminal.options()) as run:
        os.close(terminal.slave)
        assert run.line() == "up"
        os.close(terminal.master)
        time.sleep(0.1)
        run.process.send_signal(signal.SIGUSR1)
        assert run.line() == "SIGUSR1"
        run.process.send_signal(signal.SIGHUP)
        assert run.line() == "SIGHUP"


def test_stdio_is_the_workers_alone() -> None:
    code = """
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(data[::-1])
sys.stdout.flush()
os.close(1)
time.sleep(60)
"""
    data = bytes(range(256)) * 10_000
    with running(code) as run:
        assert run.process.stdin is not None
        assert run.process.stdout is not None
        run.process.stdin.write(data)
        run.process.stdin.close()
        # Ends although both processes live: the supervisor holds no copy.
        assert run.process.stdout.read() == data[::-1]
        assert run.process.poll() is None


def test_a_closed_stdin_is_not_taken_for_the_pipe_between_the_two() -> None:
    with running(
        "say(os.readlink('/proc/self/fd/0')); time.sleep(60)", ["sh", "-c", 'exec "$@" <&-', "sh"]
    ) as run:
        assert run.line() == "/dev/null"


def test_as_pid_1() -> None:
    probe = ["unshare", "-pf", "--mount-proc", "true"]
    try:
        permitted = subprocess.run(probe, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        permitted = False
    if not permitted:
        pytest.skip("unshare -p is not permitted here")
    code = LISTEN.replace('say("up")', "say(os.getpid(), os.getppid()); zoo(); say('up')")
    command = ["unshare", "-pf", "--kill-child", "--mount-proc"]
    with running(code, command) as run:
        assert run.line() == "2 1"
        assert run.line() == "up"
        (first,) = [p.pid for p in processes.table().values() if p.parent == run.pid]
        os.kill(first, signal.SIGTERM)
        assert run.line() == "SIGTERM"
        # Not of its tree, as with `docker exec`: reparented to PID 1 and reaped there.
        subprocess.run(
            ["nsenter", "-t", str(first), "-p", "sh", "-c", "true & exec true"], check=False
        )

        def children() -> list[int]:
            return [p.pid for p in processes.table().values() if p.parent == first]

        until(lambda: len(children()) == 1)
        os.kill(children()[0], signal.SIGKILL)
        assert run.status() == 128 + signal.SIGKILL
        assert run.carrying(zombies=True) == []


def test_others_of_the_same_user_cannot_read_it() -> None:
    """Neither the worker nor the supervisor, which has the same environment."""
    as_nobody: list[str] = []
    if os.geteuid() == 0:  # root may read everything
        as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all"]
        probe = [*as_nobody, sys.executable, "-c", "import sidecar.supervisor"]
        if subprocess.run(probe, check=False, capture_output=True).returncode:
            pytest.skip("another user cannot run this interpreter here")
    code = """
say(len(os.listdir("/proc/self/fd")) > 3)
worker, parent = os.getpid(), os.getppid()
if os.fork() == 0:
    for pid in (worker, parent):
        for name in ("environ", "mem", "fd"):
            try:
                path = f"/proc/{pid}/{name}"
                os.listdir(path) if name == "fd" else open(path, "rb").read(1)
            except PermissionError:
                say("refused", name)
            else:
                say("read", name)
time.sleep(60)
"""
    refused = [f"refused {name}" for name in ("environ", "mem", "fd")]
    with running(code, as_nobody) as run:
        assert run.line() == "True"
        assert [run.line() for _ in range(6)] == refused * 2


@pytest.mark.parametrize("arguments", [["--version"], ["tools", "--help"]])
def test_other_verbs_have_no_supervisor(arguments: list[str]) -> None:
    code = (
        "import sys, os; from sidecar import supervisor, __main__\n"
        "supervisor.supervise = lambda: 99\n"
        f"sys.argv = ['sidecar', *{arguments!r}]\n"
        "sys.exit(__main__.main())"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.parametrize("verb", ["run", "demo", "stdio", "acp", "harness"])
def test_verbs_that_serve_have_one(verb: str) -> None:
    code = (
        "import sys, os; from sidecar import supervisor, __main__\n"
        "supervisor.supervise = lambda: 99\n"
        f"sys.argv = ['sidecar', {verb!r}]\n"
        "sys.exit(__main__.main())"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 99
    )


def test_the_worker_may_open_more_files_and_its_children_what_it_was_given() -> None:
    """Some programs use select(2), or close every number there could be."""
    if not any(os.path.exists(path) for path in ("/usr/bin/prlimit", "/bin/prlimit")):
        pytest.skip("no prlimit on this machine")
    code = """
import asyncio, resource
from sidecar import children
async def main():
    say(*resource.getrlimit(resource.RLIMIT_NOFILE))
    child = await children.spawn(["/bin/sh", "-c", "ulimit -Sn; ulimit -Hn"], env={}, name="t")
    say(*(await child.stdout.read()).decode().split())
    await child.end()
asyncio.run(main())
"""
    with running(code, ["prlimit", "--nofile=200:900", "--"]) as run:
        assert run.line() == "900 900"
        assert run.line() == "200 900"
        assert run.status() == 0
