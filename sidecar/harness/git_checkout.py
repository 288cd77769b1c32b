"""A checkout: a repository of the operator's that agents may work in, as our git sees it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from sidecar.harness import handover
from sidecar.harness.git import CONFIG, Done, Git, GitError, plain_file
from sidecar.harness.naming import BRANCHES

__all__ = ["Checkout", "CheckoutError", "Commit", "Ref", "Repository"]

OLDEST = (2, 38)
"""The first git whose ``merge-tree`` merges without a worktree."""

_SHARED = ("refs", "packed-refs", "objects", "logs", "shallow")
"""What of the repository our git works with; everything else there is not looked at."""
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DWIM = ("refs/heads/", "refs/remotes/")


class CheckoutError(Exception):
    """A checkout cannot be used. Says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout as it is configured.

    ``base`` is where works begin and land: a full ref, or a name below ``refs/heads/`` or
    ``refs/remotes/``; ``None`` for origin's HEAD, else the checkout's current branch. ``fetch``:
    a sweep brings the base up to date first.
    """

    name: str
    path: Path
    base: str | None = None
    fetch: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """A ref: its commit, and the ref it is only another name of (else empty)."""

    sha: str
    symbolic: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its full id, and the first line of its message."""

    sha: str
    subject: str


class Repository:
    """One checkout's repository. Every method blocks: call from a thread.

    ``private`` is a directory of ours for it. Open it before anything else. ``inherited`` are
    descriptors that its gits hold open. ``owner`` is whom its agents run as, ``None`` for us: the
    repository has to belong to that user.
    """

    def __init__(
        self,
        checkout: Checkout,
        private: Path,
        inherited: tuple[int, ...] = (),
        owner: handover.Owner | None = None,
    ) -> None:
        self.checkout = checkout
        self.private = private
        self.owner = owner
        self.common: Path = checkout.path
        self.algorithm = "sha1"
        # What merging would do, by the commits asked about: commits do not change.
        self.verdicts: dict[tuple[str, str, str], str] = {}
        self.git = Git(private / "git", private / "home", inherited=inherited)
        self._head: Path = checkout.path / "HEAD"
        self._scratch = threading.local()
        self._looking: dict[str, threading.Lock] = {}

    # ---------------------------------------------------------------------------- opening

    def open(self) -> None:
        """Find the repository and make our own directory for it anew. Raises CheckoutError."""
        self._head, self.common = self._locate()
        self._check_owner()
        for name in ("index", "scratch", "home"):
            (self.private / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.private.chmod(0o700)
        for leftover in (self.private / "scratch").iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        # Enough of a config to read theirs with: as a file, which runs and includes nothing.
        self._lay_out(CONFIG.format(**_settings({}, self)))
        try:
            if self.git.version() < OLDEST:
                raise self._error(
                    f"needs git {OLDEST[0]}.{OLDEST[1]} or newer, this is {self.git.version()}"
                )
            self._lay_out(CONFIG.format(**_settings(self._settings_of_theirs(), self)))
            self.git.run("rev-parse", "--git-dir")
        except GitError as error:
            raise self._error(str(error)) from None

    def _check_owner(self) -> None:
        """Whether agents that are another user can work in it."""
        if self.owner is None:
            return
        uid, gid = self.owner.uid, self.owner.gid
        shut = handover.closed(self.common, self.owner)
        if shut is not None:
            raise self._error(f"children run as uid {uid}, which cannot enter {shut}")
        for path in (self.common, self.common / "objects", self.common / "refs"):
            # Git asks access(2), for which capabilities do not count.
            if not os.access(path, os.R_OK | os.X_OK):
                raise self._error(f"{path} cannot be read by the sidecar; chmod -R go+rX it")
            if path.stat().st_uid != uid:
                raise self._error(
                    f"children run as uid {uid}, which cannot commit to it; give the repository to "
                    f"that user: chown -R {uid}:{gid} {self.checkout.path}"
                )

    def share(self, ref: str = "") -> None:
        """Give the agents what our git has written for them: a branch, or anything anywhere."""
        if self.owner is None:
            return
        if ref:
            parts = ref.split("/")
            handover.chain(self.common / "refs", parts[1:], self.owner)
            handover.chain(self.common / "logs", parts, self.owner)
            return
        for name in ("objects", "refs", "logs"):
            handover.everything(self.common / name, self.owner)

    def _error(self, why: str) -> CheckoutError:
        return CheckoutError(f"checkout {self.checkout.name!r} ({self.checkout.path}): {why}")

    def _locate(self) -> tuple[Path, Path]:
        """The directory that holds HEAD, and the one that holds everything else."""
        path = self.checkout.path
        if not path.is_absolute():
            raise self._error("is not an absolute path")
        with contextlib.suppress(OSError):
            path = path.resolve(strict=True)
        if not path.is_dir():
            raise self._error("is not a directory; clone the repository there first")
        dot_git = path / ".git"
        try:
            if dot_git.is_dir() and not dot_git.is_symlink():
                found = dot_git
            elif (pointer := plain_file(dot_git)) is not None:
                found = _follow(path, pointer, b"gitdir: ")
            else:
                found = path
            common = found
            pointer = plain_file(found / "commondir")
            if pointer is not None:
                common = _follow(found, pointer, b"")
            head = plain_file(found / "HEAD")
        except OSError as error:
            raise self._error(f"{error}") from None
        if head is None or not (common / "objects").is_dir() or not (common / "refs").is_dir():
            raise self._error("is not a git repository; clone the repository there first")
        return found, common

    def _lay_out(self, config: str) -> None:
        shadow = self.git.git_dir
        if shadow.is_symlink():
            shadow.unlink()
        elif shadow.exists():
            shutil.rmtree(shadow)  # the links in it are removed, not followed
        shadow.mkdir(mode=0o700)
        self.git.config = config.encode()
        (shadow / "config").write_bytes(self.git.config)
        # Never born: nobody's branch, so that no reflog of the repository's HEAD is written.
        (shadow / "HEAD").write_text("ref: refs/sidecar/none\n")
        for name in _SHARED:
            # A repository that keeps no reflogs gets none: ours are thrown away with ours.
            if name != "logs" or (self.common / name).is_dir():
                (shadow / name).symlink_to(self.common / name)

    def _settings_of_theirs(self) -> dict[str, str]:
        """The few settings of theirs that say what form their repository has."""
        config = self.common / "config"
        try:
            data = plain_file(config, 1 << 20)
        except OSError as error:
            raise self._error(str(error)) from None
        if data is None:
            return {}
        wanted = "^(extensions[.].*|core[.](ignorecase|precomposeunicode|repositoryformatversion))$"
        done = self.git.run(
            "config", "--file", "-", "--no-includes", "-z", "--get-regexp", wanted,
            stdin=data or b"\n", ok=(0, 1), timeout=10,
        )  # fmt: skip
        found: dict[str, str] = {}
        for line in done.text.split("\0"):
            key, _, value = line.partition("\n")
            if key:
                found[key.lower()] = value
        return found

    # ------------------------------------------------------------------------------- refs

    def commit(self, ref: str) -> str | None:
        """The commit that a full ref or an id leads to, or ``None``."""
        if not (ref.startswith("refs/") or _SHA.fullmatch(ref)):
            raise ValueError("a full ref or an id is needed")
        done = self.git.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}",
            ok=(0, 1, 128),
        )  # fmt: skip
        return done.text if done.code == 0 and _SHA.fullmatch(done.text) else None

    def branches(self, below: str = BRANCHES) -> dict[str, Ref]:
        """Every ref of a commit whose full name begins so (at a ``/``), or is exactly that."""
        form = "%(refname)%00%(objectname)%00%(objecttype)%00%(symref)"
        done = self.git.run("for-each-ref", f"--format={form}", "--", below.rstrip("/"))
        found = {}
        for line in done.text.splitlines():
            parts = line.split("\0")
            if len(parts) == 4 and parts[2] == "commit":
                found[parts[0]] = Ref(parts[1], parts[3])
        return found

    def branch(self, ref: str) -> Ref | None:
        """One branch, or ``None`` when there is none or it leads to no commit."""
        return self.branches(ref).get(ref)

    def create_branch(self, ref: str, sha: str) -> None:
        """Make a branch that does not exist yet. Raises GitError when it does."""
        self._guard_ref(ref)
        self.git.run(
            "update-ref", "--no-deref", "--create-reflog", "-m", "sidecar: work begun",
            ref, sha, "0" * len(sha),
        )  # fmt: skip
        self.share(ref)

    def delete_branch(self, ref: str, sha: str) -> bool:
        """Delete a branch if it is still there, where ``sha`` says; whether that was so."""
        self._guard_ref(ref)
        done = self.git.run("update-ref", "--no-deref", "-d", ref, sha, ok=(0, 1, 128))
        return done.code == 0

    def _guard_ref(self, ref: str) -> None:
        """Refuse a ref whose file would be written through a link, out of the repository."""
        for top in ("refs", "logs/refs"):
            path = self.common / top
            for part in ref.split("/")[1:]:
                path /= part
                if path.is_symlink():
                    raise GitError("update-ref", f"{path} is a symlink")

    # ------------------------------------------------------------------------------- base

    def base_ref(self) -> str:
        """The full ref where works begin and land. Raises CheckoutError, which says what to do."""
        wanted = self.checkout.base
        if wanted is not None:
            return self._full(wanted)
        with contextlib.suppress(GitError):
            done = self.git.run("symbolic-ref", "--quiet", "refs/remotes/origin/HEAD", ok=(0, 1))
            target = done.text
            if done.code == 0 and target.startswith("refs/remotes/origin/") and self.branch(target):
                return target
        return self._current()

    def _full(self, wanted: str) -> str:
        tops = ("",) if wanted.startswith("refs/") else _DWIM
        candidates = [top + wanted for top in tops]
        found = [ref for ref in candidates if self.branch(ref) is not None]
        if not found:
            raise self._error(f"base {wanted!r} is no branch of it")
        if len(found) > 1:
            raise self._error(f"base {wanted!r} is ambiguous; write {' or '.join(found)}")
        return found[0]

    def gone(self) -> bool:
        """Whether its directory is not there any more: moved, deleted, or not mounted."""
        return not (self.common / "HEAD").exists()

    def _current(self) -> str:
        try:
            head = plain_file(self._head / "HEAD") or b""
        except OSError as error:
            raise self._error(str(error)) from None
        if not head and self.gone():
            raise self._error(f"there is no repository at {self.common} any more")
        ref = head.decode("utf-8", "replace").strip().removeprefix("ref: ")
        if not ref.startswith("refs/heads/") or ref.startswith(BRANCHES):
            raise self._error("has no branch of its own checked out; set its `base`")
        if self.branch(ref) is None:
            raise self._error(f"has no commit on {ref.removeprefix('refs/heads/')!r} yet")
        return ref

    # ---------------------------------------------------------------------------- history

    def merge_base(self, one: str, other: str) -> str | None:
        """A commit both have in their history; ``None`` when there is none, or no telling."""
        done = self.git.run("merge-base", one, other, ok=(0, 1, 128))
        return done.text if done.code == 0 and _SHA.fullmatch(done.text) else None

    def commits(self, head: str, *without: str, most: int) -> list[Commit]:
        """The commits of ``head`` that are in none of ``without``, oldest first, the newest
        ``most`` of them."""
        done = self.git.run(
            "log", "-z", "--no-show-signature", "--no-decorate", "--no-color", "--encoding=UTF-8",
            "--topo-order", f"--max-count={most}", "--format=%H %s",
            head, *[f"^{sha}" for sha in without if sha], "--",
        )  # fmt: skip
        lines = done.out.decode("utf-8", "replace").split("\0")
        found = [Commit(*line.split(" ", 1)) for line in lines if " " in line]
        return found[::-1]

    def scratch(self) -> tuple[Path, Path]:
        """Where objects may be written that nobody keeps, and where to read the others."""
        path: Path | None = getattr(self._scratch, "path", None)
        if path is None or not path.is_dir():
            path = self.private / "scratch" / str(threading.get_ident())
            path.mkdir(mode=0o700, exist_ok=True)
            self._scratch.path = path
        return path, self.common / "objects"

    def clear_scratch(self) -> None:
        """Forget what this thread's merges wrote."""
        path: Path | None = getattr(self._scratch, "path", None)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)

    def looking(self, admin: str) -> threading.Lock:
        """Held by whoever uses our index of one worktree."""
        return self._looking.setdefault(admin, threading.Lock())

    def bare(self, *args: str, stdin: bytes = b"", ok: tuple[int, ...] = (0,)) -> Done:
        """Run a git that writes objects only into the scratch."""
        return self.git.run(*args, stdin=stdin, ok=ok, objects=self.scratch())


def _follow(start: Path, pointer: bytes, prefix: bytes) -> Path:
    if not pointer.startswith(prefix):
        raise OSError(f"{start} points nowhere")
    target = os.fsdecode(pointer[len(prefix) :].rstrip(b"\n"))
    return Path(os.path.normpath(start / target)).resolve(strict=True)


def _settings(theirs: dict[str, str], repository: Repository) -> dict[str, str]:
    """What goes into our config, from values of theirs that can only be one of a few."""
    extensions = []
    for key, value in theirs.items():
        name = key.removeprefix("extensions.")
        if name == key:
            continue
        if name == "objectformat" and value in ("sha1", "sha256"):
            repository.algorithm = value
            extensions.append(f"\tobjectFormat = {value}")
        elif name == "partialclone":
            raise repository._error(
                "is a partial clone, which would fetch while it is read; give a full clone"
            )
        elif name == "refstorage" and value == "files":
            continue
        elif name not in ("worktreeconfig", "preciousobjects", "noop", "relativeworktrees"):
            raise repository._error(f"uses extensions.{name} = {value!r}, which is not supported")
    return {
        "version": "1" if extensions else "0",
        "extensions": "\n".join(extensions),
        "ignorecase": _boolean(theirs.get("core.ignorecase", "")),
        "precomposeunicode": _boolean(theirs.get("core.precomposeunicode", "")),
    }


def _boolean(value: str) -> str:
    return "true" if value.lower() in ("true", "yes", "on", "1") else "false"
