"""Who hears an agent while it has a run: progress, spans and events of what it says, and the
gate for what it asks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from sidecar.events import Bus, SessionUpdate
from sidecar.harness.agent import Decision, Epitaph, PermissionRequest, Update
from sidecar.harness.answers import Ask
from sidecar.harness.permission import TooLarge, permission_call, resolve
from sidecar.harness.run import Question, Run
from sidecar.harness.run_editor import UPDATE, asking
from sidecar.harness.run_spans import RunSpans
from sidecar.model import (
    CLIENT_CANCELLED,
    Admitted,
    Call,
    Refused,
    RpcError,
    TraceContext,
    Unavailable,
)
from sidecar.ports.gate import Gate
from sidecar.ports.tracer import Tracer

__all__ = ["Ears"]

log = logging.getLogger(__name__)

_TITLE: Final = 200
_MOST_TOOLS: Final = 1000
"""Tool calls of which is known what was told last."""
_LEAVING: Final = 5.0
"""Seconds for a question that nobody waits for to be written down as such."""


class Ears:
    """An agent's listener, for all the runs that it has one after the other.

    ``is_gone`` is true once its process has ended without our doing.
    """

    def __init__(
        self, gate: Gate, bus: Bus, tracer: Tracer, *, name: str, separator: str, home: str
    ) -> None:
        """``name`` is the sidecar's own; ``home`` what ``~`` is to the agent."""
        self.is_gone = False
        self._gate = gate
        self._bus = bus
        self._tracer = tracer
        self._name = name
        self._separator = separator
        self._home = home
        self._run: Run | None = None
        self._spans: RunSpans | None = None
        self._tools: dict[str, tuple[str, str]] = {}

    def attend(self, run: Run) -> RunSpans:
        """From now on what the agent says belongs to this run; its spans."""
        self._run = run
        self._spans = RunSpans(self._tracer, run.span)
        self._tools.clear()
        return self._spans

    def rest(self) -> None:
        """The agent has no run."""
        self._run = self._spans = None

    # ------------------------------------------------------------------------- what it says

    def update(self, update: Update) -> None:
        run, spans = self._run, self._spans
        if run is None or spans is None:
            return
        if self._bus.wanted(SessionUpdate):
            self._bus.publish(
                SessionUpdate(
                    trace=run.trace,
                    name=self._name,
                    agent_id=run.caller.principal.name,
                    harness=run.config.name,
                    work=run.name.work,
                    update=update.kind,
                )
            )
        if update.replayed:
            return
        if update.state is None:
            run.relay(UPDATE, {"update": update.raw})
        if update.tool is not None:
            spans.tool(update.tool)
            tool = update.tool
            seen = (tool.title, tool.status)
            if self._tools.get(tool.id) != seen:
                if len(self._tools) >= _MOST_TOOLS:
                    self._tools.clear()
                self._tools[tool.id] = seen
                run.tell(f"{tool.kind or 'tool'} {tool.status}: {tool.title[:_TITLE]}")
        if update.plan:
            entries = update.plan
            done = sum(entry.get("status") == "completed" for entry in entries)
            now = next((e for e in entries if e.get("status") == "in_progress"), None)
            what = now.get("content") if now is not None else None
            text = f": {what[:_TITLE]}" if isinstance(what, str) else ""
            run.tell(f"plan {done}/{len(entries)}{text}")

    def mode_changed(self, mode: str, asks: bool) -> None:
        if not asks:
            log.warning("%s: the agent stopped asking and is ended", self._what())

    def gone(self, epitaph: Epitaph) -> None:
        self.is_gone = True

    def _what(self) -> str:
        return "an idle agent" if self._run is None else f"work {self._run.key}"

    # ------------------------------------------------------------------------- what it asks

    async def permission(self, request: PermissionRequest) -> Decision:
        """See ``AgentListener``."""
        run, spans = self._run, self._spans
        if run is None or spans is None or run.work is None:
            return "reject"
        work = run.work
        paths = await asyncio.to_thread(resolve, request, Path(work.path), self._home)
        try:
            call = permission_call(
                request,
                paths,
                work,
                harness=run.config.name,
                parent=run.call,
                separator=self._separator,
            )
        except TooLarge:
            log.warning("%s: a question is too large to be looked at; rejected", self._what())
            name = f"{run.config.name}{self._separator}{request.kind}"
            run.answered(Ask("", name, request.title[:_TITLE], "reject", "harness/too_large"))
            return "reject"
        title = request.title[:_TITLE]
        now = asyncio.get_running_loop().time()
        span = spans.question(request.kind, call.id)
        # What is asked about may not have been told before.
        told = {**request.tool_call, "sessionUpdate": "tool_call_update"}
        run.relay(UPDATE, {"update": told})
        run.asked(Question(call.id, call.target, title, now))
        answer: Decision = "cancelled"
        rule = ""
        try:
            answer, rule = await self._decided(call, run, span.context, request)
        finally:
            run.answered(Ask(call.id, call.target, title, answer, rule))
            spans.answered(span, answer, rule)
        return answer

    async def _decided(
        self, call: Call, run: Run, trace: TraceContext, request: PermissionRequest
    ) -> tuple[Decision, str]:
        caller = run.agent_caller(trace, asking(run, request, call.id))
        if not request.allowable:
            # Whatever is said to it, it can only be told no: nobody is asked.
            return "reject", self._gate.decide(call, caller).rule
        admitting = asyncio.ensure_future(self._gate.admit(call, caller))
        try:
            await asyncio.wait({admitting})
        except asyncio.CancelledError:
            # An agent that is gone asks nothing; one that is there has taken its question back.
            admitting.cancel(None if self.is_gone or run.interrupted else CLIENT_CANCELLED)
            await asyncio.wait({admitting}, timeout=_LEAVING)
            raise
        try:
            admitted = admitting.result()
        except (Unavailable, RpcError) as failure:
            log.warning("%s: a question was not decided: %s", self._what(), failure)
            return "reject", "gate/failed"
        except Exception:
            log.exception("%s: a question could not be decided; rejected", self._what())
            return "reject", "gate/failed"
        if isinstance(admitted, Refused):
            return "reject", admitted.decision.rule
        await self._settle(admitted)
        return "allow", admitted.decision.rule

    async def _settle(self, admitted: Admitted) -> None:
        if admitted.settle is not None:
            # The agent does it, and does not say which of its results is this one's.
            await admitted.settle({})
