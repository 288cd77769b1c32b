"""A pod without Kubernetes: one network namespace, and for each container a mount namespace, a
pid namespace and a uid of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit import processes
from tests.kit.running import ROOT
from tests.pod.kit import NOTES

SIDECAR_UID, AGENT_UID = 10001, 10002
PATIENCE = 60.0

POD = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""The pod's sandbox: what the containers share is its network."""


def user(uid: int) -> list[str]:
    """A container's process: no capability, and none to be had."""
    return [
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--no-new-privs",
        "--",
    ]


def not_permitted() -> str:
    """Why there can be no such pod here; empty where there can."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    probe = [*POD, "sh", "-c", 'ip link set lo up && mount -t tmpfs none /mnt && exec "$@"', "sh"]
    try:
        done = subprocess.run(
            [*probe, *user(AGENT_UID), "true"], capture_output=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unshare: {type(error).__name__}"
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        return f"namespaces are not permitted here: {said}"
    python = [*user(AGENT_UID), sys.executable, "-c", "import sidecar, aiohttp"]
    done = subprocess.run(python, capture_output=True, check=False, timeout=60, cwd=ROOT)
    return "" if done.returncode == 0 else "another uid cannot read this checkout's Python"


pytestmark = pytest.mark.skipif(bool(why := not_permitted()), reason=why or "it can")

# As the agent's container sees it: an empty folder in place of what the sidecar alone mounts, and
# a /proc of a pid namespace of its own.
AGENT = 'mount -t tmpfs none "$1"; shift; exec "$@"'

LOOKS = """
import json, os, socket, sys, urllib.request, urllib.error
admin, folder, mcp, health, worker = sys.argv[1:]
seen = {}

def attempt(name, what):
    try:
        seen[name] = what()
    except (OSError, urllib.error.URLError) as error:
        seen[name] = type(getattr(error, "reason", error)).__name__

def unix():
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(admin)
        return "connected"

def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code

attempt("socket", unix)
attempt("folder", lambda: os.listdir(folder))
attempt("config", lambda: open(folder + "/sidecar.yaml").read())
attempt("environ", lambda: open(f"/proc/{worker}/environ").read())
attempt("kill", lambda: os.kill(int(worker), 15))
attempt("pids", lambda: sorted(p for p in os.listdir("/proc") if p.isdigit()))
attempt("tools", lambda: get(mcp.removesuffix("/mcp") + "/v1/tools"))
attempt("ready", lambda: get(health + "/readyz"))
attempt("admin over tcp", lambda: get(mcp.removesuffix("/mcp") + "/v1/servers"))
attempt("outside", lambda: get("http://192.0.2.1/"))
print(json.dumps(seen))
"""


class Pod:
    """The sandbox, with a sidecar in it as PID 1 of its container."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder
        self._config = config
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when the sidecar says that it is ready."""
        own = self.folder / "sidecar"
        own.mkdir(mode=0o700)
        (own / "sidecar.yaml").write_text(
            yaml.safe_dump(
                {
                    "listen": "127.0.0.1:8808",
                    "health": {"listen": "127.0.0.1:8810"},
                    "admin": {"listen": f"unix:{own}/admin.sock"},
                    "store": "memory",
                    "policy": {"shipped": []},
                    **self._config,
                }
            )
        )
        for each in (own, own / "sidecar.yaml"):
            os.chown(each, SIDECAR_UID, SIDECAR_UID)
        run = [sys.executable, "-m", "sidecar", "run", "--config", str(own / "sidecar.yaml")]
        script = 'ip link set lo up; exec "$@"'
        self._process = subprocess.Popen(
            [*POD, "sh", "-c", script, "sh", *user(SIDECAR_UID), *run],
            cwd=ROOT,
            env={**os.environ, "HOME": str(own)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "stderr").open("ab"),
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("sidecar ready"), self.log()
        (self.first,) = [
            pid for pid, parent in processes.parents().items() if parent == self._process.pid
        ]

    def agent(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of the agent's container, to its end."""
        inside = ["nsenter", "-t", str(self.first), "--net", "--", "unshare", "--mount", "--pid"]
        inside += ["--fork", "--mount-proc", "sh", "-c", AGENT, "sh", str(self.folder / "sidecar")]
        return subprocess.run(
            [*inside, *user(AGENT_UID), *command],
            cwd="/",
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def children(self, pid: int) -> list[int]:
        return [child for child, parent in processes.parents().items() if parent == pid]

    def log(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def end(self) -> int:
        assert self._process is not None
        os.kill(self.first, signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users can pass, and short, as a socket's path has to be."""
    path = Path(tempfile.mkdtemp(prefix="pod-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def pod(folder: Path, config: dict[str, Any]) -> Iterator[Pod]:
    made = Pod(folder, config)
    try:
        made.start()
        yield made
    except BaseException:
        print(made.log(), file=sys.stderr)
        raise
    finally:
        made.kill()


def test_the_agent_reaches_the_sidecar_and_not_its_admin_socket(folder: Path) -> None:
    with pod(folder, {"servers": {"notes": NOTES}}) as here:
        own = here.folder / "sidecar"
        (worker,) = here.children(here.first)
        done = here.agent(
            sys.executable,
            "-c",
            LOOKS,
            f"{own}/admin.sock",
            str(own),
            "http://127.0.0.1:8808/mcp",
            "http://127.0.0.1:8810",
            str(worker),
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        # What it is meant to reach, over the loopback that they share.
        assert (seen["tools"], seen["ready"]) == (200, 200)
        # Not there: another mount namespace. Nor could it be opened, were it mounted by mistake.
        assert seen["socket"] == "FileNotFoundError"
        assert seen["folder"] in ([], "PermissionError")
        assert seen["config"] == "FileNotFoundError"
        # Another pid namespace: the sidecar is no process that it could see.
        assert seen["environ"] == "FileNotFoundError"
        assert seen["kill"] == "ProcessLookupError"
        assert len(seen["pids"]) == 1
        assert seen["admin over tcp"] == 404
        assert seen["outside"] not in (200, "connected")
        assert here.end() == 0


def test_a_socket_mounted_by_mistake_does_not_open(folder: Path) -> None:
    """The same uid alone would do: so the agent has another, and the folder is not its own."""
    with pod(folder, {}) as here:
        socket = here.folder / "sidecar" / "admin.sock"
        look = (
            "import socket, sys\nprobe = socket.socket(socket.AF_UNIX)\nprobe.connect(sys.argv[1])"
        )
        command = ["nsenter", "-t", str(here.first), "--net", "--mount", "--"]
        done = subprocess.run(
            [*command, *user(AGENT_UID), sys.executable, "-c", look, str(socket)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert "PermissionError" in done.stderr
        assert here.end() == 0


def test_pid_one_reaps_and_drains(folder: Path) -> None:
    with pod(folder, {"servers": {"notes": NOTES}}) as here:
        with open(f"/proc/{here.first}/status", encoding="ascii") as status:
            fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        assert fields["NSpid"].split()[-1] == "1"
        assert int(fields["CapEff"], 16) == 0
        assert int(fields["NoNewPrivs"]) == 1
        # As with `kubectl exec`: what is left of it becomes a child of PID 1.
        orphans = ["nsenter", "-t", str(here.first), "--pid", "--", "sh", "-c"]
        subprocess.run([*orphans, "(sleep 0.2 &) ; (true &) ; exit 0"], check=False, timeout=30)
        until = time.monotonic() + PATIENCE
        while len(here.children(here.first)) != 1:
            assert time.monotonic() < until, "zombies are left"
            time.sleep(0.05)
        began = time.monotonic()
        assert here.end() == 0
        print(f"gone {time.monotonic() - began:.2f} s after SIGTERM")
        assert "draining" in here.log()
