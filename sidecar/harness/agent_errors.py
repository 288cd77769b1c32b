"""How a coding agent fails, in words that may be shown to whoever called it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "spawn",  # its process could not be started
    "guarded",  # a file in its worktree would have it ask less
    "protocol",  # it does not speak ACP as we need it
    "auth",  # it wants a login
    "mcp",  # it cannot use the MCP servers it is given
    "mode",  # it is, or went, into a mode in which it does not ask
    "error",  # it answered a prompt with an error
    "silent",  # it said nothing for too long
    "slow",  # it took too long to start, or to end when cancelled
    "memory",  # it used more than it may
    "flood",  # it said more than it may, or took nothing
    "gone",  # its process ended by itself
    "stopped",  # we ended it
]

_SPOKEN = (
    (r"heap out of memory|out of memory|ENOMEM|MemoryError", "memory that ran out"),
    (r"ENOSPC|no space left", "a full disk"),
    (r"MODULE_NOT_FOUND|cannot find module|No module named", "a missing part of its program"),
    (r"EACCES|EPERM|permission denied", "something that it may not do"),
    (r"ECONNREFUSED|ENOTFOUND|ETIMEDOUT|ECONNRESET|EAI_AGAIN", "a host that it cannot reach"),
    (r"\b401\b|unauthorized|invalid.{0,10}api.?key|not logged in", "a login that is missing"),
    (r"EBADENGINE|unsupported engine|requires node", "another version of Node.js"),
    (r"panicked at|core dumped|segmentation fault", "a crash"),
    (r"ENOENT|no such file", "a file that is not there"),
    (r"Traceback \(most recent|UnhandledPromise|uncaught", "an error that it did not catch"),
)


@dataclass(frozen=True, slots=True)
class Epitaph:
    """How a process ended. What it wrote on stderr is not part of it: agents print requests,
    keys and code there. Only how much it was, and which of a few known troubles it names."""

    status: int | None
    lines: int
    size: int
    spoke_of: tuple[str, ...] = ()

    @classmethod
    def of(cls, status: int | None, stderr: str) -> Epitaph:
        """``stderr`` is the end of what it wrote."""
        spoke = [what for pattern, what in _SPOKEN if re.search(pattern, stderr, re.I)]
        return cls(status, len(stderr.splitlines()), len(stderr.encode()), tuple(spoke[:3]))

    def __str__(self) -> str:
        if self.status is None:
            how = "its process closed its stdout"
        elif self.status < 0:
            how = f"its process was ended by signal {-self.status}"
        else:
            how = f"its process exited with status {self.status}"
        if not self.size:
            return f"{how} and wrote nothing on stderr"
        spoke = f", which speak of {' and '.join(self.spoke_of)}" if self.spoke_of else ""
        lines = "1 line" if self.lines == 1 else f"{self.lines} lines"
        return f"{how} and left {lines} on stderr{spoke}"


class AgentError(Exception):
    """A coding agent failed. The message begins with the harness's name.

    ``last_message`` is what it had said in the turn that ended so, empty outside of one.
    """

    def __init__(self, harness: str, reason: Reason, why: str, last_message: str = "") -> None:
        super().__init__(f"{harness}: {why}")
        self.harness = harness
        self.reason: Reason = reason
        self.why = why
        self.last_message = last_message


class AgentFailed(AgentError):
    """It is of no use as it is, or the turn failed. ``reason`` ``error`` leaves it usable."""


class AgentGone(AgentError):
    """Its process ended by itself."""

    def __init__(self, harness: str, epitaph: Epitaph, last_message: str = "") -> None:
        super().__init__(harness, "gone", str(epitaph), last_message)
        self.epitaph = epitaph
