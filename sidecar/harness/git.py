"""Git, run so that nothing an agent can write decides what is run.

An agent works in a worktree and so can write the repository that it belongs to: its config,
hooks, attributes, excludes. Config alone can make git run programs in more than a dozen ways,
and which keys those are changes with every version of git; overriding them one by one is a race
that is lost. So no git of ours ever reads that config: each runs on a directory of our own
(``GIT_DIR``), whose config is ours and whose refs, packed refs, reflogs and objects are links to
the repository's. What is left of the repository is data.

The environment is made from nothing: no ``GIT_*`` of ours or of whoever started us, no global
and no system config, no pager, editor, prompt, credential helper, and no transport at all unless
a fetch is meant.

Sources: gitrepository-layout(5), git(1) "Environment Variables", git-config(1).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar import privileges, processes

__all__ = ["CONFIG", "Done", "Git", "GitError", "plain_file"]

TIMEOUT = 60.0
"""Seconds any git gets unless its caller says otherwise."""
OUTPUT = 64 << 20
"""Bytes of output any git gets unless its caller says otherwise."""

_NEVER_OURS = ("hooks", "info", "commondir", "config.worktree", "modules", "worktrees")
"""What would have a say if it were in our directory, and never is."""
_STDERR = 8 << 10
_CHUNK = 1 << 16

CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tbare = true
\tlogAllRefUpdates = true
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tfsmonitor = false
\tuntrackedCache = false
\tsplitIndex = false
\tcommitGraph = false
\tmultiPackIndex = false
\tautocrlf = false
\tsymlinks = true
\tfileMode = true
\tignoreCase = {ignorecase}
\tprecomposeUnicode = {precomposeunicode}
\tprotectHFS = true
\tprotectNTFS = true
[extensions]
{extensions}
[gc]
\tauto = 0
[maintenance]
\tauto = false
[submodule]
\trecurse = false
[fetch]
\trecurseSubmodules = false
\tfsckObjects = false
"""
"""The only config a git of ours reads. Caches that an agent could fill are not believed."""


class GitError(Exception):
    """A git failed, took too long or said too much. ``code`` is its exit status, or ``None``."""

    def __init__(self, what: str, why: str, code: int | None = None) -> None:
        super().__init__(f"git {what}: {why}")
        self.what = what
        self.why = why
        self.code = code


@dataclass(frozen=True, slots=True)
class Done:
    """A git that ended: exit status, output, and the end of what it said on stderr."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """The output as text, without the newline at its end."""
        return self.out.decode("utf-8", "surrogateescape").rstrip("\n")


class Git:
    """Git over one directory of ours. Every method blocks: call from a thread.

    ``home`` is an empty directory of ours, where git runs and which it takes for its home.
    ``inherited`` are descriptors that every git holds open: a lock that is theirs, too.
    """

    def __init__(
        self, git_dir: Path, home: Path, program: str | None = None, inherited: tuple[int, ...] = ()
    ) -> None:
        found = program or shutil.which("git", path=_search_path())
        if found is None:
            raise GitError("", "is not installed, or not on PATH")
        self.git_dir = git_dir
        self.home = home
        self.config = b""
        """What our config has to be; empty while there is none."""
        self._inherited = inherited
        self._program = found

    def run(
        self,
        *args: str,
        stdin: bytes = b"",
        ok: Sequence[int] = (0,),
        worktree: Path | None = None,
        index: Path | None = None,
        objects: tuple[Path, Path] | None = None,
        inside: bool = False,
        env: Mapping[str, str] | None = None,
        holds: bool = True,
        timeout: float = TIMEOUT,
        limit: int = OUTPUT,
    ) -> Done:
        """Run one git to its end.

        ``worktree`` and ``index`` are the ones it works with (none by default); ``inside`` runs
        it there. ``objects`` are (where it writes objects, where else it reads them). Without
        ``holds`` it gets no descriptor of ours: it may leave something running. Raises GitError
        when its exit status is not in ``ok``, after ``timeout`` seconds, and when it writes more
        than ``limit`` bytes.
        """
        self._check(args[0])
        environment = self._environment()
        if worktree is not None:
            environment["GIT_WORK_TREE"] = str(worktree)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        if objects is not None:
            written, read = objects
            environment["GIT_OBJECT_DIRECTORY"] = str(written)
            environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = _quoted(read)
        environment.update(env or {})
        cwd = worktree if inside and worktree is not None else self.home
        bounds = _Bounds(args[0], timeout, limit, self._inherited if holds else ())
        done = _run([self._program, *args], environment, cwd, stdin, bounds)
        if done.code not in ok:
            raise GitError(args[0], done.err.strip() or f"exit status {done.code}", done.code)
        return done

    def version(self) -> tuple[int, int]:
        """Of the git that is run: major and minor."""
        words = self.run("version").text.split()
        try:
            major, minor = words[2].split(".")[:2]
            return int(major), int(minor)
        except (IndexError, ValueError):
            raise GitError("version", f"says {' '.join(words)!r}, which is no version") from None

    def _check(self, what: str) -> None:
        """Refuse to run on a directory that is not as we made it.

        Who runs as our user can write it; this notices that, and does not prevent it.
        """
        if not self.config:
            return
        try:
            same = plain_file(self.git_dir / "config", len(self.config)) == self.config
        except OSError:
            same = False
        if not same or any(os.path.lexists(self.git_dir / name) for name in _NEVER_OURS):
            raise GitError(what, f"{self.git_dir} was changed; start the sidecar again")

    def _environment(self) -> dict[str, str]:
        environment = {
            "PATH": _search_path(),
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home),
            "LC_ALL": "C",
            "TZ": "UTC",
            "PAGER": "cat",
            "GIT_DIR": str(self.git_dir),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            # Replacements would let one commit pass for another.
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            # An empty list: no transport is allowed.
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS": "false",
            "GIT_PAGER": "cat",
            "GIT_EDITOR": "false",
            "GIT_SEQUENCE_EDITOR": "false",
            # Whoever reads a reflog sees who moved the branch.
            "GIT_AUTHOR_NAME": "sidecar",
            "GIT_AUTHOR_EMAIL": "sidecar@localhost",
            "GIT_COMMITTER_NAME": "sidecar",
            "GIT_COMMITTER_EMAIL": "sidecar@localhost",
        }
        if "TMPDIR" in os.environ:
            environment["TMPDIR"] = os.environ["TMPDIR"]
        return environment


def plain_file(path: Path, limit: int = 4096) -> bytes | None:
    """The content of a small regular file, ``None`` when there is nothing.

    Raises OSError for a symlink, a pipe, a directory, or a file of more than ``limit`` bytes:
    reading it must neither lead elsewhere nor block.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is not a regular file")
        data = os.read(fd, limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise OSError(f"{path} is longer than {limit} bytes")
    return data


def _search_path() -> str:
    """PATH without what is relative: git runs in directories that agents write."""
    parts = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(part for part in parts if os.path.isabs(part)) or os.defpath


def _quoted(path: Path) -> str:
    """For a list of paths that git splits at colons."""
    text = str(path)
    if ":" not in text and not text.startswith('"'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True)
class _Bounds:
    what: str
    timeout: float
    limit: int
    inherited: tuple[int, ...]

    def late(self) -> GitError:
        return GitError(self.what, f"took longer than {self.timeout:g} s")


def _run(argv: list[str], env: dict[str, str], cwd: Path, stdin: bytes, bounds: _Bounds) -> Done:
    try:
        # Of another user's repository it could read little, and write nothing.
        with privileges.lent(privileges.FILES):
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=bounds.inherited,
                bufsize=0,
            )
    except (OSError, ValueError) as error:
        raise GitError(bounds.what, f"could not be started: {error}") from None
    processes.claimed.add(process.pid)
    try:
        out, err = _exchange(process, stdin, bounds)
        return Done(process.wait(), out, err)
    except BaseException:
        # Its own helpers too: a fetch has a transport below it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        processes.claimed.discard(process.pid)


def _exchange(process: subprocess.Popen[bytes], stdin: bytes, bounds: _Bounds) -> tuple[bytes, str]:
    """Feed it, and take what it says until it has closed both outputs."""
    deadline = time.monotonic() + bounds.timeout
    out = bytearray()
    err = bytearray()
    left = memoryview(stdin)
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                raise bounds.late()
            for key, _ in ready:
                if process.stdin is not None and key.fileobj is process.stdin:
                    left = _feed(process.stdin.fileno(), left)
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.data is out:
                    out += data
                    if len(out) > bounds.limit:
                        raise GitError(bounds.what, f"wrote more than {bounds.limit} bytes")
                else:
                    err += data
                    del err[:-_STDERR]
        # Both outputs are closed; what still runs without them is no longer waited for long.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(1.0, deadline - time.monotonic()))
            return bytes(out), err.decode("utf-8", "replace")
    raise bounds.late()


def _feed(fd: int, data: memoryview) -> memoryview:
    try:
        return data[os.write(fd, data[:_CHUNK]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:  # it wants no more, and its exit status says why
        return data[:0]
