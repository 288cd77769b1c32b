"""What a caller is told of a run: how it ended, or that it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.harness.worktree import WorkState
from sidecar.model import SIDECAR_META, Fields, JsonObject
from sidecar.wire import json

__all__ = ["Ask", "Continued", "Ending", "busy", "finished", "refused", "running"]

RUNNING: Final = SIDECAR_META + "running"
BUSY: Final = SIDECAR_META + "busy"
LABELS: Final = SIDECAR_META + "labels"

Continued = Literal["kept", "resumed", "loaded", "summary"]
"""How an earlier work was taken up. ``summary``: in a new session, told what happened before."""

DONE: Final = "end_turn"
"""The stop reason of an agent that came to its own end."""
LONGEST: Final = 200_000
"""Characters of an agent's last message; of more, the end is kept."""
_REMOVED: Final = (
    "nothing had been done in the work, so its worktree and branch are removed again; the same "
    "call makes them anew"
)


@dataclass(frozen=True, slots=True)
class Ask:
    """A question of the agent, and what it was answered. ``rule`` decided."""

    call: str
    tool: str
    title: str
    answer: Literal["allow", "reject", "cancelled"]
    rule: str

    def as_json(self) -> JsonObject:
        return {
            "call": self.call,
            "tool": self.tool,
            "title": self.title,
            "answer": self.answer,
            "rule": self.rule,
        }


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended. ``stop_reason`` is the agent's, or ours: ``died``, ``failed``,
    ``interrupted``; ``error`` says why then. ``state`` is ``None`` where git cannot tell it;
    ``unknown`` says why. ``removed``: no agent came to work, and the work is gone again."""

    stop_reason: str
    last_message: str = ""
    error: str = ""
    asks: Sequence[Ask] = ()
    continued: Continued | None = None
    state: WorkState | None = None
    unknown: str = ""
    removed: bool = False


def finished(
    ending: Ending, *, work: str, checkout: str, branch: str, base: str, labels: Iterable[str]
) -> Fields:
    """The answer to a run that is over. ``labels`` are those that the agent gathered."""
    state = ending.state
    message = ending.last_message
    about: JsonObject = {
        "work": work,
        "checkout": checkout,
        "branch": branch if state is None else state.branch or branch,
        "base": base if state is None else state.base,
        # Null is "not known": whoever reads "" or false would take it for nothing to lose.
        "head": None if state is None else state.head or None,
        "commits": None
        if state is None
        else [{"sha": commit.sha, "subject": commit.subject} for commit in state.commits],
        "dirty": None if state is None else state.dirty,
        "last_message": message if len(message) <= LONGEST else "…" + message[-LONGEST:],
        "stop_reason": ending.stop_reason,
        "asks": [ask.as_json() for ask in ending.asks],
        "continued": ending.continued,
    }
    if ending.error:
        about["error"] = ending.error
    if ending.removed:
        about |= {"commits": [], "dirty": False, "error": f"{ending.error}; {_REMOVED}"}
    elif state is None:
        why = ending.unknown or "git gave no answer"
        about["unknown"] = (
            f"head, commits and dirty are not known: {why}. Do not take the work for clean: when "
            f"that is mended, call with work {work} again, or look at branch {branch}"
        )
    fields: Fields = {
        "content": [{"type": "text", "text": json.encode(about).decode()}],
        "structuredContent": about,
    }
    if ending.stop_reason != DONE:
        fields["isError"] = True
    gathered = sorted(set(labels))
    if gathered:
        fields["_meta"] = {LABELS: gathered}
    return fields


def refused(text: str) -> Fields:
    """Nothing was begun; the text says why, and what to do."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def running(call: str, work: str, state: str, waiting: Sequence[JsonObject]) -> Fields:
    """The run goes on: whoever asks again with the same arguments waits on."""
    what = {
        "queued": f"it waits until work {work} is free",
        "starting": "the agent starts",
    }.get(state, "the agent is at work")
    if waiting:
        names = ", ".join(f"{each['tool']} (id {each['id']})" for each in waiting)
        what = f"the agent waits for a person's approval of {names}"
    text = (
        f"Not finished yet: {what} (work {work}, id {call}). Call again with exactly the same "
        "arguments to wait on, and to have its answer; meanwhile the run goes on."
    )
    about: JsonObject = {"call": call, "work": work, "waiting": list(waiting)}
    return {
        "content": [{"type": "text", "text": text}],
        "isError": True,
        "_meta": {RUNNING: about},
    }


def busy(call: str, work: str, full: int = 0) -> Fields:
    """Another task has the work. ``full``: so many wait for it already."""
    why = f"{full} tasks wait for it already" if full else "it has another task"
    text = (
        f"Not begun: work {work} is busy, {why} (id {call}). Wait until that one is finished, "
        "or name another work."
    )
    fields = refused(text)
    fields["_meta"] = {BUSY: {"call": call, "work": work}}
    return fields
