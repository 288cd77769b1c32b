"""Works that are on disk without a record: the record was lost, the work must not be."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from sidecar.harness.git import GitError, plain_file
from sidecar.harness.git_checkout import CheckoutError, Repository
from sidecar.harness.naming import WorkKey, is_slug, key_of_slugs
from sidecar.harness.records import WorkRecord
from sidecar.harness.worktree_guard import Refused, check_admin, check_path

__all__ = ["found_on_disk"]

log = logging.getLogger(__name__)


def found_on_disk(
    root: Path, repositories: Mapping[str, Repository], known: Collection[WorkKey], now: float
) -> Iterator[WorkRecord]:
    """A record for each worktree below ``root`` that has none and belongs to a checkout."""
    for path in sorted(root.glob("*/*/*/*")):
        key = key_of_slugs(path.relative_to(root).parts)
        if key is None or key in known:
            continue
        repository = repositories.get(key.checkout)
        admin = None if repository is None else _admin(root, path, key, repository)
        if repository is None or admin is None:
            log.warning("%s is no worktree of a work; it is left alone", path)
            continue
        base_ref, base = _began(repository, key)
        yield WorkRecord(key, None, base_ref, base, admin, now)


def _admin(root: Path, path: Path, key: WorkKey, repository: Repository) -> str | None:
    """The name of its administrative directory, when both point at each other."""
    try:
        if not check_path(root, key.parts):
            return None
        pointer = plain_file(path / ".git") or b""
        admin = Path(os.fsdecode(pointer.rstrip(b"\n").removeprefix(b"gitdir: ")))
        if admin.parent != repository.common / "worktrees" or not is_slug(admin.name):
            return None
        check_admin(admin, path)
    except (Refused, OSError):
        return None
    return admin.name


def _began(repository: Repository, key: WorkKey) -> tuple[str, str]:
    """Where it seems to have begun; empty what cannot be told."""
    try:
        base_ref = repository.base_ref()
        base, head = repository.commit(base_ref), repository.commit(key.branch)
        common = repository.merge_base(base, head) if base and head else None
    except (CheckoutError, GitError):
        return "", ""
    # A head in its base's history has landed, or was never begun: there is no telling any more.
    return base_ref, common if common and common != head else ""
