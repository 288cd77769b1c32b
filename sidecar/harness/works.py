"""The works of this sidecar: making them, looking at them, sweeping them.

Everything on disk happens in two threads of ours; the methods here are for the event loop. A
work is used by one at a time: by a run, or by a sweep, which does not wait for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol, TypeVar

from sidecar.events import Bus, Swept
from sidecar.harness.git import GitError
from sidecar.harness.git_checkout import Checkout, CheckoutError, Repository
from sidecar.harness.git_fetch import FetchError, fetch, pin_remote
from sidecar.harness.handover import Owner, closed
from sidecar.harness.naming import WorkKey, WorkName, slug
from sidecar.harness.records import Records, Stage, WorkRecord
from sidecar.harness.sweep import Candidate, Kept, Sweep, judge, judge_untouched, recover, take
from sidecar.harness.sweep_usage import Usage
from sidecar.harness.works_adopt import found_on_disk
from sidecar.harness.worktree import PRIVATE, WorkState, Worktree, new_admin
from sidecar.harness.worktree_guard import Reason, Refused, exists

__all__ = ["Nobody", "Occupants", "Occupation", "Work", "WorkError", "Works"]

log = logging.getLogger(__name__)

T = TypeVar("T")
_OTHERS = 3.0
"""Seconds to wait for what a sidecar that was killed had begun."""
Occupation = Literal["none", "idle", "working", "waiting"]
"""Of a work: no agent, one that does nothing, one that works, one that waits for a person."""


class WorkError(Exception):
    """A work cannot be made or used. Says which, and what to do."""


class Occupants(Protocol):
    """Who knows the agents that live in works."""

    def occupation(self, key: WorkKey) -> Occupation:
        """What the agent of a work does."""
        ...

    async def stop(self, key: WorkKey) -> None:
        """End an idle agent, all of it. No other begins: the work is held meanwhile."""
        ...


class Nobody:
    """No agents anywhere."""

    def occupation(self, key: WorkKey) -> Occupation:
        return "none"

    async def stop(self, key: WorkKey) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Work:
    """A work that exists. ``branch`` is without ``refs/heads/``; ``base_ref`` is a full ref and
    ``base`` the commit where it began. ``new``: it was made just now. ``name`` is ``None`` for
    one that was found on disk."""

    key: WorkKey
    name: WorkName | None
    path: Path
    branch: str
    base_ref: str
    base: str
    created: float
    new: bool = False

    def as_json(self) -> dict[str, object]:
        name = self.name or WorkName(*self.key.parts)
        return {
            "harness": name.harness,
            "checkout": name.checkout,
            "principal": name.principal,
            "work": name.work,
            "path": str(self.path),
            "branch": self.branch,
            "base_ref": self.base_ref,
            "base": self.base,
            "created": self.created,
        }


class _Holding:
    """Who has a work, and how many want it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Works:
    """All works below one root. ``name`` is the sidecar's own, for events; ``owner`` is whom
    agents run as, ``None`` for us.

    ``open`` it before anything else, ``close`` it last.
    """

    def __init__(
        self,
        root: Path,
        checkouts: Sequence[Checkout],
        *,
        bus: Bus | None = None,
        name: str = "sidecar",
        occupants: Occupants | None = None,
        owner: Owner | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.occupants: Occupants = occupants or Nobody()
        self._root = root
        self._checkouts = tuple(checkouts)
        self._owner = owner
        self._bus = bus
        self._name = name
        self._clock = clock
        self._repositories: dict[str, Repository] = {}
        self._by_name: dict[str, Repository] = {}
        self._held: dict[WorkKey, _Holding] = {}
        self._sweeping = asyncio.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="git")
        self._lock: int | None = None
        self._records = Records(root / PRIVATE / "works")

    # --------------------------------------------------------------------- beginning and end

    async def open(self) -> None:
        """Open the checkouts and bring what was interrupted to an end. Raises WorkError or
        CheckoutError, which say what to do."""
        await self._in_thread(self._open)

    async def close(self) -> None:
        """Idempotent. Waits for what the threads are doing."""
        await asyncio.to_thread(self._threads.shutdown, wait=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def reconfigure(self, checkouts: Sequence[Checkout]) -> None:
        """Exactly these checkouts from now on. Works of those that are gone stay as they are.

        Raises WorkError or CheckoutError, and then nothing was changed.
        """
        await self._in_thread(self._reconfigure, tuple(checkouts))

    def _reconfigure(self, checkouts: tuple[Checkout, ...]) -> None:
        if checkouts == self._checkouts:
            return
        before = self._by_name
        opened = self._opened(self._root / PRIVATE, checkouts, before)
        new = [each for each in opened if before.get(each.checkout.name) is not each]
        for repository, checkout in zip(opened, checkouts, strict=True):
            repository.checkout = checkout
        self._use(opened)
        self._checkouts = checkouts
        known = {record.key for record in self._records.all()}
        self._adopt({slug(each.checkout.name): each for each in new}, known)

    def _open(self) -> None:
        if not self._root.is_absolute():
            raise WorkError(f"worktrees: {self._root} is not an absolute path")
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            # Paths are compared with what git and the kernel say: no symlinks in them.
            self._root = self._root.resolve(strict=True)
            private = self._root / PRIVATE
            if private.is_symlink():
                raise WorkError(f"worktrees: {private} is a symlink; remove it")
            private.mkdir(mode=0o700, exist_ok=True)
            private.chmod(0o700)
            self._lock = self._alone(private / "lock")
        except OSError as error:
            raise WorkError(f"worktrees: {self._root} cannot be used: {error}") from None
        if self._owner is not None:
            shut = closed(self._root, self._owner)
            if shut is not None:
                raise WorkError(
                    f"worktrees: children run as uid {self._owner.uid}, which cannot enter {shut}; "
                    f"let it through: chmod o+x {shut}"
                )
        self._records = Records(private / "works")
        self._use(self._opened(private, self._checkouts, {}))
        self._reconcile(private)

    def _alone(self, path: Path) -> int:
        """Lock the root for us and for our gits: one that outlives a sidecar that was killed
        still works on it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        until = time.monotonic() + _OTHERS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                os.close(fd)
                raise WorkError(
                    f"worktrees: another sidecar uses {self._root}; give each its own"
                ) from None
            except OSError:
                os.close(fd)
                raise

    def _use(self, repositories: Sequence[Repository]) -> None:
        self._repositories = {slug(each.checkout.name): each for each in repositories}
        self._by_name = {each.checkout.name: each for each in repositories}

    def _opened(
        self, private: Path, checkouts: Sequence[Checkout], before: Mapping[str, Repository]
    ) -> list[Repository]:
        """Their repositories; one whose checkout is the same stays, for it may be in use."""
        opened: list[Repository] = []
        commons: dict[Path, str] = {}
        for checkout in checkouts:
            held = () if self._lock is None else (self._lock,)
            folder = private / "checkouts" / slug(checkout.name)
            kept = before.get(checkout.name)
            new = kept is None or kept.checkout.path != checkout.path
            if kept is None or new:
                repository = Repository(checkout, folder, held, self._owner)
                repository.open()
            else:
                repository = kept
            other = commons.setdefault(repository.common, checkout.name)
            if other != checkout.name:
                raise CheckoutError(
                    f"checkouts {other!r} and {checkout.name!r} are one repository; take one out"
                )
            if repository.common.is_relative_to(self._root):
                raise CheckoutError(
                    f"checkout {checkout.name!r} lies in {self._root}, where worktrees are"
                )
            opened.append(repository)
            try:
                if new:
                    pin_remote(repository)
            except (FetchError, GitError) as error:
                log.warning("checkout %r: its remotes cannot be read: %s", checkout.name, error)
        return opened

    def _reconcile(self, private: Path) -> None:
        known = set()
        for record in list(self._records.all()):
            known.add(record.key)
            if record.stage is not Stage.READY and record.key.checkout in self._repositories:
                try:
                    self._finish(record)
                except (GitError, OSError, Refused) as error:
                    log.warning("work %s was interrupted and stays as it is: %s", record.key, error)
        shutil.rmtree(private / "new", ignore_errors=True)  # nobody ever saw what is in it
        self._adopt(self._repositories, known)

    def _adopt(self, repositories: Mapping[str, Repository], known: Collection[WorkKey]) -> None:
        for record in found_on_disk(self._root, repositories, known, self._clock()):
            log.warning("work %s had no record; it has one now", record.key)
            self._records.put(record)

    def _finish(self, record: WorkRecord) -> WorkRecord | None:
        """Bring making or removing to its end; the record as it is then."""
        worktree = self._worktree(record)
        if record.stage in (Stage.REMOVING, Stage.DELETING):
            if recover(worktree, self._records.put):
                self._records.delete(record.key)
        elif record.stage is Stage.MAKING:
            if exists(worktree.path) or record.head:
                if not exists(worktree.path):
                    worktree.unmake()
                self._records.put(replace(record, stage=Stage.READY, head=""))
            else:
                worktree.unmake()
                worktree.repository.delete_branch(record.key.branch, record.base)
                self._records.delete(record.key)
        return self._records.get(record.key)

    # ------------------------------------------------------------------------------- using

    @contextlib.asynccontextmanager
    async def use(self, name: WorkName) -> AsyncIterator[Work]:
        """The work of this name, made if there is none; nobody else uses it meanwhile.

        Raises WorkError, which says what to do.
        """
        try:
            key = name.key
        except ValueError as error:
            raise WorkError(str(error)) from None
        async with self._holding(key):
            yield await self._in_thread(self._make_or_reopen, name, key)

    def held(self, key: WorkKey) -> bool:
        """Whether somebody uses the work."""
        return key in self._held

    @contextlib.asynccontextmanager
    async def _holding(self, key: WorkKey) -> AsyncIterator[None]:
        holding = self._held.setdefault(key, _Holding())
        holding.users += 1
        try:
            async with holding.lock:
                yield
        finally:
            holding.users -= 1
            if not holding.users:
                del self._held[key]

    def _make_or_reopen(self, name: WorkName, key: WorkKey) -> Work:
        repository = self._by_name.get(name.checkout)
        if repository is None:
            raise WorkError(f"there is no checkout {name.checkout!r}")
        try:
            record = self._records.get(key)
            if record is not None and record.stage is not Stage.READY:
                record = self._finish(record)
            if record is not None:
                return self._reopen(record, name)
            return self._make(name, key, repository)
        except (GitError, OSError, Refused, CheckoutError) as error:
            why = error.detail if isinstance(error, Refused) else str(error)
            raise WorkError(f"work {key}: {why}") from None

    def _make(self, name: WorkName, key: WorkKey, repository: Repository) -> Work:
        base_ref = repository.base_ref()
        base = repository.commit(base_ref)
        if base is None:
            raise WorkError(f"work {key}: its base {base_ref} has no commit")
        _check_branch(repository, key)
        making = WorkRecord(key, name, base_ref, base, new_admin(key), self._clock(), Stage.MAKING)
        worktree = self._worktree(making)
        if exists(worktree.path):
            raise WorkError(f"work {key}: {worktree.path} exists already; move it away")
        self._records.put(making)
        try:
            repository.create_branch(key.branch, base)
            worktree.make(base)
        except BaseException:
            repository.delete_branch(key.branch, base)
            self._records.delete(key)
            raise
        record = replace(making, stage=Stage.READY)
        self._records.put(record)
        return replace(self._work(record), new=True)

    def _reopen(self, record: WorkRecord, name: WorkName) -> Work:
        if record.name is None:
            record = replace(record, name=name)
            self._records.put(record)
        elif record.name != name:
            raise WorkError(f"work {record.key} is another one already; choose another name")
        worktree = self._worktree(record)
        if exists(worktree.path):
            worktree.guard()
            return self._work(record)
        branch = worktree.repository.branch(record.key.branch)
        if branch is None:
            # Directory and branch were deleted by hand: there is no such work any more.
            worktree.unregister()
            self._records.delete(record.key)
            return self._make(name, record.key, worktree.repository)
        # Only the directory was: the branch gets a new one.
        worktree.unregister()
        record = replace(record, admin=new_admin(record.key), stage=Stage.MAKING, head=branch.sha)
        self._records.put(record)
        try:
            self._worktree(record).make(branch.sha)
        finally:
            record = replace(record, stage=Stage.READY, head="")
            self._records.put(record)
        return self._work(record)

    async def discard(self, key: WorkKey) -> bool:
        """Remove a work in which nothing was ever done; whether it is gone. What the sweep
        would not see as untouched stays, and so does one whose base moved since it was made.
        Whoever asks uses the work."""
        try:
            return await self._in_thread(self._discard, key)
        except (Refused, GitError, OSError) as error:
            log.info("work %s stays: %s", key, error)
            return False

    def _discard(self, key: WorkKey) -> bool:
        record = self._records.get(key)
        if record is None or record.stage is not Stage.READY or not record.base:
            return False
        if key.checkout not in self._repositories:
            return False
        worktree = self._worktree(record)

        def untouched() -> Candidate:
            return judge_untouched(worktree, Usage())

        self._take(worktree, self._refusing(untouched))
        return True

    # ----------------------------------------------------------------------------- looking

    async def works(self) -> list[Work]:
        """Every work, in the order of their slugs."""
        return await self._in_thread(lambda: [self._work(record) for record in self._records.all()])

    async def state(self, key: WorkKey) -> WorkState:
        """What there is of a work now. Raises WorkError."""
        return await self._in_thread(self._state, key)

    def _state(self, key: WorkKey) -> WorkState:
        record = self._records.get(key)
        if record is None:
            raise WorkError(f"there is no work {key}")
        if key.checkout not in self._repositories:
            raise WorkError(
                f"work {key}: its checkout is not configured any more; put it back into `checkouts`"
            )
        worktree = self._worktree(record)
        try:
            return worktree.state(self._base_ref(worktree))
        except Refused as error:
            raise WorkError(f"work {key}: {error.detail}") from None
        except (GitError, OSError, CheckoutError) as error:
            raise WorkError(f"work {key}: {error}") from None

    # ---------------------------------------------------------------------------- sweeping

    async def sweep(self, *, dry_run: bool = False) -> Sweep:
        """Remove every work that has landed and can be lost; says what was kept, and why.

        One sweep at a time. A dry run changes nothing but what a fetch brings.
        """
        async with self._sweeping:
            records = await self._in_thread(lambda: list(self._records.all()))
            stale: dict[str, str] = {}
            for checkout in sorted({record.key.checkout for record in records}):
                repository = self._repositories.get(checkout)
                if repository is not None and repository.checkout.fetch:
                    why = await self._in_thread(self._fetch, repository)
                    if why is not None:
                        stale[checkout] = why
            usage = await self._in_thread(Usage) if records else None
            removed: list[Path] = []
            kept: list[Kept] = []
            for record in records:
                path = self._root.joinpath(*record.key.parts)
                try:
                    await self._sweep_one(record, stale, usage, dry_run)
                    removed.append(path)
                except Refused as refused:
                    kept.append(Kept(path, refused.reason, refused.detail))
            for repository in self._repositories.values():
                await self._in_thread(repository.clear_scratch)
        if self._bus is not None and not dry_run:
            self._bus.publish(
                Swept(
                    name=self._name,
                    removed=tuple(str(path) for path in removed),
                    kept=tuple((str(one.path), str(one.reason)) for one in kept),
                )
            )
        return Sweep(tuple(removed), tuple(kept), dry_run)

    async def _sweep_one(
        self, record: WorkRecord, stale: dict[str, str], usage: Usage | None, dry_run: bool
    ) -> None:
        key = record.key
        if key.checkout not in self._repositories:
            raise Refused(Reason.CHECKOUT_GONE, "its checkout is not configured any more")
        if self.held(key):
            if self.occupants.occupation(key) == "waiting":
                raise Refused(Reason.WAITING, "its agent waits for a person")
            raise Refused(Reason.IN_USE, "a run uses it")
        async with self._holding(key):
            occupation = self.occupants.occupation(key)
            if occupation == "waiting":
                raise Refused(Reason.WAITING, "its agent waits for a person")
            if occupation == "working":
                raise Refused(Reason.IN_USE, "its agent is working")
            if key.checkout in stale:
                raise Refused(Reason.FETCH_FAILED, stale[key.checkout])
            idle = occupation == "idle"
            judged = await self._in_thread(self._judge, key, None if idle else usage, dry_run)
            if judged is None or dry_run:
                return
            if idle:
                await self.occupants.stop(key)
            await self._in_thread(self._take, *judged)

    def _judge(
        self, key: WorkKey, usage: Usage | None, dry_run: bool
    ) -> tuple[Worktree, Candidate] | None:
        record = self._records.get(key)
        if record is not None and record.stage is not Stage.READY:
            record = self._refusing(functools.partial(self._finish, record))
        if record is None:
            return None
        worktree = self._worktree(record)
        if worktree.repository.gone():
            common = worktree.repository.common
            raise Refused(Reason.CHECKOUT_GONE, f"there is no repository at {common} any more")
        if self._refusing(worktree.nothing_left):
            if not dry_run:
                self._records.delete(key)
            return None

        def judged() -> Candidate:
            return judge(worktree, self._base_ref(worktree), usage)

        return worktree, self._refusing(judged)

    def _take(self, worktree: Worktree, candidate: Candidate) -> None:
        self._refusing(lambda: take(worktree, candidate, self._records.put))
        self._records.delete(worktree.key)

    def _fetch(self, repository: Repository) -> str | None:
        try:
            fetch(repository, repository.base_ref())
        except (FetchError, CheckoutError, GitError) as error:
            return str(error)
        return None

    def _refusing(self, action: Callable[[], T]) -> T:
        """What git or the file system cannot do is a reason to keep."""
        try:
            return action()
        except CheckoutError as error:
            raise Refused(Reason.NO_BASE, str(error)) from None
        except (GitError, OSError) as error:
            raise Refused(Reason.GIT_FAILED, str(error)) from None

    # ----------------------------------------------------------------------------- inside

    def _base_ref(self, worktree: Worktree) -> str:
        """Where a work has to land: what is configured, else where it began."""
        repository = worktree.repository
        began = worktree.record.base_ref
        if repository.checkout.base is None and began and repository.branch(began) is not None:
            return began
        return repository.base_ref()

    def _worktree(self, record: WorkRecord) -> Worktree:
        return Worktree(self._root, self._repositories[record.key.checkout], record)

    def _work(self, record: WorkRecord) -> Work:
        return Work(
            record.key,
            record.name,
            self._root.joinpath(*record.key.parts),
            record.key.branch.removeprefix("refs/heads/"),
            record.base_ref,
            record.base,
            record.created,
        )

    async def _in_thread(self, action: Callable[..., T], *args: object) -> T:
        """Run in one of our threads, and wait for its end even when cancelled: what is half
        done on disk would otherwise go on unowned."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, functools.partial(action, *args))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # Bounded by what git and looking are bounded by; its failure is nobody's any more.
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise


def _check_branch(repository: Repository, key: WorkKey) -> None:
    """Refuse a branch that is somebody else's, and one that keeps ours from being made."""
    above = [str(path) for path in PurePosixPath(key.branch).parents][:3]
    for ref in (key.branch, *above):
        if repository.branch(ref) is not None:
            branch = ref.removeprefix("refs/heads/")
            raise WorkError(
                f"work {key}: a branch {branch} exists already that belongs to no work; "
                "delete or rename it, or choose another name"
            )
