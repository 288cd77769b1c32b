"""A repository as people have one, worked in with plain git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
}


def git(directory: Path, *args: str, ok: bool = True, env: Mapping[str, str] | None = None) -> str:
    """Plain git in a directory, as a person or an agent runs it; its output."""
    done = subprocess.run(
        ["git", *args],
        cwd=directory,
        env={**ENV, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not ok or done.returncode == 0, f"git {args}: {done.stdout}{done.stderr}"
    return done.stdout.rstrip("\n")


def lines(changes: Mapping[int, str] | None = None, prefix: str = "line") -> str:
    """Twelve lines, some of them changed."""
    found = [f"{prefix} {number}" for number in range(12)]
    for number, text in (changes or {}).items():
        found[number] = text
    return "\n".join(found) + "\n"


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def commit(directory: Path, message: str, *extra: str) -> str:
    """Commit everything there is; the new commit."""
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", message, *extra)
    return git(directory, "rev-parse", "HEAD")


def repository(directory: Path) -> Path:
    """A repository with one commit of two files on ``main``."""
    directory.mkdir(parents=True)
    git(directory, "init", "--quiet", "--initial-branch", "main")
    write(directory / "a.txt", lines())
    write(directory / "b.txt", lines(prefix="other"))
    commit(directory, "init")
    return directory
