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
from sidecar.wire import json
from sidecar.wire.json import BadJson

MOST = 20
"""How many are told; one is enough."""
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Loose:
    """A file that loosens the agent. ``path`` is relative to the worktree, or absolute."""

    path: str
    why: str


def loosened(profile: Profile, worktree: Path) -> tuple[Loose, ...]:
    """What lies in the worktree and would loosen the agent. What may not be looked at counts."""
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
        if not guarded.keys or _has(path, guarded.keys):
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


def _has(path: Path, keys: tuple[str, ...]) -> bool:
    """Whether a JSON file has one of the keys, or may have: what we cannot read the agent
    perhaps can, with comments or from a link that leads elsewhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        with open(fd, "rb") as file:
            value = json.decode_request(file.read(_LARGEST))
    except (OSError, BadJson):
        return True
    return not isinstance(value, dict) or any(key in value for key in keys)


def _there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
