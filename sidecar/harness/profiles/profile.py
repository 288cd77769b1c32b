"""What one kind of coding agent needs, as data.

Everything that differs between agents is a field here; the code that runs one knows none of
their names. What each agent does with it was watched on the wire, with the versions that its
profile pins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sidecar.model import JsonObject


class ProfileError(ValueError):
    """The environment that was configured does not go with the profile. Says which variable."""


@dataclass(frozen=True, slots=True)
class Package:
    """Where the agent comes from and which versions of it were tried."""

    name: str
    version: str
    registry: Literal["npm", "pypi"] = "npm"
    node: int = 0
    """The oldest major of Node.js that it runs on; 0 when it brings its own runtime."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How the agent is made to ask before it acts.

    ``mode`` is set after the session is open and must be told back by the agent; empty when
    there is none to set, and asking comes from ``Profile.forced`` or ``Profile.merged``.
    ``modes`` are those in which it asks: any other ends the run. With ``open_ended`` an agent
    may also be in a mode that we do not know, as long as its name does not say that it acts
    unasked and it stays in it.
    """

    mode: str = ""
    modes: frozenset[str] = frozenset()
    reported: bool = True
    """Whether it must say in which mode it is. Without that nothing could be read back."""
    open_ended: bool = False


@dataclass(frozen=True, slots=True)
class Extract:
    """Under which keys of ``rawInput`` the agent says what a tool call is about to do."""

    command: tuple[str, ...] = ("command", "cmd")
    paths: tuple[str, ...] = ("file_path", "filepath", "path", "absolute_path", "notebook_path")
    cwd: tuple[str, ...] = ("cwd", "workdir", "directory")
    keyed_paths: tuple[str, ...] = ()
    """Keys whose value is an object with a path for each key."""
    title_is_command: bool = False
    """Of kind ``execute`` without ``rawInput``: the title is the command."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """Files of a worktree that would have the next agent ask less, or run code, and are not
    made harmless by the rest of the profile.

    ``pattern`` is a file below the worktree, or a folder with all that is in it (``…/**``). With
    ``keys`` the file is JSON and counts only if its object has one of them, or cannot be read.
    """

    pattern: str
    why: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of coding agent."""

    name: str
    title: str
    package: Package | None
    command: tuple[str, ...]
    """What starts it where the configuration does not say."""
    asking: Asking
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Variables it gets unless they are configured."""
    forced: Mapping[str, str] = field(default_factory=dict)
    """Variables it gets whatever is configured."""
    merged: Mapping[str, JsonObject] = field(default_factory=dict)
    """Variables that hold JSON: this is put over what is configured there. ``{cwd}`` in a
    text becomes the worktree."""
    session_meta: JsonObject = field(default_factory=dict)
    """``_meta`` of ``session/new``, ``session/resume`` and ``session/load``."""
    authenticate: Mapping[str, str] = field(default_factory=dict)
    """By variable: the way to log in that is chosen when the agent asks for one."""
    denial: Literal["goes_on", "end_turn", "cancelled"] = "goes_on"
    """What a denied permission does: the model goes on, or the turn ends in that way."""
    resume: tuple[Literal["resume", "load"], ...] = ("resume", "load")
    """How an earlier session is taken up, the best way first, where the agent offers it."""
    drain: float = 0.3
    """Seconds without an update after the end of a turn before its last message is complete."""
    extract: Extract = Extract()
    guarded: tuple[Guarded, ...] = ()
    home: tuple[str, ...] = ()
    """Files below HOME that loosen it for every work; ``$NAME/…`` begins with a variable."""
    canary: str = "touch {file}"
    """A harmless command that it must ask for."""
    notes: tuple[str, ...] = ()
    """What a person should know who relies on its asking."""

    def environment(self, configured: Mapping[str, str], cwd: str) -> dict[str, str]:
        """The variables for its process, which works in ``cwd``. Raises ProfileError."""
        env = {**self.defaults, **configured, **self.forced}
        for name, ours in self.merged.items():
            env[name] = json.dumps(_over(_read(name, env.get(name, "")), ours, cwd))
        return env


def _read(name: str, text: str) -> JsonObject:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ProfileError(f"env.{name} must be a JSON object: how the agent asks is added to it")
    return value


def _over(theirs: JsonObject, ours: JsonObject, cwd: str) -> JsonObject:
    """``ours`` over ``theirs``: objects are merged in the same way, lists are joined."""
    merged = dict(theirs)
    for key, value in ours.items():
        other = merged.get(key)
        if isinstance(value, dict):
            merged[key] = _over(other if isinstance(other, dict) else {}, value, cwd)
        elif isinstance(value, list):
            here = [i.replace("{cwd}", cwd) if isinstance(i, str) else i for i in value]
            merged[key] = [*(other if isinstance(other, list) else ()), *here]
        else:
            merged[key] = value
    return merged
