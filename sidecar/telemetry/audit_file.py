"""The files of an audit trail, as one thread writes them. Nothing here runs on the loop.

Several processes may write one trail: each batch is written under a lock (flock) on the file,
after a look at whether somebody else has written meanwhile. What a killed writer left is put
right by the next one and told in a record of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sidecar.telemetry.audit_chain import LONGEST, Head, archive, chained, link_of, rotated
from sidecar.wire import json

log = logging.getLogger("sidecar.audit")

LOCK_WAIT: Final = 2.0
"""Seconds to wait for another process that writes."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES: Final = 16
_NEAR: Final = 64 << 10


def _opened(path: Path) -> int:
    """Its descriptor; the file is made where there is none. Raises OSError."""
    try:
        return os.open(path, _FLAGS, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        # The system's own words for it are about too many of them.
        what = "is a symbolic link, which is not followed; name the file itself"
        raise OSError(errno.ELOOP, what, str(path)) from None


class NotATrail(OSError):
    """The file holds something else, and is left alone."""

    def __init__(self, path: Path) -> None:
        what = "does not end with a record of an audit trail; move it away, or name another file"
        super().__init__(errno.EINVAL, what, str(path))


class ChainFile:
    """``append`` writes records behind what is there. ``rotate`` is in bytes.

    ``stamp`` gives the keys that every record begins with (time, node).
    """

    def __init__(self, path: Path, rotate: int, stamp: dict[str, object] | None = None) -> None:
        self.path: Final = path
        self._rotate = rotate
        self._stamp = stamp or {}
        self._fd = -1
        self._inode = -1
        self._size = -1
        self._dirty = False
        self._guard = threading.Lock()
        self.head = Head()

    def append(self, records: Sequence[bytes]) -> Head:
        """Write all of them, or nothing; returns the new head.

        When it returns they are with the kernel: killing the process loses none.

        Raises:
            OSError: the disk, the folder, or another process that holds the lock.
        """
        noted = self._lock()
        try:
            self._write([*noted, *records])
        finally:
            self._unlock()
        return self.head

    def sync(self) -> None:
        """To the disk, so that a loss of power loses none either; from any thread, while others
        append. Raises OSError."""
        with self._guard:
            if not self._dirty or self._fd < 0:
                return
            self._dirty = False
            fd = os.dup(self._fd)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Idempotent. Raises OSError."""
        try:
            self.sync()
        finally:
            self._drop()

    # ---------------------------------------------------------------------------- writing

    def _write(self, records: Sequence[bytes]) -> None:
        head, size = self.head, 0
        lines: list[bytes] = []
        for record in records:
            if self._size + size > 0 and self._size + size >= self._rotate:
                self._put(lines, head)
                lines, size = [], 0
                self._renew()
            line, head = chained(head, record)
            lines.append(line)
            size += len(line)
        self._put(lines, head)

    def _put(self, lines: Sequence[bytes], head: Head) -> None:
        if not lines:
            return
        view = memoryview(b"".join(lines))
        size = len(view)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # A part of it may be there: a full disk takes what fits.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._dirty = True
        self._size += size
        self.head = head

    def _renew(self) -> None:
        """The full file becomes an archive, and a new one takes its place, locked as well."""
        os.fdatasync(self._fd)
        self._dirty = False
        first = link_of(os.pread(self._fd, LONGEST, 0).partition(b"\n")[0])
        if first is None:
            raise NotATrail(self.path)
        target = archive(self.path, first.seq)
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        os.rename(self.path, target)
        fresh = os.open(self.path, _FLAGS | os.O_EXCL, 0o600)
        fcntl.flock(fresh, fcntl.LOCK_EX)
        self._drop()
        self._fd, self._inode, self._size = fresh, os.fstat(fresh).st_ino, 0
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        log.info("audit: a full file is now %s; its last record is %s", target, self.head)

    # ---------------------------------------------------------------------------- locking

    def _lock(self) -> list[bytes]:
        """Have the file, locked, and know its end; returns records about what was found there."""
        deadline = time.monotonic() + LOCK_WAIT
        for _ in range(_TRIES):
            if self._fd < 0:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fd, self._inode, self._size = _opened(self.path), -1, -1
                os.fchmod(self._fd, 0o600)
            self._take(deadline)
            here = os.fstat(self._fd)
            try:
                there = os.stat(self.path, follow_symlinks=False)
            except FileNotFoundError:
                there = None
            if there is None or (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev):
                self._drop()
                continue
            try:
                if here.st_ino == self._inode and here.st_size == self._size:
                    return []
                self._inode = here.st_ino
                return self._look(here.st_size)
            except BaseException:
                self._drop()
                raise
        raise OSError(errno.ESTALE, "the file is replaced again and again", str(self.path))

    def _take(self, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    why = "another process holds the file locked"
                    raise TimeoutError(errno.ETIMEDOUT, why, str(self.path)) from None
                time.sleep(0.001)

    def _unlock(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _drop(self) -> None:
        with self._guard:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = self._inode = self._size = -1

    def _look(self, size: int) -> list[bytes]:
        """Find the last record of a file that is another than we left it."""
        head, torn = tail(self._fd, size, self.path)
        noted = []
        if torn:
            # Nobody was answered on the word of half a record.
            os.ftruncate(self._fd, size - len(torn))
            digest = hashlib.sha256(torn).hexdigest()
            noted.append(self._about("torn", bytes=len(torn), sha256=digest))
            log.warning("audit: %s ended in half a record; a writer was killed", self.path)
        self._size = size - len(torn)
        if head is None:
            head = self._archived()
        if head.seq < self.head.seq:
            # Somebody cut it off, or took it away. The chain goes on from what we know, so that
            # what is missing is missed.
            log.error(
                "audit: %s ends with record %d, and %d were written: somebody has changed it",
                self.path,
                head.seq,
                self.head.seq,
            )
            noted.append(self._about("cut", found=head.seq, written=self.head.seq))
            head = self.head
        self.head = head
        return noted

    def _archived(self) -> Head:
        """The end of the newest archive; the beginning of a chain where there is none."""
        for path in reversed(rotated(self.path)):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                head, _ = tail(fd, os.fstat(fd).st_size, path)
            finally:
                os.close(fd)
            if head is not None:
                return head
        return Head()

    def _about(self, kind: str, **said: object) -> bytes:
        return json.encode({"kind": kind, **self._stamp, **said})


def tail(fd: int, size: int, path: Path) -> tuple[Head | None, bytes]:
    """The last whole record (``None``: there is none) and what stands half behind it.

    Raises:
        NotATrail: the last whole line is no record.
        OSError: it cannot be read.
    """
    for reach in (_NEAR, 2 * LONGEST):
        start = max(size - reach, 0)
        data = os.pread(fd, size - start, start)
        body, newline, torn = data.rpartition(b"\n")
        if not newline:
            if not start and b'{"seq":'.startswith(torn[:7]):
                return None, torn  # nothing, or half of the first record
            continue
        _, found, line = body.rpartition(b"\n")
        if start and not found:
            continue
        link = link_of(line)
        if link is None:
            break
        return Head(link.seq, hashlib.sha256(line).hexdigest()), torn
    raise NotATrail(path)
