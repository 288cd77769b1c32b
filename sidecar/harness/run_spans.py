"""Spans of a run: the run itself, its agent's tool calls, questions, and what was committed."""

from __future__ import annotations

from typing import Final

from sidecar.harness.updates import FINISHED, ToolCall
from sidecar.harness.worktree import WorkState
from sidecar.model import TraceContext
from sidecar.ports.tracer import Span, Tracer
from sidecar.semconv import GenAi, Key, Names, Vcs

__all__ = ["RunSpans", "begin"]

_MOST: Final = 500
"""Tool calls of which spans are open at once."""


def begin(
    tracer: Tracer, parent: TraceContext, *, harness: str, checkout: str, work: str, call: str
) -> Span:
    """The span of a run. It outlives the request that began it."""
    span = tracer.start(f"invoke_agent {harness}", "internal", parent)
    if span.sampled:
        span.set(GenAi.OPERATION, GenAi.INVOKE_AGENT)
        span.set(GenAi.AGENT, harness)
        span.set(Key.HARNESS, harness)
        span.set(Key.CHECKOUT, checkout)
        span.set(Key.WORK, work)
        span.set(Key.CALL, call)
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
                span.set(GenAi.OPERATION, GenAi.EXECUTE_TOOL)
                span.set(GenAi.TOOL, call.name or name)
                span.set(GenAi.TOOL_TYPE, "extension")
                span.set(GenAi.TOOL_CALL, call.id)
            self._tools[call.id] = span
        if call.status in FINISHED:
            del self._tools[call.id]
            span.end(None if call.status == "completed" else call.status)

    def question(self, kind: str, call: str) -> Span:
        """The agent asks; whoever decides ends it by ``answered``."""
        span = self._tracer.start("session/request_permission", "internal", self._run.context)
        if span.sampled:
            span.set(Key.PERMISSION_KIND, kind)
            span.set(Key.CALL, call)
        return span

    @staticmethod
    def answered(span: Span, answer: str, rule: str) -> None:
        if span.sampled:
            span.set(Key.PERMISSION_ANSWER, answer)
            if rule:
                span.set(Key.RULE, rule)
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
                made = self._tracer.start(Names.COMMIT, "internal", run.context)
                made.set(Vcs.COMMIT, commit.sha)
                made.end()
            run.set(Key.STOP, stop_reason)
            if session:
                run.set(GenAi.CONVERSATION, session)
            if continued is not None:
                run.set(Key.CONTINUED, continued)
            if state is not None:
                run.set(Vcs.BRANCH, state.branch)
                run.set(Vcs.COMMIT, state.head)
        run.end(None if stop_reason == "end_turn" else stop_reason)
