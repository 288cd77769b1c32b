"""Files in a worktree that would have an agent ask less than its profile promises.

An agent that may write files can leave such a file for the next one, so they are looked for
before each start, and an agent with one of them in its way is not started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.harness.profiles.profile import Guarded, Profile

MOST = 20
"""How many are told; one is enough."""


@dataclass(frozen=True, slots=True)
class Loose:
    """A file that loosens the agent. ``path`` is relative to the worktree, or absolute."""

    path: str
    why: str


def loosened(profile: Profile, worktree: Path) -> tuple[Loose, ...]:
    """What lies in the worktree and would loosen the agent. Looks at names only, follows no
    link to a folder further than the guarded names go, and counts what it may not read."""
    found: dict[str, Loose] = {}
    for guarded in profile.guarded:
        for path in _matches(worktree, guarded):
            found.setdefault(path, Loose(path, guarded.why))
            if len(found) >= MOST:
                return tuple(found.values())
    return tuple(found.values())


def at_home(profile: Profile, env: Mapping[str, str]) -> tuple[str, ...]:
    """What lies in the agent's HOME and loosens every work of it: the operator's, or left by
    an agent that could write there."""
    found = []
    for name in profile.home:
        first, _, rest = name.partition("/")
        base = env.get(first[1:], "") if first.startswith("$") else env.get("HOME", "")
        if base:
            path = Path(base, rest if first.startswith("$") else name)
            if _holds(path):
                found.append(str(path))
    return tuple(found)


def _holds(path: Path) -> bool:
    try:
        return bool(os.listdir(path))
    except NotADirectoryError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _matches(worktree: Path, guarded: Guarded) -> Iterator[str]:
    """Plain names, or a folder with everything below it (``…/**``)."""
    folder = guarded.pattern.removesuffix("/**")
    path = worktree / folder
    if not _there(path):
        return
    if folder == guarded.pattern:
        yield folder
        return
    try:
        with os.scandir(path) as entries:
            name = next((entry.name for entry in entries), None)
    except NotADirectoryError:
        yield folder
    except OSError:
        # What we cannot look into may be readable to the agent.
        yield f"{folder}/"
    else:
        if name is not None:
            yield f"{folder}/{name}"


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
