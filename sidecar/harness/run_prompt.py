"""What an agent is told: the task, and where its work stands when it cannot know that itself."""

from __future__ import annotations

from sidecar.harness.answers import Continued
from sidecar.harness.run_memory import Memory
from sidecar.harness.works import Work
from sidecar.harness.worktree import WorkState
from sidecar.model import JsonObject, TraceContext

__all__ = ["meta", "prompt"]

_COMMITS = 20


def prompt(
    text: str,
    work: Work,
    continued: Continued | None,
    memory: Memory | None,
    state: WorkState | None,
) -> str:
    """The prompt for a task. ``state`` is that of the worktree before it."""
    if continued == "summary":
        return _summary(text, work, memory, state)
    if continued is not None and memory is not None and memory.running:
        return (
            "The turn before this one was interrupted; what it had changed until then is still "
            f"in the worktree. Look at what is there first, then:\n\n{text}"
        )
    return text


def _summary(text: str, work: Work, memory: Memory | None, state: WorkState | None) -> str:
    parts = [
        f"You go on with work that was begun before, in the git worktree {work.path} on branch "
        f"{work.branch}. The conversation in which that happened cannot be taken up again; this "
        "is what is known of it. Look at what is there before you change anything."
    ]
    for number, episode in enumerate(memory.episodes if memory is not None else (), 1):
        parts.append(
            f"Task {number}:\n{episode.task}\n\nIt ended with {episode.stop_reason}; the last "
            f"message was:\n{episode.last_message or '(none)'}"
        )
    if memory is not None and memory.running:
        parts.append("The last task before this one was interrupted in the middle.")
    if state is not None:
        commits = [f"- {commit.sha[:12]} {commit.subject}" for commit in state.commits[-_COMMITS:]]
        parts.append("Commits so far:\n" + ("\n".join(commits) or "(none)"))
        if state.dirty:
            parts.append("There are changes that are not committed.")
    parts.append(f"The task now:\n{text}")
    return "\n\n".join(parts)


def meta(trace: TraceContext) -> JsonObject:
    """``_meta`` of a prompt: the keys that ACP reserves for W3C trace context."""
    keys = {
        "traceparent": trace.traceparent,
        "tracestate": trace.tracestate,
        "baggage": trace.baggage,
    }
    return {key: value for key, value in keys.items() if value}
