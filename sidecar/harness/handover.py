"""Files of ours that an agent of another user works with: who has to own them.

With ``children.user`` an agent runs as another user, in a repository that belongs to that user.
What our git and we write there would be ours: a branch it could not move, a directory of objects
it could not add to. So it is given away once it is made.

The agent writes those directories too, at any time. Nothing is therefore followed: every step is
a descriptor of a directory, opened without following a link, and only what is ours, and a file
only where it has no other name, is given away.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Owner", "chain", "closed", "everything", "tree"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom the agents run as."""

    uid: int
    gid: int


def tree(top: Path, owner: Owner) -> None:
    """Give away a directory where nobody else is, and all that is in it. Raises OSError."""
    fd = os.open(top, _DIRECTORY)
    try:
        _tree(fd, owner, links=True)
    finally:
        os.close(fd)


def _tree(fd: int, owner: Owner, *, links: bool) -> None:
    _give(fd, owner)
    for _, directories, files, here in os.fwalk(".", dir_fd=fd):
        for name in (*directories, *files):
            try:
                _give_entry(name, here, owner, links=links)
            except OSError:
                if links:
                    raise  # nobody else is there: it is no race


def everything(top: Path, owner: Owner, *below: str) -> None:
    """Give away what is ours of a directory that others write; ``below`` leads to it from
    ``top``."""
    with contextlib.suppress(OSError):
        fd = _opened(top, below)
        try:
            _tree(fd, owner, links=False)
        finally:
            os.close(fd)


def _opened(top: Path, below: Sequence[str]) -> int:
    fd = os.open(top, _DIRECTORY)
    for part in below:
        try:
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def chain(top: Path, parts: Sequence[str], owner: Owner) -> None:
    """Give away what is ours of the directories of a path below ``top``, and what it leads to."""
    try:
        fd = os.open(top, _DIRECTORY)
    except OSError:
        return
    try:
        for part in parts[:-1]:
            inner = os.open(part, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
            _give(fd, owner)
        _give_entry(parts[-1], fd, owner, links=False)
    except OSError:
        return  # somebody is moving it about: it is theirs then
    finally:
        os.close(fd)


def _give(fd: int, owner: Owner) -> None:
    if os.fstat(fd).st_uid == os.geteuid():
        os.fchown(fd, owner.uid, owner.gid)


def _give_entry(name: str, directory: int, owner: Owner, *, links: bool) -> None:
    """What is given away is opened first: between looking and giving it could become another.

    A link cannot be: ``links`` is for where nobody else is.
    """
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if status.st_uid != os.geteuid():
        return
    if stat.S_ISLNK(status.st_mode):
        if links:
            os.chown(name, owner.uid, owner.gid, dir_fd=directory, follow_symlinks=False)
        return
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=directory)
    try:
        now = os.fstat(fd)
        if stat.S_ISDIR(now.st_mode) or (stat.S_ISREG(now.st_mode) and now.st_nlink == 1):
            _give(fd, owner)
    finally:
        os.close(fd)


def closed(path: Path, owner: Owner) -> Path | None:
    """The first directory on the way to ``path``, itself included, that they cannot enter.

    By mode bits alone: access lists can only be told by trying.
    """
    for directory in (*reversed(path.parents), path):
        try:
            status = directory.stat()
        except OSError:
            return directory
        if status.st_uid == owner.uid:
            bit = stat.S_IXUSR
        elif status.st_gid == owner.gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not status.st_mode & bit:
            return directory
    return None
