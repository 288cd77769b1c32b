"""What a work is called: its slugs, its branch, and its path below the root of worktrees.

A slug is lower-case ASCII, at most 48 characters, so that it is one file name on any file
system, case-insensitive ones included, and one component of a ref. A text that is such a slug
stays as it is; any other loses something and ends in 8 hex digits of its sha256. A text that
only looks as if it had lost something counts as lossy too, so that no text can be chosen to
meet the slug of another.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BRANCHES",
    "SLUG_LENGTH",
    "WorkKey",
    "WorkName",
    "is_slug",
    "key_of_slugs",
    "new_work",
    "slug",
]

SLUG_LENGTH = 48
BRANCHES = "refs/heads/work/"
"""Where the branches of works are."""

_HASH = 8
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?")
_LOSSY = re.compile(r".*-[0-9a-f]{8}")
_GENERATED = re.compile(r"w-[0-9a-f]{8}")
_LONGEST = 4096


def is_slug(text: str) -> bool:
    """Whether the text has the form of a slug."""
    return _SLUG.fullmatch(text) is not None


def slug(text: str) -> str:
    """The slug of any text; two texts have the same one only where 32 bits of sha256 collide.

    Raises ValueError for an empty text, one that is no Unicode, or one of more than 4096
    characters.
    """
    if not text or len(text) > _LONGEST:
        raise ValueError(f"a name has 1 to {_LONGEST} characters")
    if is_slug(text) and (_GENERATED.fullmatch(text) or not _LOSSY.fullmatch(text)):
        return text
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:_HASH]
    stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: SLUG_LENGTH - _HASH - 1].strip("-")
    # A stem `w` would make it look like a name that `new_work` made.
    return f"{'x' + stem if stem in ('', 'w') else stem}-{digest}"


def new_work() -> str:
    """A name for a work that was given none: ``w-`` and 8 hex digits, its own slug."""
    return f"w-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True, order=True)
class WorkKey:
    """Which work, in slugs: all that its path and its branch depend on."""

    harness: str
    checkout: str
    principal: str
    work: str

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Its path below the root of worktrees, in order."""
        return self.harness, self.checkout, self.principal, self.work

    @property
    def branch(self) -> str:
        """The full name of its branch in the checkout."""
        return f"{BRANCHES}{self.harness}/{self.principal}/{self.work}"

    @property
    def agent(self) -> str:
        """The principal that its coding agent is."""
        return f"harness:{self}"

    def __str__(self) -> str:
        return "/".join(self.parts)


def key_of_slugs(parts: Sequence[str]) -> WorkKey | None:
    """The key of a work found on disk; ``None`` where these are not four slugs."""
    if len(parts) != 4 or not all(is_slug(part) for part in parts):
        return None
    return WorkKey(*parts)


@dataclass(frozen=True, slots=True, order=True)
class WorkName:
    """Which work: the four texts as they were given."""

    harness: str
    checkout: str
    principal: str
    work: str

    @property
    def key(self) -> WorkKey:
        """Raises ValueError for a text that can have no slug."""
        return WorkKey(
            slug(self.harness), slug(self.checkout), slug(self.principal), slug(self.work)
        )
