"""An agent's question as a call that policies and people decide.

What the agent says it touches is made absolute and its links are followed here, because it is
the agent that could have made the links. What it does between the answer and the deed is not
ours to see: asking is no cage, the agent's uid and its sandbox are.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from sidecar.harness.session_asks import PermissionRequest
from sidecar.harness.works import Work
from sidecar.model import Call, JsonObject, Kind
from sidecar.wire import json

__all__ = ["METHOD", "Paths", "TooLarge", "about_work", "permission_call", "resolve"]

METHOD: Final = "session/request_permission"
LARGEST: Final = 1 << 20
"""Bytes of a question; what is larger nobody could read."""
_TITLE: Final = 500


class TooLarge(Exception):
    """The question is larger than anybody could look at."""


@dataclass(frozen=True, slots=True)
class Paths:
    """What a question is about. ``inside`` is ``None`` where no path is known."""

    paths: tuple[str, ...]
    inside: bool | None


def resolve(request: PermissionRequest, work: Path, home: str) -> Paths:
    """The paths of a question, absolute and without links. Blocks.

    ``work`` is the worktree, without links itself. A directory in which something is to run
    counts where it is outside; one that is inside says nothing of what runs there.
    """
    base = _absolute(request.cwd, str(work), home) if request.cwd else str(work)
    # In the order in which the agent named them.
    found = dict.fromkeys(_real(_absolute(path, base, home)) for path in request.paths)
    if not _within(where := _real(base), work):
        found.setdefault(where)
    if not found:
        return Paths((), None)
    return Paths(tuple(found), all(_within(path, work) for path in found))


def _absolute(path: str, base: str, home: str) -> str:
    if path.startswith("file://"):
        path = path[len("file://") :]
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return os.path.join(base, path)


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        # Nothing that the system would take: it lies nowhere, and so not inside.
        return path


def _within(path: str, work: Path) -> bool:
    try:
        return "\0" not in path and Path(path).is_relative_to(work)
    except ValueError:
        return False


def about_work(work: Work) -> JsonObject:
    """The variable ``work``."""
    return {
        "name": work.name.work if work.name is not None else work.key.work,
        "checkout": work.name.checkout if work.name is not None else work.key.checkout,
        "branch": work.branch,
        "path": str(work.path),
    }


def permission_call(
    request: PermissionRequest,
    paths: Paths,
    work: Work,
    *,
    harness: str,
    parent: str,
    separator: str = "__",
) -> Call:
    """The call, which no server has: it is only ever decided. Raises TooLarge."""
    permission: JsonObject = {"kind": request.kind, "title": request.title[:_TITLE]}
    locations = _locations(request.tool_call.get("locations"))
    if locations:
        permission["locations"] = locations
    if paths.paths:
        permission["paths"] = list(paths.paths)
    if paths.inside is not None:
        permission["inside"] = paths.inside
    if request.command is not None:
        permission["command"] = request.command
    permission["raw"] = request.raw
    worked = about_work(work)
    params: JsonObject = {"permission": permission, "work": worked}
    if len(json.encode(params)) > LARGEST:
        raise TooLarge
    return Call(
        str(uuid.uuid4()),
        Kind.PERMISSION,
        METHOD,
        harness,
        f"{harness}{separator}{request.kind}",
        request.kind,
        params,
        parent=parent,
        about={"permission": permission, "work": worked},
    )


def _locations(value: object) -> Sequence[JsonObject]:
    items = value if isinstance(value, list) else []
    return [cast("JsonObject", item) for item in items if isinstance(item, dict)]
