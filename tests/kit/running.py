"""A real ``sidecar run`` in a process of its own, from a configuration written as a dict."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TextIO

import yaml

from tests.kit import processes

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"^sidecar ready mcp=(\S+) admin=(\S+) health=(\S+)$")
READY_TIMEOUT = 60.0
STOP_TIMEOUT = 40.0

Config = dict[str, Any]


class NotReady(Exception):
    """The sidecar ended or stayed silent; the message holds what it wrote to stderr."""


def with_defaults(config: Config, folder: Path) -> Config:
    """Every listener on a free port, the socket in ``folder``, nothing outside of it.

    None of the sidecar's own policies: what gates and labels is for tests that are about it.
    """
    return {
        "listen": "127.0.0.1:0",
        "health": {"listen": "127.0.0.1:0"},
        "admin": {"listen": f"unix:{folder / 'admin.sock'}"},
        "store": "memory",
        "policy": {"shipped": []},
        **config,
    }


class Sidecar:
    """One process of ``sidecar run``, with everything it said on its ready line.

    ``mcp``, ``admin`` and ``health`` are as printed; ``took`` is seconds from spawn to that line.
    """

    def __init__(
        self,
        config: Config,
        *,
        arguments: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        """``prefix`` runs it, ``env`` comes on top of ours."""
        # Not pytest's own folders: a unix socket's path has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="sidecar-"))
        self.config = with_defaults(config, self.folder)
        self.file = self.folder / "sidecar.yaml"
        self.write(self.config)
        self.mcp = self.admin = self.health = ""
        self.took = 0.0
        self._log = self.folder / "stderr"
        self._arguments = arguments
        self._prefix = prefix
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None
        self._line: list[str] = []

    def write(self, config: Config) -> None:
        """Writes the file anew, in one step, as an editor or Kubernetes would."""
        new = self.file.with_suffix(".new")
        new.write_text(yaml.safe_dump(config, sort_keys=False))
        new.replace(self.file)

    # -------------------------------------------------------------------------- lifecycle

    def start(self) -> Sidecar:
        """Returns when it listens."""
        command = [*self._prefix, sys.executable, "-m", "sidecar", "run"]
        command += ["--config", str(self.file)]
        began = time.monotonic()
        self._line = []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._arguments],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        reader = threading.Thread(
            target=self._read, args=(self._process.stdout, self._line), daemon=True
        )
        reader.start()
        while not (match := self._ready()):
            if self._process.poll() is not None or time.monotonic() - began > READY_TIMEOUT:
                self.kill()
                raise NotReady(f"no ready line after {READY_TIMEOUT} s:\n{self.log()}")
            time.sleep(0.005)
        self.took = time.monotonic() - began
        self.mcp, self.admin, self.health = match.groups()
        return self

    def _read(self, stdout: TextIO, lines: list[str]) -> None:
        # Until the end, so that a sidecar which prints more never blocks on a full pipe.
        for line in stdout:
            lines.append(line.rstrip("\n"))

    def _ready(self) -> re.Match[str] | None:
        return next((found for line in self._line if (found := READY.match(line))), None)

    def stop(self, within: float = STOP_TIMEOUT) -> int:
        """SIGTERM, and the exit status; nothing it started may be left."""
        family = [self.pid, *processes.descendants(self.pid)]
        self.signal(signal.SIGTERM)
        status = self.wait(within)
        left = processes.left_of(family, 20)
        assert not left, f"left behind: {[processes.command_line(pid) for pid in left]}"
        return status

    def wait(self, within: float = STOP_TIMEOUT) -> int:
        assert self._process is not None
        return self._process.wait(within)

    def kill(self) -> None:
        """Whatever happened before: no process of ours stays."""
        if self._process is None:
            return
        family = processes.descendants(self.pid)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(30)
        for pid in processes.left_of(family, 20):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    # --------------------------------------------------------------------------- looking in

    @property
    def pid(self) -> int:
        """The supervisor: the process that a service manager would see."""
        assert self._process is not None
        return self._process.pid

    @property
    def worker(self) -> int:
        """The process that serves: the supervisor's only child."""
        children = [child for child, parent in processes.parents().items() if parent == self.pid]
        assert len(children) == 1, f"the supervisor has children {children}"
        return children[0]

    @property
    def family(self) -> list[int]:
        return [self.pid, *processes.descendants(self.pid)]

    @property
    def rest(self) -> str:
        """The base of the REST faces, ``…/v1``."""
        return self.mcp.removesuffix("/mcp") + "/v1"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def at(self, server: str) -> str:
        """The address that serves one server with its names unchanged."""
        return f"{self.mcp}/{server}"

    def log(self) -> str:
        """All that it wrote to stderr so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def cli(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Another ``sidecar`` command with the same configuration file."""
        return subprocess.run(
            [sys.executable, "-m", "sidecar", *arguments],
            cwd=self.folder,
            env={**os.environ, "SIDECAR_CONFIG": str(self.file)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextlib.contextmanager
def started(
    config: Config, *, arguments: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> Iterator[Sidecar]:
    """A running sidecar that is stopped, and checked to leave nothing, at the end."""
    sidecar = Sidecar(config, arguments=arguments, env=env)
    try:
        sidecar.start()
        yield sidecar
        if sidecar.running:
            sidecar.stop()
    except BaseException:
        print(sidecar.log(), file=sys.stderr)
        raise
    finally:
        sidecar.kill()


@contextlib.asynccontextmanager
async def running(
    config: Config, *, arguments: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> AsyncIterator[Sidecar]:
    """As ``started``, without holding up the loop in which a test's own servers live."""
    sidecar = Sidecar(config, arguments=arguments, env=env)
    try:
        await asyncio.to_thread(sidecar.start)
        yield sidecar
        if sidecar.running:
            await asyncio.to_thread(sidecar.stop)
    except BaseException:
        print(sidecar.log(), file=sys.stderr)
        raise
    finally:
        await asyncio.to_thread(sidecar.kill)
