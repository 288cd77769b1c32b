"""What is really in a worktree, file by file, and how exactly that is removed.

This is the look that a removal rests on. It believes no index (an agent can mark files in it as
unchanged), no excludes outside of the tree, no time stamps: every file is read and compared with
the commit. Removing then unlinks only what was seen here and is still the same; whatever turns
up meanwhile stops it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.harness.git_checkout import Repository
from sidecar.harness.worktree_guard import Reason, Refused

__all__ = ["Changed", "Contents", "look", "remove"]

_BLOCK = 1 << 20
_MOST = 2_000_000
"""Files of one worktree that are looked at."""
_LONGEST = 600.0
"""Seconds that looking may take."""
_GITLINK = "160000"
_DEEPEST = 256
_BARE = {"objects", "refs", "HEAD"}
"""What a directory holds that is itself a (bare) repository."""
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55"
"""The first bytes of a ``CACHEDIR.TAG`` (Cache Directory Tagging Specification)."""

Seen = tuple[int, int, int, int, int, int]


class Changed(Exception):
    """Something is not as it was seen. ``path`` is relative to the worktree."""

    def __init__(self, path: bytes) -> None:
        super().__init__(os.fsdecode(path))
        self.path = path


@dataclass(slots=True)
class Contents:
    """A worktree whose every file is known: ``files`` with what identified them when they were
    seen, ``directories`` in the order in which they can be removed."""

    files: dict[bytes, Seen] = field(default_factory=dict)
    directories: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: str
    sha: str


def look(repository: Repository, path: Path, head: str) -> Contents:
    """Look at everything in the worktree at ``path``, which should hold the commit ``head``.

    Raises Refused for anything that removing it would lose.
    """
    looking = _Look(repository, path, _tree(repository, head))
    try:
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            looking.device = os.fstat(root).st_dev
            looking.walk(root, b"", 0)
            looking.conclude(root)
        finally:
            os.close(root)
    except Changed as change:
        raise Refused(Reason.CHANGED_MEANWHILE, f"{_shown(change.path)} changed") from None
    except OSError as error:
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        reason = Reason.CHANGED_MEANWHILE if gone else Reason.GIT_FAILED
        raise Refused(reason, f"{path} cannot be looked at: {error.strerror}") from None
    return looking.contents


def remove(path: Path, contents: Contents) -> None:
    """Remove what was seen, and nothing else. Raises Changed at the first thing that differs."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        by_directory: dict[bytes, list[bytes]] = {}
        for name in contents.files:
            by_directory.setdefault(os.path.dirname(name), []).append(os.path.basename(name))
        for directory in contents.directories:
            _empty(root, directory, by_directory.get(directory, ()), contents)
        _empty(root, b"", by_directory.get(b"", ()), contents)
    finally:
        os.close(root)
    try:
        path.rmdir()
    except OSError:
        raise Changed(b".") from None


def _empty(root: int, directory: bytes, names: list[bytes] | tuple[()], contents: Contents) -> None:
    with _opened(root, directory) as fd:
        for name in names:
            whole = os.path.join(directory, name)
            try:
                if _seen(os.stat(name, dir_fd=fd, follow_symlinks=False)) != contents.files[whole]:
                    raise Changed(whole)
                os.unlink(name, dir_fd=fd)
            except OSError:
                raise Changed(whole) from None
    if directory:
        with _opened(root, os.path.dirname(directory)) as parent:
            try:
                os.rmdir(os.path.basename(directory), dir_fd=parent)
            except OSError:
                raise Changed(directory) from None


@contextlib.contextmanager
def _opened(root: int, relative: bytes) -> Iterator[int]:
    """A directory below ``root``, reached without following a single symlink."""
    fd = os.dup(root)
    try:
        for part in relative.split(b"/") if relative else ():
            try:
                deeper = os.open(
                    part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd
                )
            except OSError:
                raise Changed(relative) from None
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)


def _seen(status: os.stat_result) -> Seen:
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class _Look:
    def __init__(self, repository: Repository, path: Path, tree: dict[bytes, _Entry]) -> None:
        self.contents = Contents()
        self.device = 0
        self._repository = repository
        self._path = path
        self._tree = tree
        self._directories = set(_parents(tree))
        self._met: set[bytes] = set()
        self._differs: list[bytes] = []
        self._unknown: list[bytes] = []
        self._looked = 0
        self._until = time.monotonic() + _LONGEST

    def _one_more(self) -> None:
        self._looked += 1
        if self._looked > _MOST or time.monotonic() > self._until:
            raise Refused(Reason.TOO_LARGE, "there is more in it than can be looked at")

    def walk(self, fd: int, prefix: bytes, depth: int) -> None:
        """Everything below one directory that the commit has, too."""
        if depth > _DEEPEST:
            raise Refused(Reason.DIRTY, f"{_shown(prefix)} lies too deep")
        for name in map(os.fsencode, os.listdir(fd)):
            self._one_more()
            whole = prefix + name
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if name == b".git":
                if prefix:
                    raise Refused(Reason.NESTED_REPOSITORY, f"{_shown(whole)} is a repository")
                self.contents.files[whole] = _seen(status)  # what it holds was checked
                continue
            entry = self._tree.get(whole)
            if entry is not None:
                self._met.add(whole)
            if stat.S_ISDIR(status.st_mode) and (
                whole in self._directories or (entry is not None and entry.mode == _GITLINK)
            ):
                with self._inside(fd, name, whole) as deeper:
                    if entry is not None:
                        self._gitlink(deeper, whole)
                    else:
                        self.walk(deeper, whole + b"/", depth + 1)
                self.contents.directories.append(whole)
            elif entry is not None:
                self._compare(fd, name, whole, status, entry)
            else:
                self._unknown.append(whole + (b"/" if stat.S_ISDIR(status.st_mode) else b""))

    def conclude(self, root: int) -> None:
        """Refuse what differs; tell what is ignored and can be made again from what cannot."""
        for whole, entry in self._tree.items():
            if whole not in self._met and entry.mode != _GITLINK:
                raise Refused(Reason.DIRTY, f"{_shown(whole)} was deleted")
        for whole in self._differs:
            if not self._converted(whole):
                raise Refused(Reason.DIRTY, f"{_shown(whole)} was changed")
        level, kept = self._unknown, b""
        for _ in range(_DEEPEST):
            if not level:
                break
            level, valuable = self._sort(root, level)
            kept = kept or valuable
        if kept or level:
            raise Refused(Reason.IGNORED_FILES, f"{_shown(kept)} is ignored, and only here")

    # ------------------------------------------------------------------------- what is known

    @contextlib.contextmanager
    def _inside(self, fd: int, name: bytes, whole: bytes) -> Iterator[int]:
        """A directory that is looked into, and can be removed after what is in it."""
        deeper = os.open(
            name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd
        )
        try:
            if os.fstat(deeper).st_dev != self.device:
                raise Refused(Reason.MOUNT, f"{_shown(whole)} is another file system")
            yield deeper
        finally:
            os.close(deeper)

    def _gitlink(self, fd: int, whole: bytes) -> None:
        if os.listdir(fd):
            raise Refused(Reason.SUBMODULE, f"the submodule {_shown(whole)} is checked out")

    def _compare(
        self, fd: int, name: bytes, whole: bytes, status: os.stat_result, entry: _Entry
    ) -> None:
        self.contents.files[whole] = _seen(status)
        if entry.mode == "120000":
            same = stat.S_ISLNK(status.st_mode) and entry.sha == self._hash_text(
                os.readlink(name, dir_fd=fd)
            )
        elif entry.mode in ("100644", "100755") and stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            if executable != (entry.mode == "100755"):
                raise Refused(Reason.DIRTY, f"the mode of {_shown(whole)} was changed")
            if not self._same_file(fd, name, status, entry):
                self._differs.append(whole)
            return
        else:
            same = False
        if not same:
            raise Refused(Reason.DIRTY, f"{_shown(whole)} was changed")

    def _same_file(self, fd: int, name: bytes, status: os.stat_result, entry: _Entry) -> bool:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            digest = self._new_hash(status.st_size)
            while block := os.read(opened, _BLOCK):
                digest.update(block)
                if time.monotonic() > self._until:
                    raise Refused(Reason.TOO_LARGE, f"{_shown(name)} is too large to look at")
            if _seen(os.fstat(opened)) != _seen(status):
                raise Refused(Reason.CHANGED_MEANWHILE, f"{_shown(name)} is being written")
        finally:
            os.close(opened)
        return digest.hexdigest() == entry.sha

    def _hash_text(self, data: bytes) -> str:
        digest = self._new_hash(len(data))
        digest.update(data)
        return digest.hexdigest()

    def _new_hash(self, size: int) -> hashlib._Hash:
        # The header of a loose object: gitformat-loose(5).
        return hashlib.new(self._repository.algorithm, b"blob %d\0" % size, usedforsecurity=False)

    def _converted(self, whole: bytes) -> bool:
        """Whether it only differs by what attributes in the tree ask for, such as line ends."""
        if b"\n" in whole:
            return False
        done = self._repository.git.run(
            "hash-object", "--stdin-paths", stdin=whole + b"\n", ok=(0, 128),
            worktree=self._path, inside=True,
        )  # fmt: skip
        return done.code == 0 and done.text == self._tree[whole].sha

    # ----------------------------------------------------------------------- what is unknown

    def _sort(self, root: int, level: list[bytes]) -> tuple[list[bytes], bytes]:
        """Look at unknown files and directories: what lies in those that are not ignored comes
        back to be looked at next, and with it one ignored thing that would be lost.

        Raises Refused at the first that is not ignored.
        """
        ignored = self._ignored(level)
        deeper: list[bytes] = []
        valuable = b""
        for whole in level:
            name = whole.rstrip(b"/")
            if name == whole:
                if name not in ignored:
                    raise Refused(Reason.DIRTY, f"{_shown(name)} is new")
                valuable = name
                continue
            found = Contents()
            with _opened(root, os.path.dirname(name)) as parent:
                holds = self._collect(parent, os.path.basename(name), name, found, 0)
            with _opened(root, name) as fd:
                children = [os.fsencode(child) for child in os.listdir(fd)]
                disposable = not holds or _DISPOSABLE.get(os.path.basename(name), _tagged)(
                    fd, name, found
                )
            # A cache may hold a .gitignore that ignores all there is, and itself.
            below = [os.path.join(name, child) for child in children]
            if disposable and (
                not holds or name in ignored or len(self._ignored(below)) == len(below)
            ):
                self.contents.files.update(found.files)
                self.contents.directories[:0] = found.directories
            elif name in ignored:
                valuable = name
            else:
                # What is in it is looked at later, and so comes before it.
                self.contents.directories.insert(0, name)
                deeper += [child + (b"/" if child in found.directories else b"") for child in below]
        return deeper, valuable

    def _ignored(self, names: list[bytes]) -> set[bytes]:
        """Which of them the ``.gitignore`` files of the tree ignore."""
        if not names:
            return set()
        # It takes no literal pathspecs; behind a `./` nothing else can be meant.
        done = self._repository.git.run(
            "check-ignore", "-z", "--stdin", "--no-index",
            stdin=b"".join(b"./" + name + b"\0" for name in names), ok=(0, 1),
            worktree=self._path, inside=True, env={"GIT_LITERAL_PATHSPECS": "0"},
        )  # fmt: skip
        return {name[2:].rstrip(b"/") for name in done.out.split(b"\0") if name}

    def _collect(self, fd: int, name: bytes, whole: bytes, into: Contents, depth: int) -> bool:
        """See everything below a directory the commit does not have; whether there is a file."""
        if depth > _DEEPEST:
            raise Refused(Reason.DIRTY, f"{_shown(whole)} lies too deep")
        holds = False
        with self._inside(fd, name, whole) as deeper:
            children = os.listdir(deeper)
            if ".git" in children or set(children) >= _BARE:
                raise Refused(Reason.NESTED_REPOSITORY, f"{_shown(whole)} is a repository")
            for text in children:
                self._one_more()
                child = os.fsencode(text)
                below = whole + b"/" + child
                status = os.stat(child, dir_fd=deeper, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    holds |= self._collect(deeper, child, below, into, depth + 1)
                else:
                    into.files[below] = _seen(status)
                    holds = True
        into.directories.append(whole)
        return holds


def _tagged(fd: int, whole: bytes, found: Contents) -> bool:
    try:
        tag = os.open("CACHEDIR.TAG", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
    except OSError:
        return False
    try:
        return os.read(tag, len(_CACHE_TAG)) == _CACHE_TAG
    finally:
        os.close(tag)


def _virtual_environment(fd: int, whole: bytes, found: Contents) -> bool:
    return whole + b"/pyvenv.cfg" in found.files


def _bytecode(fd: int, whole: bytes, found: Contents) -> bool:
    return all(name.endswith(b".pyc") for name in found.files)


def _always(fd: int, whole: bytes, found: Contents) -> bool:
    return True


_DISPOSABLE: dict[bytes, Callable[[int, bytes, Contents], bool]] = {
    b"node_modules": _always,
    b"__pycache__": _bytecode,
    b".venv": _virtual_environment,
    b"venv": _virtual_environment,
}
"""Ignored directories that are made again from what is committed; others need a CACHEDIR.TAG."""


def _tree(repository: Repository, head: str) -> dict[bytes, _Entry]:
    """Every file of a commit, by path."""
    done = repository.git.run("ls-tree", "-r", "-z", "--full-tree", head)
    found = {}
    for line in done.out.split(b"\0"):
        if line:
            meta, _, path = line.partition(b"\t")
            mode, _, sha = meta.decode("ascii").split(" ")
            found[path] = _Entry(mode, sha)
    return found


def _parents(tree: dict[bytes, _Entry]) -> Iterator[bytes]:
    for path in tree:
        while path := os.path.dirname(path):
            yield path


def _shown(path: bytes) -> str:
    """A path for a person: what cannot be printed is escaped."""
    return ascii(os.fsdecode(path))[1:-1]
