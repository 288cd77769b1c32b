"""All runs of all harnesses: who has which work, who waits for what, and what is swept when.

A run belongs to the task that is made for it here, not to the request that began it: requests
come, wait for a while, and come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from sidecar.config import HarnessConfig
from sidecar.events import Bus, WorkChanged
from sidecar.harness import run_spans
from sidecar.harness.answers import busy, refused, running
from sidecar.harness.harness import Harness
from sidecar.harness.naming import WorkKey, WorkName, key_of_slugs
from sidecar.harness.run import Run, Waiter
from sidecar.harness.run_agents import IDLE, Agents, StartAgent, start_agent
from sidecar.harness.run_labels import Labels
from sidecar.harness.run_memory import KEPT_FOR, Memories, Memory
from sidecar.harness.run_work import Worker
from sidecar.harness.tokens import RunTokens, agent_principal
from sidecar.harness.tool import BadTask, Task, name_of, read
from sidecar.harness.works import Occupation, WorkError, Works
from sidecar.harness.worktree import PRIVATE
from sidecar.model import CLIENT_CANCELLED, Call, Caller, Fields, JsonObject, Unavailable
from sidecar.ports.gate import Gate
from sidecar.ports.proxy import ChildProxy
from sidecar.ports.secrets import Secrets
from sidecar.ports.tracer import CURRENT, PassingTracer, Tracer
from sidecar.wire import json

__all__ = ["Runs"]

log = logging.getLogger(__name__)

MOST_RUNS: Final = 64
"""Runs of all works at once, those that wait for their work included."""
QUEUE: Final = 8
"""Tasks that wait for one work."""
_MOST_KEPT: Final = 500
"""Answers that nobody has had yet, and works that were not finished, that are remembered."""
_SPARE: Final = 0.25
"""Seconds before a caller's deadline in which an answer still reaches it."""
_CANCEL: Final = 20.0
"""Seconds for a cancelled run to end; beyond, its processes are ended."""
_CLOSE: Final = 15.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A call that would begin a run."""

    config: HarnessConfig
    call: Call
    caller: Caller
    claim: str
    text: str
    name: WorkName


class Runs:
    """Implements ``ports.agents.AgentRuns`` and ``works.Occupants``.

    ``open`` it inside the loop, before anything else; ``close`` it last. It opens and closes
    its ``works``.
    """

    def __init__(
        self,
        works: Works,
        harnesses: Mapping[str, HarnessConfig],
        checkouts: Sequence[str],
        *,
        root: Path,
        gate: Gate,
        bus: Bus,
        tokens: RunTokens,
        labels: Labels,
        secrets: Secrets,
        tracer: Tracer | None = None,
        mcp_url: Callable[[], str | None] = lambda: None,
        servers: Callable[[], Iterable[str]] = tuple,
        proxy: ChildProxy | None = None,
        hold: float = 45.0,
        sweep: float | None = 86400.0,
        name: str = "sidecar",
        separator: str = "__",
        start: StartAgent = start_agent,
        idle: float = IDLE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``root`` is the root of ``works``; ``checkouts`` are their names. ``mcp_url`` is where
        we listen for agents, ``servers`` gives the names of the MCP servers there are. ``hold``
        (``parking.hold``) and ``sweep`` are in seconds, ``name`` is the sidecar's own."""
        self._works = works
        self._bus = bus
        self._checkouts = tuple(checkouts)
        self._tracer = tracer or PassingTracer()
        self._servers = servers
        self._hold = hold
        self._sweep_every = sweep
        self._clock = clock
        self._memories = Memories(root / PRIVATE / "sessions")
        self._agents = Agents(start, idle=idle)
        self._worker = Worker(
            works,
            self._agents,
            self._memories,
            gate=gate,
            bus=bus,
            tracer=self._tracer,
            tokens=tokens,
            labels=labels,
            secrets=secrets,
            mcp_url=mcp_url,
            proxy=proxy,
            name=name,
            separator=separator,
            clock=clock,
        )
        self._harnesses = self._make(harnesses)
        self._claims: dict[str, Run] = {}
        self._left: dict[str, Memory] = {}
        self._unfinished: dict[str, WorkName] = {}
        self._active: dict[WorkKey, list[Run]] = {}
        self._chores: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._draining = False
        works.occupants = self

    def _make(self, harnesses: Mapping[str, HarnessConfig]) -> dict[str, Harness]:
        return {name: Harness(config, self._checkouts, self) for name, config in harnesses.items()}

    # ------------------------------------------------------------------------ start and end

    async def open(self) -> None:
        """Open the works, find what was left unfinished, and begin to sweep. Raises WorkError
        or CheckoutError, which say what to do."""
        await self._works.open()
        await self._reconcile()
        self._sweeping = asyncio.create_task(self._sweeps(), name="sweeps")

    async def _reconcile(self) -> None:
        """Runs that were interrupted are known by what asked for them, so that the same call
        goes on with the same work; what is remembered of works that are gone is forgotten."""
        there = {work.key for work in await self._works.works()}
        for memory in await asyncio.to_thread(lambda: list(self._memories.all())):
            key = memory.name.key
            if key not in there:
                await asyncio.to_thread(self._memories.delete, key)
            elif memory.running:
                log.warning("work %s: its run was interrupted; the next one goes on", key)
                self._unfinished[memory.claim] = memory.name
            elif memory.answer and memory.ended + KEPT_FOR > self._clock():
                self._left[memory.claim] = memory
            elif memory.unfinished:
                self._unfinished[memory.claim] = memory.name

    def drain(self) -> None:
        """The end is near: whoever waits for a person, or for an agent that has not begun, is
        told to call again."""
        self._draining = True
        for run in self._all():
            run.wake()

    async def close(self) -> None:
        """Interrupt every run, and end every agent. The works stay, for the next time.
        Idempotent."""
        self.drain()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
            self._sweeping = None
        tasks: list[asyncio.Task[None]] = []
        for run in self._all():
            run.interrupted = True
            if run.task is not None:
                run.task.cancel()
                tasks.append(run.task)
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE)
        await self._agents.close()
        if self._chores:
            await asyncio.wait(tuple(self._chores), timeout=_CLOSE)
        for chore in tuple(self._chores):
            chore.cancel()
        await self._works.close()

    def reconfigure(
        self,
        harnesses: Mapping[str, HarnessConfig],
        checkouts: Sequence[str],
        *,
        hold: float,
        sweep: float | None,
    ) -> None:
        """Other settings, for the runs that begin from now on; those that run are not disturbed,
        but for those of a harness that is gone. ``upstreams`` gives the same object for a
        harness that did not change."""
        before = self._harnesses if tuple(checkouts) == self._checkouts else {}
        self._checkouts = tuple(checkouts)
        made = self._make(harnesses)
        self._harnesses = {
            name: old
            if (old := before.get(name)) is not None and old.config == harness.config
            else harness
            for name, harness in made.items()
        }
        for run in self._all():
            if run.config.name not in harnesses:
                self._cancel(run)
        self._hold = hold
        if sweep != self._sweep_every:
            self._sweep_every = sweep
            if self._sweeping is not None:
                self._sweeping.cancel()
                self._sweeping = asyncio.create_task(self._sweeps(first=False), name="sweeps")

    def revoked(self, principal: str) -> None:
        """A principal may not call any more: what it began is cancelled."""
        for run in self._all():
            if run.caller.principal.name == principal:
                self._cancel(run)

    def upstreams(self) -> Sequence[Harness]:
        """The harnesses, in the order of the configuration."""
        return tuple(self._harnesses.values())

    def _all(self) -> list[Run]:
        return [run for runs in self._active.values() for run in runs]

    # --------------------------------------------------------------------------------- calls

    def joins(self, harness: str, call: Call, caller: Caller) -> bool:
        """See ``ports.agents.AgentUpstream``."""
        claim = _claim(harness, call, caller)
        return self._known(claim) is not None or claim in self._left

    async def run(self, config: HarnessConfig, call: Call, caller: Caller) -> Fields:
        """See ``ports.agents.AgentUpstream``."""
        claim = _claim(config.name, call, caller)
        run = self._known(claim)
        if run is None:
            left = self._left.pop(claim, None)
            if left is not None:
                return await self._hand_over(left)
            try:
                task = read(call.params, self._checkouts, caller.principal)
                name = self._name(config, task, caller, claim)
            except BadTask as bad:
                return refused(str(bad))
            begun = self._begin(_Wanted(config, call, caller, claim, task.text, name))
            if not isinstance(begun, Run):
                return begun
            run = begun
        return await self._wait(run, caller)

    def _known(self, claim: str) -> Run | None:
        """The run that an equal call began, unless its answer has waited for too long."""
        run = self._claims.get(claim)
        if run is not None and run.over and run.ended + KEPT_FOR < self._clock():
            del self._claims[claim]
            return None
        return run

    def _name(self, config: HarnessConfig, task: Task, caller: Caller, claim: str) -> WorkName:
        """A task without a work that was not finished goes on with the work that it had."""
        earlier = self._unfinished.get(claim)
        if earlier is not None and not task.work:
            return earlier
        return name_of(config.name, task, caller.principal)

    def _begin(self, wanted: _Wanted) -> Run | Fields:
        """Nothing is awaited here: of two equal calls at once, one begins and one joins."""
        config, call, caller, name = wanted.config, wanted.call, wanted.caller, wanted.name
        if self._draining:
            raise Unavailable(config.name, "the sidecar is ending", ran="no")
        key = name.key
        others = [run for run in self._active.get(key, ()) if not run.cancelling]
        if others and config.busy == "refuse":
            return busy(others[0].call, name.work)
        if len(others) > QUEUE:
            return busy(others[0].call, name.work, full=len(others) - 1)
        if len(self._all()) >= MOST_RUNS:
            return refused(
                f"Not begun: {MOST_RUNS} tasks of coding agents run already. Wait until some of "
                "them have ended"
            )
        span = run_spans.begin(
            self._tracer,
            caller.trace,
            harness=config.name,
            checkout=name.checkout,
            work=name.work,
            call=call.id,
        )
        principal = agent_principal(key, caller.principal, config.mcp, self._servers())
        run = Run(wanted.claim, call.id, name, key, wanted.text, config, caller, principal, span)
        self._claims[wanted.claim] = run
        self._active.setdefault(key, []).append(run)
        run.task = asyncio.create_task(self._task(run), name=f"run of {key}")
        self._bus.publish(WorkChanged(harness=config.name, work=name.work, over=False))
        return run

    async def _task(self, run: Run) -> None:
        CURRENT.set(run.trace)
        answer = refused(f"Work {run.name.work} was interrupted; call again to go on with it.")
        try:
            answer = await self._worker.run(run)
        except WorkError as error:
            run.unfinished = False
            answer = refused(str(error))
        except asyncio.CancelledError:
            log.info("work %s: its run was interrupted", run.key)
        except Exception:
            log.exception("work %s: its run failed", run.key)
            answer = refused(
                f"Work {run.name.work}: the sidecar could not do this; its log says why. Call "
                "again to go on"
            )
        finally:
            self._over(run, answer)

    def _over(self, run: Run, answer: Fields) -> None:
        runs = self._active[run.key]
        runs.remove(run)
        if not runs:
            del self._active[run.key]
        if run.unfinished:
            self._unfinished[run.claim] = run.name
        else:
            self._unfinished.pop(run.claim, None)
        if not run.traced:
            run.span.end("interrupted")
        run.end(answer, self._clock())
        self._bus.publish(WorkChanged(harness=run.config.name, work=run.name.work, over=True))
        kept = [each for each in self._claims.values() if each.over]
        for old in kept[: max(0, len(kept) - _MOST_KEPT)]:
            self._claims.pop(old.claim, None)
        while len(self._unfinished) > _MOST_KEPT:
            del self._unfinished[next(iter(self._unfinished))]

    # ------------------------------------------------------------------------------- waiting

    async def _wait(self, run: Run, caller: Caller) -> Fields:
        loop = asyncio.get_running_loop()
        waiter = Waiter(caller, loop.time())
        run.waiters.append(waiter)
        try:
            while not run.over:
                now = loop.time()
                until = self._until(run, waiter)
                if now >= until:
                    run.polled = True
                    return running(run.call, run.name.work, run.state, run.waiting)
                if now >= waiter.next:
                    run.sign(waiter, now)
                await run.change(min(until, waiter.next) - now)
            return self._delivered(run)
        except asyncio.CancelledError as why:
            run.waiters.remove(waiter)
            explicit = why.args == (CLIENT_CANCELLED,)
            if not run.waiters and not run.over and (explicit or not run.polled):
                self._cancel(run)
            raise
        finally:
            with contextlib.suppress(ValueError):
                run.waiters.remove(waiter)

    def _until(self, run: Run, waiter: Waiter) -> float:
        """How long this request is held, on the loop's clock."""
        # An editor has no way to call again, and needs none.
        until = inf if waiter.caller.updates else waiter.began + run.config.hold
        since = run.waits_since
        if since is not None and not waiter.caller.updates:
            until = min(until, max(waiter.began, since) + self._hold)
        if waiter.caller.deadline is not None:
            until = min(until, waiter.caller.deadline - _SPARE)
        if self._draining and (since is not None or run.state != "working"):
            return 0.0
        return until

    def _delivered(self, run: Run) -> Fields:
        """The answer. Whoever waited has it, whoever comes later asks for something new."""
        assert run.answer is not None
        if not run.delivered:
            run.delivered = True
            if self._claims.get(run.claim) is run:
                del self._claims[run.claim]
            self._chore(self._had(run.key, run.call))
        return run.answer

    async def _hand_over(self, memory: Memory) -> Fields:
        """An answer that was there before this process was."""
        await self._had(memory.name.key, memory.call)
        return json.fields(memory.answer.encode())

    async def _had(self, key: WorkKey, call: str) -> None:
        """The answer of this call need not be kept any more."""
        try:
            await asyncio.to_thread(self._memories.handed_over, key, call)
        except OSError as error:
            log.warning("work %s: that its answer was given cannot be noted: %s", key, error)

    def _cancel(self, run: Run) -> None:
        if run.cancelling:
            return
        run.cancelling = True
        if self._claims.get(run.claim) is run:
            del self._claims[run.claim]
        self._chore(self._cancelled(run))

    async def _cancelled(self, run: Run) -> None:
        task = run.task
        assert task is not None
        if run.agent is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL):
                    await run.agent.cancel()
                    await asyncio.wait({task})
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CLOSE)

    def _chore(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    # ------------------------------------------------------------------------------ occupants

    def occupation(self, key: WorkKey) -> Occupation:
        """See ``works.Occupants``."""
        runs = self._active.get(key)
        if runs:
            return "waiting" if any(run.questions for run in runs) else "working"
        return "idle" if self._agents.there(key) else "none"

    async def stop(self, key: WorkKey) -> None:
        """See ``works.Occupants``."""
        await self._agents.stop_idle(key)

    async def works(self) -> Sequence[JsonObject]:
        """Every work: ``Work.as_json``, with ``state`` (an ``Occupation``), and while it has a
        run its ``call`` and what it waits for."""
        found: list[JsonObject] = []
        for work in await self._works.works():
            told: JsonObject = {**work.as_json(), "state": self.occupation(work.key)}
            runs = self._active.get(work.key)
            if runs:
                told["call"] = runs[0].call
                told["waiting"] = list(runs[0].waiting)
            found.append(told)
        return found

    # ------------------------------------------------------------------------------- sweeping

    async def sweep(self, *, dry_run: bool = False) -> JsonObject:
        """Remove the works that have landed: ``Sweep.as_json``."""
        sweep = await self._works.sweep(dry_run=dry_run)
        if not dry_run:
            for path in sweep.removed:
                key = key_of_slugs(path.parts[-4:])
                if key is not None and key not in self._active:
                    await asyncio.to_thread(self._memories.delete, key)
        return sweep.as_json()

    async def _sweeps(self, *, first: bool = True) -> None:
        """At start and every so often, for as long as the sidecar runs."""
        while self._sweep_every is not None:
            if first:
                try:
                    await self.sweep()
                except Exception:
                    # The next one must come all the same.
                    log.exception("sweeping failed")
            first = True
            await asyncio.sleep(self._sweep_every)


def _claim(harness: str, call: Call, caller: Caller) -> str:
    """What was asked for by whom: equal calls are one."""
    sent = {key: value for key, value in call.params.items() if key != "_meta"}
    return json.digest([caller.principal.name, harness, sent])
