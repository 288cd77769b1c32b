"""The whole sidecar, with servers that do not want to end."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.kit import processes
from tests.kit.running import Sidecar, started

# Ignores the end of stdin and SIGTERM, as does its child, in a session of its own.
SERVER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], start_new_session=True)
time.sleep(60)
"""


@pytest.fixture
def marker() -> Iterator[str]:
    """What the four processes of two servers carry; none does at the end."""
    value = f"marker-{uuid.uuid4().hex}"
    yield value
    left = processes.left_of(processes.marked(value), 0)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
def sidecar(marker: str) -> Iterator[Sidecar]:
    server = {"command": [sys.executable, "-c", SERVER, marker]}
    with started({"servers": {"one": server, "two": server}}) as sidecar:
        until = time.monotonic() + 30
        while len(processes.marked(marker)) < 4:
            assert time.monotonic() < until
            time.sleep(0.02)
        yield sidecar


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_killed(sidecar: Sidecar, victim: str) -> None:
    family = sidecar.family
    assert len(family) == 6
    os.kill(getattr(sidecar, "pid" if victim == "supervisor" else "worker"), signal.SIGKILL)
    sidecar.wait()
    assert processes.left_of(family, 20) == []


def test_both_killed_at_once(sidecar: Sidecar, marker: str) -> None:
    """Nobody is left to look for grandchildren, but children die with the worker."""
    if not os.path.exists("/usr/bin/setpriv"):
        pytest.skip("no setpriv on this machine")
    worker = sidecar.worker
    children = [pid for pid, parent in processes.parents().items() if parent == worker]
    assert len(children) == 2
    os.kill(sidecar.pid, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    sidecar.wait()
    assert processes.left_of([worker, *children], 20) == []
    for pid in processes.marked(marker):
        os.kill(pid, signal.SIGKILL)
    processes.left_of(processes.marked(marker), 20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_as_a_process_group(sidecar: Sidecar, marker: str, number: int) -> None:
    """The worker hears it twice, and still ends in order."""
    worker = sidecar.worker
    os.kill(sidecar.pid, number)
    os.kill(worker, number)
    assert sidecar.wait() == 0
    assert processes.marked(marker) == []
    assert sidecar.log().count("draining") == 1


def test_a_second_interrupt(sidecar: Sidecar, marker: str) -> None:
    sidecar.signal(signal.SIGINT)
    time.sleep(0.7)
    assert sidecar.running  # its servers have two seconds, twice
    sidecar.signal(signal.SIGINT)
    # Left to itself it would end in order, with 0.
    assert sidecar.wait() == 128 + signal.SIGINT
    assert processes.marked(marker) == []
