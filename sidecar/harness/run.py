"""One run: a task that the agent of a work has, and whoever waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from sidecar.config import HarnessConfig
from sidecar.harness.answers import Ask
from sidecar.harness.naming import WorkKey, WorkName
from sidecar.harness.run_editor import ANSWERED, ASKED
from sidecar.harness.works import Work
from sidecar.model import Ask as AskClient
from sidecar.model import Caller, Client, Fields, JsonObject, Principal, TraceContext
from sidecar.ports.tracer import Span

__all__ = ["Question", "Run", "RunState", "Waiter"]

RunState = Literal["queued", "starting", "working", "over"]
MOST_ASKS: Final = 500
"""Questions of one run that its answer tells; the newest of more."""
QUIET: Final = 0.2
"""Seconds between two signs of progress, but for those that matter."""
SIGN: Final = 10.0
"""Seconds between two signs that the run is alive, where it has nothing to say."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the agent may not do before it is answered. ``since`` is the loop's time."""

    call: str
    tool: str
    title: str
    since: float

    def as_json(self) -> JsonObject:
        return {"id": self.call, "tool": self.tool, "title": self.title}


class Cancellable(Protocol):
    """An agent, as far as a run that is cancelled needs it."""

    async def cancel(self) -> None: ...


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits for the run. ``times`` counts the signs that it was given."""

    caller: Caller
    began: float
    times: int = 0
    next: float = 0.0


@dataclass(slots=True, eq=False)
class Run:
    """``claim`` says what was asked for by whom: an equal call joins. ``call`` is the id of the
    call that began it. ``principal`` is the agent's own."""

    claim: str
    call: str
    name: WorkName
    key: WorkKey
    text: str
    config: HarnessConfig
    caller: Caller
    principal: Principal
    span: Span
    state: RunState = "queued"
    work: Work | None = None
    task: asyncio.Task[None] | None = None
    agent: Cancellable | None = None
    """While it has a prompt."""
    opened: bool = False
    """An agent had a session in the work."""
    cancelling: bool = False
    interrupted: bool = False
    """The sidecar ends."""
    polled: bool = False
    """Somebody was told to call again."""
    delivered: bool = False
    """Somebody has had the answer."""
    unfinished: bool = True
    """It did not come to the agent's own end: an equal call goes on with the same work."""
    traced: bool = False
    """Its span has ended, with what came of it."""
    answer: Fields | None = None
    ended: float = 0.0
    said: str = ""
    """The last thing of progress that was said."""
    asks: list[Ask] = field(default_factory=list)
    questions: dict[str, Question] = field(default_factory=dict)
    waiters: list[Waiter] = field(default_factory=list)
    _wakers: set[asyncio.Future[None]] = field(default_factory=set)
    _quiet_until: float = 0.0
    _later: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        return self.state == "over"

    @property
    def trace(self) -> TraceContext:
        """That of the run, for what happens in it."""
        return self.span.context

    def agent_caller(self, trace: TraceContext, ask: AskClient | None = None) -> Caller:
        """The agent as a caller. ``ask`` reaches the person at the editor that has it work."""
        return Caller(
            self.principal,
            client=Client(self.config.profile),
            capabilities={"elicitation": {}} if ask is not None else {},
            trace=trace,
            ask=ask,
        )

    def editor(self) -> AskClient | None:
        """The way to ask at an editor that waits for the run, the one that came last."""
        for waiter in reversed(self.waiters):
            if waiter.caller.updates and waiter.caller.ask is not None:
                return waiter.caller.ask
        return None

    def relay(self, method: str, params: JsonObject) -> None:
        """Tell the editors that wait for the run."""
        for waiter in self.waiters:
            if waiter.caller.updates:
                waiter.caller.notify(method, params)

    @property
    def waiting(self) -> Sequence[JsonObject]:
        """What the agent waits for, the oldest first."""
        return [question.as_json() for question in self.questions.values()]

    @property
    def waits_since(self) -> float | None:
        """Since when, on the loop's clock; ``None`` when for nothing."""
        return min((each.since for each in self.questions.values()), default=None)

    # ----------------------------------------------------------------------------- changing

    def asked(self, question: Question) -> None:
        """The agent waits for an answer."""
        self.questions[question.call] = question
        self.relay(ASKED, question.as_json())
        title = f": {question.title}" if question.title else ""
        self.tell(f"waiting for approval of {question.tool}{title} (id {question.call})", True)
        self.wake()

    def answered(self, ask: Ask) -> None:
        """One of its questions is answered."""
        self.questions.pop(ask.call, None)
        self.relay(ANSWERED, {"id": ask.call})
        self.asks.append(ask)
        del self.asks[:-MOST_ASKS]
        self.wake()

    def end(self, answer: Fields, now: float) -> None:
        """It is over; whoever waits has the answer."""
        self.answer = answer
        self.ended = now
        self.state = "over"
        self.questions.clear()
        self._hush()
        self.wake()

    def wake(self) -> None:
        """Have everybody who waits look again."""
        for waker in self._wakers:
            if not waker.done():
                waker.set_result(None)

    async def change(self, timeout: float) -> None:
        """Return when there is something to look at, or after so many seconds."""
        loop = asyncio.get_running_loop()
        waker: asyncio.Future[None] = loop.create_future()
        self._wakers.add(waker)
        timer = loop.call_later(max(timeout, 0.0), _wake, waker)
        try:
            await waker
        finally:
            timer.cancel()
            self._wakers.discard(waker)

    # ----------------------------------------------------------------------------- progress

    def tell(self, text: str, at_once: bool = False) -> None:
        """Progress, for all who want to hear of it; of many in a moment the last is told."""
        loop = asyncio.get_running_loop()
        self.said = text
        if at_once:
            self._tell()
        elif self._later is None:
            self._later = loop.call_at(max(loop.time(), self._quiet_until), self._tell)

    def _tell(self) -> None:
        self._hush()
        now = asyncio.get_running_loop().time()
        self._quiet_until = now + QUIET
        for waiter in self.waiters:
            self.sign(waiter, now)

    def _hush(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def sign(self, waiter: Waiter, now: float) -> None:
        """A sign of life for one of them, with what was said last."""
        waiter.next = now + SIGN
        caller = waiter.caller
        if caller.progress is None:
            return
        waiter.times += 1
        params: JsonObject = {
            "progressToken": caller.progress,
            # It has to grow each time (MCP, progress); how far the agent is nobody knows.
            "progress": waiter.times,
            "message": self.said or f"work {self.name.work}: {self.state}",
        }
        caller.notify("notifications/progress", params)


def _wake(waker: asyncio.Future[None]) -> None:
    if not waker.done():
        waker.set_result(None)
