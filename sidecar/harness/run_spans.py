"""Spans of a run: the run itself, its agent's tool calls, questions, and what was committed."""

from __future__ import annotations

from typing import Final

from sidecar.harness.updates import FINISHED, ToolCall
from sidecar.harness.worktree import WorkState
from sidecar.model import TraceContext
from sidecar.ports.tracer import Span, Tracer

__all__ = ["RunSpans", "begin"]

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
TOOL: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
HARNESS: Final = "sidecar.harness"
WORK: Final = "sidecar.work"
CHECKOUT: Final = "sidecar.checkout"
CALL: Final = "sidecar.call"
KIND: Final = "sidecar.permission.kind"
ANSWER: Final = "sidecar.permission.answer"
RULE: Final = "sidecar.rule"
STOP: Final = "sidecar.stop_reason"
CONTINUED: Final = "sidecar.continued"
BRANCH: Final = "vcs.ref.head.name"
REVISION: Final = "vcs.ref.head.revision"

_MOST: Final = 500
"""Tool calls of which spans are open at once."""


def begin(
    tracer: Tracer, parent: TraceContext, *, harness: str, checkout: str, work: str, call: str
) -> Span:
    """The span of a run. It outlives the request that began it."""
    span = tracer.start(f"invoke_agent {harness}", "internal", parent)
    if span.sampled:
        span.set(OPERATION, "invoke_agent")
        span.set(AGENT, harness)
        span.set(HARNESS, harness)
        span.set(CHECKOUT, checkout)
        span.set(WORK, work)
        span.set(CALL, call)
    return span


class RunSpans:
    """Those below the span of one run."""

    def __init__(self, tracer: Tracer, run: Span) -> None:
        self._tracer = tracer
        self._run = run
        self._tools: dict[str, Span] = {}

    def tool(self, call: ToolCall) -> None:
        """A tool call as it is now."""
        span = self._tools.get(call.id)
        if span is None:
            if call.status in FINISHED and not call.kind:
                # The end of one whose beginning was in another run.
                return
            if len(self._tools) >= _MOST:
                self._tools.pop(next(iter(self._tools))).end("forgotten")
            name = call.kind or "other"
            span = self._tracer.start(f"execute_tool {name}", "internal", self._run.context)
            if span.sampled:
                span.set(OPERATION, "execute_tool")
                span.set(TOOL, call.name or name)
                span.set(TOOL_TYPE, "extension")
                span.set(TOOL_CALL, call.id)
            self._tools[call.id] = span
        if call.status in FINISHED:
            del self._tools[call.id]
            span.end(None if call.status == "completed" else call.status)

    def question(self, kind: str, call: str) -> Span:
        """The agent asks; whoever decides ends it by ``answered``."""
        span = self._tracer.start("session/request_permission", "internal", self._run.context)
        if span.sampled:
            span.set(KIND, kind)
            span.set(CALL, call)
        return span

    @staticmethod
    def answered(span: Span, answer: str, rule: str) -> None:
        if span.sampled:
            span.set(ANSWER, answer)
            if rule:
                span.set(RULE, rule)
        span.end()

    def end(
        self, stop_reason: str, session: str, continued: str | None, state: WorkState | None
    ) -> None:
        """The run is over, and so is everything that its agent did in it."""
        for span in self._tools.values():
            span.end("cancelled" if stop_reason == "cancelled" else "interrupted")
        self._tools.clear()
        run = self._run
        if run.sampled:
            for commit in state.commits if state is not None else ():
                made = self._tracer.start("sidecar.commit", "internal", run.context)
                made.set(REVISION, commit.sha)
                made.end()
            run.set(STOP, stop_reason)
            if session:
                run.set(CONVERSATION, session)
            if continued is not None:
                run.set(CONTINUED, continued)
            if state is not None:
                run.set(BRANCH, state.branch)
                run.set(REVISION, state.head)
        run.end(None if stop_reason == "end_turn" else stop_reason)
