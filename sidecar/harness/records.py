"""What the sidecar knows of each work, one file a work, beside the worktrees themselves.

Records live and end with the worktrees they are about: not in the store, which may be in memory,
or shared by sidecars whose disks are not. They say what a worktree cannot: where it began, how
far making or removing it had come when the power went, and the names before they were slugs.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sidecar.harness.naming import WorkKey, WorkName, is_slug

__all__ = ["Records", "Stage", "WorkRecord"]

log = logging.getLogger(__name__)

_LARGEST = 64 << 10


class Stage(enum.StrEnum):
    """How far it is. Nothing but a ``ready`` work is ever handed to an agent."""

    MAKING = "making"
    READY = "ready"
    REMOVING = "removing"
    """Put aside, to be looked at once more; whole."""
    DELETING = "deleting"
    """Everything in it is in the commit ``head``; some of it may be deleted already."""


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """One work.

    ``base_ref`` is the full name of the branch it began at, ``base`` the commit there then.
    ``admin`` names its directory below ``worktrees/`` of the repository. ``head`` is where its
    branch is while it is removed, or made again. ``created`` is in seconds since the epoch.

    A work that was found on disk without a record has no ``name``, and its base is a guess: the
    merge base, empty when there is none.
    """

    key: WorkKey
    name: WorkName | None
    base_ref: str
    base: str
    admin: str
    created: float
    stage: Stage = Stage.READY
    head: str = ""


class Records:
    """The records in one directory. Each write is durable when it returns."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writing = threading.Lock()

    def get(self, key: WorkKey) -> WorkRecord | None:
        """The record of a work, or ``None``; one that is damaged is none."""
        return self._read(self._path(key))

    def put(self, record: WorkRecord) -> None:
        path = self._path(record.key)
        with self._writing:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, msgspec.json.encode(record))

    def delete(self, key: WorkKey) -> None:
        path = self._path(key)
        with self._writing:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                _sync(path.parent)
            # Directories of principals that have no works any more would only pile up.
            with contextlib.suppress(OSError):
                for parent in list(path.parents)[:3]:
                    parent.rmdir()

    def all(self) -> Iterator[WorkRecord]:
        """Every record that can be read, in the order of their slugs."""
        for path in sorted(self._directory.glob("*/*/*/*.json")):
            record = self._read(path)
            if record is not None and self._path(record.key) == path:
                yield record

    def _path(self, key: WorkKey) -> Path:
        return self._directory.joinpath(*key.parts[:3], f"{key.work}.json")

    def _read(self, path: Path) -> WorkRecord | None:
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST)
        except FileNotFoundError:
            return None
        try:
            record = msgspec.json.decode(data, type=WorkRecord)
            plain = all(is_slug(part) for part in (*record.key.parts, record.admin))
        except msgspec.DecodeError:
            plain = False
        if not plain:
            log.warning("the record %s is damaged; the worktree itself is looked at instead", path)
            return None
        return record


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step; it has the old content or the new, whatever happens."""
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode
    )
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
