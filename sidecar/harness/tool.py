"""The one tool of a harness: what it looks like, and what its arguments mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from sidecar.catalog.names import closest, matches, shown
from sidecar.harness.naming import WorkName, new_work
from sidecar.model import Definition, JsonObject, Principal
from sidecar.wire import json

__all__ = ["BadTask", "Task", "definition", "name_of", "read"]

LONGEST_TASK: Final = 256 << 10
"""Characters of a task."""
_LONGEST_NAME: Final = 200
_ARGUMENTS: Final = ("task", "checkout", "work")

_ABOUT = """\
{title} works on a task by itself, in a git worktree and branch of its own, and answers with what \
it did. Give it everything that it has to know: it sees the files of the checkout and nothing of \
this conversation. With `work` it goes on with an earlier work where it left off; without, a new \
one begins. Long tasks are answered with `sidecar/running` at first: call again with exactly the \
same arguments to wait on."""


class BadTask(Exception):
    """The arguments say no task that can be done. The text says what to do instead."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a call asks for. ``work`` is empty where none was named."""

    text: str
    checkout: str
    work: str


def definition(harness: str, title: str, checkouts: Sequence[str]) -> Definition:
    """The tool as ``tools/list`` has it, with every checkout there is."""
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "What is to be done, in full."},
            "checkout": {
                "type": "string",
                "enum": list(checkouts),
                "description": "The repository to work in; not needed where there is one.",
            },
            "work": {
                "type": "string",
                "description": "A name of the work, such as fix-login; the same name goes on "
                "with the same work. Without one a new work begins, and the answer names it.",
            },
        },
        "required": ["task"],
        "additionalProperties": False,
    }
    tool: JsonObject = {
        "name": harness,
        "title": title,
        "description": _ABOUT.format(title=title),
        "inputSchema": schema,
        "outputSchema": _OUTPUT,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": False,
            "openWorldHint": True,
        },
    }
    return Definition(harness, json.encode(tool))


_COMMIT: JsonObject = {
    "type": "object",
    "properties": {"sha": {"type": "string"}, "subject": {"type": "string"}},
    "required": ["sha", "subject"],
}
_ASK: JsonObject = {
    "type": "object",
    "properties": {
        "call": {"type": "string"},
        "tool": {"type": "string"},
        "title": {"type": "string"},
        "answer": {"enum": ["allow", "reject", "cancelled"]},
        "rule": {"type": "string"},
    },
    "required": ["call", "tool", "title", "answer", "rule"],
}
_OUTPUT: JsonObject = {
    "type": "object",
    "properties": {
        "work": {"type": "string", "description": "Name it to go on with this work."},
        "checkout": {"type": "string"},
        "branch": {"type": "string"},
        "base": {"type": "string", "description": "The commit at which the work began."},
        "head": {
            "type": ["string", "null"],
            "description": "The commit that is checked out now; null where there is none, or "
            "none is known.",
        },
        "commits": {
            "type": ["array", "null"],
            "items": _COMMIT,
            "description": "What was committed in this work; null where that is not known.",
        },
        "dirty": {
            "type": ["boolean", "null"],
            "description": "There are changes that are not committed; null where that is not "
            "known, and then `unknown` says why.",
        },
        "last_message": {"type": "string", "description": "What the agent said at last."},
        "stop_reason": {
            "type": "string",
            "description": "end_turn, refusal, max_tokens, max_turn_requests or cancelled, as "
            "the agent said; or ours: died, failed, interrupted.",
        },
        "asks": {"type": "array", "items": _ASK},
        "continued": {
            "type": ["string", "null"],
            "description": "How an earlier work was taken up: kept (the agent was still there), "
            "resumed, loaded, or summary (a new session that was told what happened before); "
            "null for a new work.",
        },
        "error": {"type": "string", "description": "Why the agent did not come to its end."},
        "unknown": {"type": "string", "description": "Why head, commits and dirty are null."},
    },
    "required": [
        "work",
        "checkout",
        "branch",
        "base",
        "head",
        "commits",
        "dirty",
        "last_message",
        "stop_reason",
        "asks",
        "continued",
    ],
}


def read(params: JsonObject, checkouts: Sequence[str], principal: Principal) -> Task:
    """The task of a call's ``params``. Raises BadTask.

    ``checkouts`` are all there are; a principal that may not use one hears nothing of it.
    """
    given = params.get("arguments")
    arguments = cast("JsonObject", given) if isinstance(given, dict) else {}
    for name in arguments:
        if name not in _ARGUMENTS:
            raise BadTask(
                f"there is no argument {shown(name)}; there are {', '.join(_ARGUMENTS)}. Where "
                "and how the agent runs is the operator's to say, in sidecar.yaml"
            )
    text = _text(arguments, "task")
    if not text.strip():
        raise BadTask("task is missing: say what is to be done")
    if len(text) > LONGEST_TASK:
        raise BadTask(f"task has more than {LONGEST_TASK} characters; put the rest into a file")
    work = _text(arguments, "work")
    if len(work) > _LONGEST_NAME:
        raise BadTask(f"work has more than {_LONGEST_NAME} characters; choose a shorter name")
    if work != work.strip() or not work.isprintable():
        # Two works whose names look the same would be taken for each other.
        raise BadTask(
            "work holds characters that cannot be seen, or begins or ends with a blank; choose "
            "a name that people can read"
        )
    mine = [name for name in checkouts if matches(principal.checkouts, name)]
    return Task(text, _checkout(_text(arguments, "checkout"), mine), work)


def _checkout(wanted: str, mine: Sequence[str]) -> str:
    if not mine:
        raise BadTask("there is no checkout that you may use; the operator can give you one")
    if not wanted:
        if len(mine) == 1:
            return mine[0]
        raise BadTask(f"checkout is missing: say which, as one of {', '.join(mine)}")
    if wanted not in mine:
        near = closest(wanted, mine) or mine
        raise BadTask(f"there is no checkout {shown(wanted)}; there is {', '.join(near)}")
    return wanted


def _text(arguments: JsonObject, key: str) -> str:
    value = arguments.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadTask(f"{key} is a string")
    return value


def name_of(harness: str, task: Task, principal: Principal) -> WorkName:
    """The work of a task. Raises BadTask where it can have no such name."""
    name = WorkName(harness, task.checkout, principal.name, task.work or new_work())
    try:
        _ = name.key
    except ValueError as error:
        raise BadTask(f"work: {error}") from None
    return name
