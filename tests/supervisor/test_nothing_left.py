"""Whatever dies, and however, nothing that was started is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from sidecar import processes
from tests.supervisor.kit import PATIENCE, ZOO, running, until

WAIT = "\nsay('up'); time.sleep(60)"


def test_worker_killed() -> None:
    with running("zoo()" + WAIT) as run:
        assert run.line() == "up"
        until(lambda: len(run.carrying()) == ZOO + 2)  # + supervisor, worker
        os.kill(run.worker(), signal.SIGKILL)
        assert run.status() == 128 + signal.SIGKILL
        assert run.carrying(zombies=True) == []
        assert "the worker was ended by SIGKILL; ending 5 processes it left" in run.stderr()


@pytest.mark.parametrize(
    ("ending", "status"),
    [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("raise RuntimeError", 1), ("os.abort()", 134)],
)
def test_worker_ends(ending: str, status: int) -> None:
    with running(f"zoo()\nsay('up'); sys.stdin.readline(); {ending}") as run:
        assert run.line() == "up"
        until(lambda: len(run.carrying()) == ZOO + 2)
        assert run.process.stdin is not None
        run.process.stdin.write(b"\n")
        run.process.stdin.flush()
        assert run.status() == status
        assert run.carrying(zombies=True) == []


def test_meek_leftovers_cost_no_grace() -> None:
    code = "start('import time; time.sleep(60)')\nsay('up')"
    with running(code, before=f"supervisor.GRACE = {2 * PATIENCE}") as run:
        assert run.line() == "up"
        assert run.status(PATIENCE) == 0
        assert run.carrying(zombies=True) == []


@pytest.mark.parametrize(
    "worker",
    [
        "say('up'); time.sleep(60)",
        "say('up')\nwhile True: pass",
        "import asyncio\nasync def main():\n say('up')\n while True: pass\nasyncio.run(main())",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nsay('up')\ninput()",
    ],
    ids=["asleep", "busy", "blocked loop", "no signals"],
)
def test_supervisor_killed(worker: str) -> None:
    with running("zoo()\n" + worker) as run:
        assert run.line() == "up"
        until(lambda: len(run.carrying()) == ZOO + 2)
        run.process.kill()
        run.gone()


def test_supervisor_killed_while_children_keep_coming() -> None:
    code = """
say('up')
while True:
    start(STUBBORN, start_new_session=True)
    time.sleep(0.02)
"""
    with running(code) as run:
        assert run.line() == "up"
        until(lambda: len(run.carrying()) > 8)
        run.process.kill()
        run.gone()


def test_both_killed_at_once() -> None:
    if subprocess.run(["setpriv", "--pdeathsig", "KILL", "true"], check=False).returncode:
        pytest.skip("no setpriv with --pdeathsig on this machine")
    code = """
import asyncio
from sidecar import children
async def main():
    here = "print('here', flush=True);"
    for _ in range(3):
        child = await children.spawn(
            [sys.executable, "-c", here + STUBBORN, marker], env={}, name="t"
        )
        assert await child.stdout.readline() == b"here\\n"
    say("up")
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with running(code) as run:
        assert run.line() == "up"
        until(lambda: len(run.carrying()) == 5)
        worker = run.worker()
        os.kill(run.pid, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        run.gone()


def test_orphans_that_die_are_reaped_and_claimed_children_are_not() -> None:
    code = """
from sidecar import processes
claimed = subprocess.Popen(["/bin/sh", "-c", "read line; exit 0"], stdin=subprocess.PIPE)
processes.claimed.add(claimed.pid)
claimed.stdin.close()
start("import os\\nif os.fork() == 0: os._exit(0)\\nos._exit(0)").wait()
say("up", claimed.pid)
sys.stdin.readline()
say(os.waitpid(claimed.pid, 0)[1])
time.sleep(60)
"""
    with running(code) as run:
        _, claimed = run.line().split()
        worker = run.worker()

        def zombies() -> set[int]:
            return {p.pid for p in processes.table().values() if p.parent == worker and p.dead}

        until(lambda: zombies() == {int(claimed)})
        time.sleep(0.5)  # five rounds of the reaper
        assert zombies() == {int(claimed)}
        assert run.process.stdin is not None
        run.process.stdin.write(b"\n")
        run.process.stdin.flush()
        assert run.line() == "0"
        run.process.terminate()
        assert run.status() == 128 + signal.SIGTERM


def test_a_worker_that_forks_daemons_faster_than_one_can_look() -> None:
    code = """
say('up')
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    time.sleep(60)
until = time.monotonic() + 30
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
"""
    with running(code) as run:
        assert run.line() == "up"
        time.sleep(0.2)
        os.kill(run.worker(), signal.SIGKILL)
        assert run.status() == 128 + signal.SIGKILL
        assert run.carrying(zombies=True) == []
