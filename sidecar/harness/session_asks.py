"""An agent's questions: what it wants to do, and which of its options says yes or no.

Everything is read from the message as it was decoded, from the keys that the protocol gives a
meaning; what stands in a ``_meta`` replaces nothing.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from sidecar.harness.profiles import Extract
from sidecar.model import JsonObject, RequestId

Decision = Literal["allow", "reject", "cancelled"]

KINDS = frozenset(
    [
        "read",
        "edit",
        "delete",
        "move",
        "search",
        "execute",
        "think",
        "fetch",
        "switch_mode",
        "other",
    ]
)
"""The kinds of tools of the protocol. An agent may use others."""

_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MOST_PATHS = 256


@dataclass(frozen=True, slots=True)
class Diff:
    """A change to a file. ``old`` is ``None`` for a file that is new."""

    path: str
    old: str | None
    new: str


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A question of an agent before it does something.

    ``raw`` are the request's ``params`` as they came and ``tool_call`` is their ``toolCall``
    with what was said about that call before. ``kind`` is the agent's word where that can be
    part of a name, else ``other``. ``paths`` are all that it named, as it named them: relative
    ones are relative to ``cwd``, or to the worktree. ``command`` is ``None`` when it did not
    say. ``allowable``: there is an option to allow this once; without, it can only be rejected.
    """

    id: RequestId
    session: str
    tool_call: JsonObject
    options: tuple[JsonObject, ...]
    kind: str
    title: str
    tool: str
    locations: tuple[str, ...]
    paths: tuple[str, ...]
    command: str | None
    cwd: str | None
    diffs: tuple[Diff, ...]
    allowable: bool
    raw: JsonObject


def read(
    id_: RequestId, params: JsonObject, tool_call: JsonObject, extract: Extract
) -> PermissionRequest:
    """Read a ``session/request_permission``. What is missing or of another type is left out."""
    given = params.get("options")
    options = tuple(
        cast("JsonObject", option)
        for option in (given if isinstance(given, list) else ())
        if isinstance(option, dict)
    )
    kind = _string(tool_call.get("kind"))
    title = _string(tool_call.get("title"))
    raw_input = tool_call.get("rawInput")
    stated = cast("JsonObject", raw_input) if isinstance(raw_input, dict) else {}
    locations = tuple(_locations(tool_call.get("locations")))
    diffs = tuple(_diffs(tool_call.get("content")))
    command = _command(stated, extract)
    if command is None and extract.title_is_command and kind == "execute" and not stated:
        command = title or None
    named = [
        *locations,
        *_named(stated, extract),
        *(diff.path for diff in diffs),
    ]
    return PermissionRequest(
        id=id_,
        session=_string(params.get("sessionId")),
        tool_call=tool_call,
        options=options,
        kind=kind if _KIND.fullmatch(kind) else "other",
        title=title,
        tool=_string(tool_call.get("name")),
        locations=locations,
        paths=tuple(dict.fromkeys(named))[:_MOST_PATHS],
        command=command,
        cwd=next((v for key in extract.cwd if (v := _string(stated.get(key)))), None),
        diffs=diffs,
        allowable=option(options, "allow_once") is not None,
        raw=params,
    )


def outcome(options: Sequence[JsonObject], decision: Decision) -> tuple[JsonObject, Decision]:
    """The ``result`` that says a decision, and what it really says.

    Only ``allow_once`` and ``reject_once`` are ever chosen, by their kind: what is called
    *always* changes files that outlive the run. Where nothing allows once it is rejected;
    where nothing rejects once it is cancelled.
    """
    if decision == "allow" and (allow := option(options, "allow_once")) is not None:
        return _selected(allow), "allow"
    if decision != "cancelled" and (reject := option(options, "reject_once")) is not None:
        return _selected(reject), "reject"
    return {"outcome": {"outcome": "cancelled"}}, "cancelled"


def option(options: Sequence[JsonObject], kind: str) -> str | None:
    """The id of the first option of that kind whose id stands for nothing else."""
    ids = Counter(_string(item.get("optionId")) for item in options)
    for item in options:
        id_ = _string(item.get("optionId"))
        if item.get("kind") == kind and id_ and ids[id_] == 1:
            return id_
    return None


def _selected(option_id: str) -> JsonObject:
    return {"outcome": {"outcome": "selected", "optionId": option_id}}


def _command(stated: JsonObject, extract: Extract) -> str | None:
    for key in extract.command:
        value = stated.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return shlex.join(cast("list[str]", value))
    return None


def _named(stated: JsonObject, extract: Extract, below: int = 2) -> Iterable[str]:
    for key in extract.paths:
        value = stated.get(key)
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, str) and item:
                yield item
            elif isinstance(item, dict) and below:
                yield from _named(cast("JsonObject", item), extract, below - 1)
    for key in extract.keyed_paths:
        value = stated.get(key)
        if isinstance(value, dict):
            yield from (name for name in value if isinstance(name, str) and name)


def _locations(value: object) -> Iterable[str]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and (path := _string(item.get("path"))):
            yield path


def _diffs(value: object) -> Iterable[Diff]:
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, dict) or item.get("type") != "diff":
            continue
        path, old, new = item.get("path"), item.get("oldText"), item.get("newText")
        if isinstance(path, str) and path:
            yield Diff(path, old if isinstance(old, str) else None, _string(new))


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
