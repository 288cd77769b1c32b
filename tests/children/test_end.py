"""Ending whole trees of real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from sidecar import children, processes

PYTHON = sys.executable


@pytest.fixture
def marker() -> Iterator[str]:
    """An argument no other process has; whoever still carries it at the end is killed."""
    value = f"marker-{uuid.uuid4().hex}"
    yield value
    left = carrying(value)
    processes.send(left, signal.SIGKILL)
    assert left == []


def carrying(marker: str) -> list[int]:
    """The living processes whose command line has the marker."""
    found = []
    for pid, process in processes.table().items():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if marker.encode() in words and not process.dead:
            found.append(pid)
    return found


async def alive(marker: str, count: int, *, at_least: bool = False) -> None:
    """Wait until so many carry the marker."""
    async with asyncio.timeout(30):
        while (found := len(carrying(marker))) != count and not (  # noqa: ASYNC110
            at_least and found > count
        ):
            await asyncio.sleep(0.01)


async def script(code: str, marker: str, **env: str) -> children.Child:
    return await children.spawn([PYTHON, "-u", "-c", code, marker], env=env, name="t")


async def test_a_well_behaved_child_ends_on_eof(marker: str) -> None:
    child = await script("import sys; sys.stdin.read(); print('bye')", marker)
    await alive(marker, 1)
    started = time.monotonic()
    await child.end(60)
    assert time.monotonic() - started < 30
    assert child.returncode == 0
    assert await child.wait() == 0
    assert await child.stdout.read() == b"bye\n"


async def test_sigterm_comes_after_the_grace(marker: str) -> None:
    child = await script("import time; print('up'); time.sleep(60)", marker)
    assert await child.stdout.readline() == b"up\n"
    started = time.monotonic()
    await child.end(0.2)
    assert 0.2 <= time.monotonic() - started < 10
    assert child.returncode == -signal.SIGTERM


# Starts itself again, ever deeper, each in a session of its own.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code, marker, depth = sys.argv[1], sys.argv[2], int(sys.argv[3])
if depth:
    again = [sys.executable, "-c", code, code, marker, str(depth - 1)]
    subprocess.Popen(again, start_new_session=True)
time.sleep(60)
"""


async def stubborn(marker: str) -> children.Child:
    command = [PYTHON, "-c", STUBBORN, STUBBORN, marker, "3"]
    child = await children.spawn(command, env={}, name="t")
    await alive(marker, 4)
    return child


async def test_grandchildren_in_sessions_of_their_own_that_ignore_sigterm(marker: str) -> None:
    child = await stubborn(marker)
    started = time.monotonic()
    await child.end(0.2)
    assert time.monotonic() - started < 20
    assert carrying(marker) == []
    assert child.returncode == -signal.SIGKILL


async def test_what_outlives_the_child_is_ended_too(marker: str) -> None:
    code = """
import os, sys, time
if os.fork() == 0:
    time.sleep(60)
sys.stdin.readline()
os._exit(7)
"""
    child = await script(code, marker)
    await alive(marker, 2)
    child.stdin.write(b"\n")
    assert await child.wait() == 7
    assert len(carrying(marker)) == 1
    await child.end(0.2)
    assert carrying(marker) == []


async def test_a_tree_that_keeps_forking_is_caught(marker: str) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(500):
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    time.sleep(0.002)
time.sleep(60)
"""
    child = await script(code, marker)
    await alive(marker, 10, at_least=True)
    await child.end(0.1)
    assert carrying(marker) == []


async def test_a_stopped_child_is_ended(marker: str) -> None:
    child = await script("import time; print('up'); time.sleep(60)", marker)
    await child.stdout.readline()
    os.kill(child.pid, signal.SIGSTOP)
    await child.end(0.2)
    assert child.returncode == -signal.SIGTERM


async def test_end_can_be_called_twice_at_once_and_again(marker: str) -> None:
    child = await script("import time; print('up'); time.sleep(60)", marker)
    await child.stdout.readline()
    await asyncio.gather(child.end(0.1), child.end(0.1))
    await child.end(0.1)
    assert child.returncode == -signal.SIGTERM
    assert child.pid not in processes.claimed


async def test_cancelling_end_kills_at_once(marker: str) -> None:
    child = await stubborn(marker)
    ending = asyncio.create_task(child.end(300))
    await asyncio.sleep(0.05)
    ending.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await alive(marker, 0)
    assert time.monotonic() - started < 30
    async with asyncio.timeout(30):
        assert await child.wait() == -signal.SIGKILL


async def test_a_child_that_does_not_read_still_ends(marker: str) -> None:
    child = await script("import time; print('up'); time.sleep(60)", marker)
    await child.stdout.readline()
    child.stdin.write(b"x" * (1 << 20))
    await child.end(0.1)
    assert child.returncode == -signal.SIGTERM


async def test_a_hundred_children_end_together(marker: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    code = f"{PYTHON} -c 'import time; time.sleep(60)' {marker} & read line"
    command = ["/bin/sh", "-c", code, marker]
    running = [await children.spawn(command, env={}, name="t") for _ in range(100)]
    await alive(marker, 200)
    started = time.monotonic()
    await asyncio.gather(*(child.end(1) for child in running))
    assert time.monotonic() - started < 30  # one after the other they would take a hundred graces
    assert carrying(marker) == []
    assert all(child.returncode is not None for child in running)
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
