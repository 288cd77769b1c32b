"""A PostgreSQL server of the tests' own: in a temporary folder, as a user without rights."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.peers.postgres import programs

START = 30.0
STOP = 20.0


class Postgres:
    """``start`` and ``stop`` as often as wanted; the data stay until ``remove``.

    It listens on loopback, at a port that was free, and on a socket in its folder.
    """

    def __init__(self, **settings: str) -> None:
        """``settings`` are further ones of the server, or others than ours."""
        self._settings = settings
        found = programs()
        assert found is not None, "skip the test when there is no PostgreSQL"
        self._bin = found
        self._as: dict[str, Any] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="sidecar-pg-"))
        if os.getuid() == 0:
            # It refuses to run as root.
            user = pwd.getpwnam("postgres" if _exists("postgres") else "nobody")
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def make(self) -> None:
        """The files of an empty server. Logins need no password."""
        self._run(
            "initdb",
            "--auth=trust",
            "--username=sidecar",
            "--locale=C",
            "--encoding=UTF8",
            "--no-sync",
            f"--pgdata={self._data}",
        )

    def start(self) -> None:
        """Returns when it answers. The port stays the same from the first start on."""
        self.port = self.port or _free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
            "log_min_messages": "fatal",
            **self._settings,
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._as,
            )
        until = time.monotonic() + START
        while not self._answers():
            ended = self._process.poll()
            assert ended is None, f"PostgreSQL ended: {(self.folder / 'log').read_text()}"
            assert time.monotonic() < until, "PostgreSQL does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        ready = [self._bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it in order, cutting whoever is connected; SIGQUIT as a crash would."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP)
            raise

    def remove(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", **settings: str) -> str:
        query = "&".join(f"{key}={value}" for key, value in settings.items())
        return f"postgresql://sidecar@127.0.0.1:{self.port}/{database}" + (
            f"?{query}" if query else ""
        )

    def sql(self, *statements: str, database: str = "postgres") -> str:
        """Run statements; what they print, without decoration."""
        commands = [part for each in statements for part in ("-c", each)]
        return self._run(
            "psql", "-q", "-A", "-t", "-X", "-v", "ON_ERROR_STOP=1", *commands, self.url(database)
        ).strip()

    def schema(self, name: str) -> str:
        """The URL of an empty place of its own."""
        self.sql(f'CREATE SCHEMA IF NOT EXISTS "{name}"')
        return self.url(search_path=name)

    def _run(self, program: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [self._bin / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
            timeout=60,
            env={"PATH": os.environ.get("PATH", "")},
            **self._as,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"
        return done.stdout


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server, gone at the end."""
    server = Postgres()
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.remove()


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
