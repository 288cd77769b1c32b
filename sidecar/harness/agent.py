"""A coding agent at work: one process, one session, spoken to over ACP.

``start`` makes the process and greets it, ``open`` opens a session that asks, ``prompt`` runs a
turn, ``stop`` leaves nothing of it. The protocol is in ``session``; here are the process, the
clock, and the tasks that wait for answers to its questions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import replace
from typing import TypeVar

from sidecar import __version__
from sidecar.children import SpawnError
from sidecar.harness import session_modes, session_opening
from sidecar.harness.agent_errors import AgentError, AgentFailed, AgentGone, Epitaph, Reason
from sidecar.harness.agent_spec import AgentLimits, AgentListener, AgentSpec, Ended, Turn
from sidecar.harness.process import Process
from sidecar.harness.profiles import ProfileError
from sidecar.harness.profiles.guard import loosened
from sidecar.harness.protocol import Answer, Failure
from sidecar.harness.session import (
    Asked,
    Broken,
    Complaint,
    Effect,
    ModeTold,
    Replied,
    Said,
    Session,
    Withdrawn,
)
from sidecar.harness.session_asks import Decision, PermissionRequest
from sidecar.harness.session_opening import Ask, Came, Opened, OpenError, Step
from sidecar.harness.updates import RunState, Update, state_update
from sidecar.model import JsonObject, RequestId

__all__ = [
    "Agent",
    "AgentError",
    "AgentFailed",
    "AgentGone",
    "AgentLimits",
    "AgentListener",
    "AgentSpec",
    "Decision",
    "Epitaph",
    "Opened",
    "PermissionRequest",
    "Turn",
    "Update",
]

log = logging.getLogger(__name__)

T = TypeVar("T")
_now = time.monotonic
_COMPLAINTS = 20
"""Complaints about one agent that are logged; the rest is counted."""


class Agent:
    """Use it from one task at a time, but for ``cancel`` and ``stop``."""

    def __init__(self, spec: AgentSpec, listener: AgentListener) -> None:
        self.about: session_opening.Agent | None = None
        """What it says of itself, once it was greeted."""
        self.complaints = 0
        """How much it said that it should not have."""
        self._spec = spec
        self._limits = spec.limits
        self._listener = listener
        self._session = Session(spec.profile, spec.limits.bounds)
        self._process: Process
        self._replies: dict[int, asyncio.Future[Answer | Failure]] = {}
        self._asks: dict[RequestId, asyncio.Task[None]] = {}
        self._mode_told = asyncio.Event()
        self._over: AgentError | None = None
        self._stopping = False
        self._running = False
        self._silent = False
        self._cancelled = False
        self._state: RunState = "idle"
        self._frames = 0
        self._frame_at = _now()
        self._chores: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, spec: AgentSpec, listener: AgentListener) -> Agent:
        """Start the process and greet it. Raises AgentError; then nothing of it is left."""
        loose = loosened(spec.profile, spec.cwd)
        if loose:
            raise AgentFailed(
                spec.harness,
                "guarded",
                f"{loose[0].path} in the worktree would loosen {spec.profile.title}: "
                f"{loose[0].why}; remove it from the branch, or do the work by hand",
            )
        agent = cls(spec, listener)
        try:
            env = spec.profile.environment(spec.env, str(spec.cwd))
            agent._process = await Process.start(
                spec.harness,
                spec.command,
                env,
                spec.cwd,
                heard=agent._heard,
                ended=agent._ended,
                secrets=_told(spec.mcp_servers),
            )
        except (SpawnError, ProfileError) as error:
            raise AgentFailed(spec.harness, "spawn", str(error)) from None
        try:
            greeting = session_opening.initializing(__version__)
            agent.about = await agent._steps(greeting, agent._limits.initialize)
        except BaseException:
            await agent.stop()
            raise
        return agent

    @property
    def session(self) -> str:
        """The id of its session; empty before ``open``."""
        return self._session.id

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stderr_tail(self) -> str:
        """The end of what it wrote on stderr; see ``Process.tail`` for what may be in it."""
        return self._process.tail()

    @property
    def mode(self) -> str:
        """In which it last said to be; empty when it has none."""
        return self._session.mode

    @property
    def over(self) -> AgentError | None:
        """Why it is of no use any more; ``None`` while it is."""
        return self._over

    @property
    def idle(self) -> bool:
        """Whether a prompt may be sent."""
        return self._over is None and self._session.phase == "idle" and not self._running

    def memory(self) -> int:
        """Bytes that its process tree holds for itself."""
        return self._process.memory()

    async def open(self, session: str | None) -> Opened:
        """Open a session, ``session`` again where that can be done, and have it ask. Raises
        AgentError; the agent is then to be stopped."""
        env = self._spec.env
        login = next(
            (way for name, way in self._spec.profile.authenticate.items() if env.get(name)), None
        )
        assert self.about is not None
        steps = session_opening.opening(
            self._session,
            self._spec.profile,
            self.about,
            cwd=str(self._spec.cwd),
            mcp_servers=self._spec.mcp_servers,
            earlier=session,
            login=login,
        )
        opened = await self._steps(steps, self._limits.open)
        mode = self._session.mode
        if mode and not session_modes.asks(self._spec.profile.asking, mode, ""):
            # It went there between its answer and now.
            raise self._fail("mode", f"it is in mode {mode[:40]!r}, in which it does not ask")
        self._session.opened()
        self._chore(self._watch(), "watchdog")
        return opened

    async def prompt(self, text: str, *, meta: JsonObject | None = None) -> Turn:
        """Run one turn. Raises AgentError, with what was said until then.

        Cancelled from outside, the turn is asked to end, and no other begins before it has.
        """
        self._check()
        if not self.idle:
            raise RuntimeError("a turn is running already")
        self._running = True
        self._silent = self._cancelled = False
        try:
            self._frame_at = _now()
            blocks: list[JsonObject] = [{"type": "text", "text": text}]
            reply = self._sent(self._session.prompt(blocks, meta or {}))
            self._tell("running")
            try:
                answer = await asyncio.shield(reply)
            except asyncio.CancelledError:
                self._cancel()
                raise
            turn = self._turn(answer)
            await self._settle(turn.ended_by)
            self._check()
            message = self._session.last_message
            return replace(turn, last_message=message.text, cut=message.cut)
        finally:
            self._running = False
            self._tell("idle")

    async def cancel(self) -> None:
        """Have the running turn end, and answer its questions with ``cancelled``. One that does
        not end in time is ended with its process. Nothing happens when none runs."""
        if self._over is not None or self._session.phase not in ("turn", "cancelling"):
            return
        pending = list(self._replies.values())
        self._cancel()
        _, late = await asyncio.wait(pending, timeout=self._limits.cancel)
        if late and self._over is None:
            said = "it said nothing more, and" if self._silent else "it"
            reason: Reason = "silent" if self._silent else "slow"
            self._fail(reason, f"{said} did not end its turn when cancelled; it was ended")
            await self._process.stop(self._limits.grace)

    async def stop(self) -> None:
        """End it and everything it started. Idempotent."""
        self._stopping = True
        self._fail("stopped", "it was stopped")
        try:
            await self._process.stop(self._limits.grace)
        finally:
            tasks = {*self._asks.values(), *self._chores} - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    # ---------------------------------------------------------------------------- speaking

    async def _steps(self, steps: Generator[Step, Came, T], timeout: float) -> T:
        """Do what a generator of steps asks for. Raises AgentError."""
        came: Came = None
        try:
            while True:
                try:
                    step = steps.send(came)
                except StopIteration as done:
                    result: T = done.value
                    return result
                came = await self._step(step, timeout)
        except OpenError as error:
            raise self._fail(error.reason, str(error)) from None
        finally:
            steps.close()

    async def _step(self, step: Step, timeout: float) -> Came:
        self._check()
        if not isinstance(step, Ask):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.mode):
                    while self._session.told == step.told:
                        self._mode_told.clear()
                        await self._mode_told.wait()
                        self._check()
            return None
        reply = self._sent(self._session.call(step.method, step.params))
        try:
            answer = await asyncio.wait_for(reply, timeout)
        except TimeoutError:
            why = f"it did not answer {step.method} within {timeout:g} s"
            raise self._fail("slow", why) from None
        return answer.result if isinstance(answer, Answer) else answer.error

    def _sent(self, id_: int) -> asyncio.Future[Answer | Failure]:
        """The answer to a request that the session has just made."""
        reply: asyncio.Future[Answer | Failure] = asyncio.get_running_loop().create_future()
        self._replies[id_] = reply
        self._flush()
        return reply

    def _flush(self) -> None:
        data = self._session.outgoing()
        if data and self._over is None and not self._process.write(data):
            self._break("flood", "it does not read what it is told")

    def _check(self) -> None:
        if self._over is not None:
            raise self._over

    def _turn(self, reply: Answer | Failure) -> Turn:
        if self._silent:
            why = f"it said nothing for {self._limits.silence:g} s, and its turn was cancelled"
            raise self._error("silent", why)
        if isinstance(reply, Failure):
            if self._cancelled:  # not what the protocol asks for, but it has ended
                return Turn("cancelled", "", "cancel")
            raise self._error("error", session_opening.said(reply.error))
        stop, usage = reply.result.get("stopReason"), reply.result.get("usage")
        ended: Ended = "agent"
        if self._cancelled:
            ended = "cancel"
        elif self._session.denied and stop == self._spec.profile.denial:
            ended = "denial"
        return Turn(
            stop if isinstance(stop, str) else "",
            "",
            ended,
            usage=usage if isinstance(usage, dict) else None,
            raw=reply.result,
        )

    async def _settle(self, ended_by: Ended) -> None:
        """What belongs to a turn may come after its end: wait until nothing does."""
        quiet = self._spec.profile.drain
        until = _now() + max(quiet, self._limits.settle)
        while (now := _now()) < until and self._over is None:
            since = now - self._frame_at
            # A tool that it left running may have more to say; one of a turn that was ended for
            # it will not.
            if since >= quiet and not (ended_by == "agent" and self._session.tools.running):
                return
            await asyncio.sleep(max(0.01, min(quiet - since, quiet)))

    def _cancel(self) -> None:
        self._cancelled = True
        for id_ in self._session.cancel():
            self._drop(id_)
        self._flush()

    # --------------------------------------------------------------------------- listening

    def _heard(self, data: bytes) -> None:
        try:
            for effect in self._session.receive(data):
                if self._over is not None:
                    return
                self._apply(effect)
        except Exception:
            # Whatever we did not foresee costs this agent and nobody else.
            log.exception("%s: what it said could not be handled", self._spec.harness)
            self._break("protocol", "what it said could not be handled; the log says why")
            return
        if self._session.frames != self._frames:
            self._frames = self._session.frames
            self._frame_at = _now()
        self._flush()

    def _apply(self, effect: Effect) -> None:
        if isinstance(effect, Said):
            self._listener.update(effect.update)
        elif isinstance(effect, Asked):
            self._ask(effect.request)
        elif isinstance(effect, Withdrawn):
            self._drop(effect.id)
        elif isinstance(effect, Replied):
            reply = self._replies.pop(effect.reply.id, None)
            if reply is not None and not reply.done():
                reply.set_result(effect.reply)
        elif isinstance(effect, ModeTold):
            self._in_mode(effect)
        elif isinstance(effect, Complaint):
            self._complain(effect.why)
        elif isinstance(effect, Broken):
            self._break("flood", effect.why)

    def _in_mode(self, told: ModeTold) -> None:
        self._mode_told.set()
        if self._session.phase == "opening":
            return
        self._listener.mode_changed(told.mode, told.asks)
        if not told.asks:
            mode = told.mode[:40]
            self._break("mode", f"it switched to mode {mode!r}, in which it does not ask")

    def _ask(self, request: PermissionRequest) -> None:
        name = f"{self._spec.harness}: permission"
        self._asks[request.id] = asyncio.create_task(self._answer(request), name=name)
        self._tell("requires_action")

    async def _answer(self, request: PermissionRequest) -> None:
        decision: Decision
        try:
            decision = await self._listener.permission(request)
        except Exception:
            log.exception("%s: a permission could not be decided", self._spec.harness)
            decision = "reject"
        finally:
            if self._asks.get(request.id) is asyncio.current_task():
                del self._asks[request.id]
        # Silence counts from here: until now it waited for us.
        self._frame_at = _now()
        self._session.permit(request.id, decision)
        self._flush()
        if not self._session.waiting and self._running:
            self._tell("running")

    def _drop(self, id_: RequestId) -> None:
        task = self._asks.pop(id_, None)
        if task is not None:
            task.cancel()
            self._keep(task)
        if not self._session.waiting and self._running:
            self._tell("running")

    def _tell(self, state: RunState) -> None:
        if state != self._state:
            self._state = state
            self._listener.update(state_update(state))

    def _complain(self, why: str) -> None:
        self.complaints += 1
        if self.complaints <= _COMPLAINTS:
            log.warning("%s: %s", self._spec.harness, why)
        if self.complaints == _COMPLAINTS:
            log.warning("%s: no more of its faults are logged", self._spec.harness)

    # ------------------------------------------------------------------------------ ending

    def _ended(self, epitaph: Epitaph) -> None:
        """Its process is gone, or its stdout is closed."""
        if self._over is not None:
            return
        message = self._session.last_message.text
        self._finish(AgentGone(self._spec.harness, epitaph, message))
        self._listener.gone(epitaph)

    def _error(self, reason: Reason, why: str) -> AgentFailed:
        message = self._session.last_message.text if self._running else ""
        return AgentFailed(self._spec.harness, reason, why, message)

    def _fail(self, reason: Reason, why: str) -> AgentError:
        """From now on it is of no use; why, which is what it already was if it already was."""
        if self._over is None:
            self._finish(self._error(reason, why))
        assert self._over is not None
        return self._over

    def _finish(self, error: AgentError) -> None:
        self._over = error
        if error.reason != "stopped" and log.isEnabledFor(logging.DEBUG):
            # It prints requests, keys and code there: for whoever looks for a fault, and at no
            # level that is on by itself.
            words = self._process.last_words()
            log.debug("%s: the end of its stderr: %s", self._spec.harness, words or "(nothing)")
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # somebody who waits still gets it
        self._replies.clear()
        self._mode_told.set()
        for id_ in tuple(self._asks):
            self._drop(id_)

    def _break(self, reason: Reason, why: str) -> None:
        """It must not go on: end its processes at once, without asking."""
        if self._over is None:
            self._fail(reason, why)
            self._chore(self._process.stop(0.0), "end")

    def _chore(self, work: Coroutine[object, object, None], name: str) -> None:
        self._keep(asyncio.create_task(work, name=f"{self._spec.harness}: {name}"))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Until it is done, and at the latest until ``stop``."""
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _watch(self) -> None:
        """Silence and memory, until it is over."""
        while self._over is None:
            await asyncio.sleep(min(self._limits.look, self._limits.silence / 4))
            held, most = self.memory(), self._limits.memory
            if most is not None and held > most:
                self._break("memory", f"it used more than {most >> 20} MiB, and was ended")
            elif self._quiet_for() > self._limits.silence:
                self._silent = True
                await self.cancel()

    def _quiet_for(self) -> float:
        """Seconds since its last frame; none while it waits for us, or has nothing to do."""
        if not self._running or self._silent or self._session.waiting:
            return 0.0
        return _now() - self._frame_at


def _told(servers: Sequence[JsonObject]) -> list[str]:
    """The tokens that it is given for MCP servers, with the word before them and without."""
    found: list[str] = []
    for server in servers:
        headers = server.get("headers")
        for header in headers if isinstance(headers, list) else []:
            value = header.get("value") if isinstance(header, dict) else None
            if isinstance(value, str):
                found += [value, value.rpartition(" ")[2]]
    return found
