"""What happens in a run: the work is held, its agent has the task, and what came of it is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from sidecar.children import environment_of
from sidecar.config import HarnessConfig
from sidecar.events import Bus
from sidecar.harness.agent import AgentError, AgentFailed, AgentGone, AgentSpec, Turn
from sidecar.harness.answers import DONE, Continued, Ending, finished, refused
from sidecar.harness.harness import as_server
from sidecar.harness.profiles import PROFILES
from sidecar.harness.run import Run
from sidecar.harness.run_agents import Agents, Occupant
from sidecar.harness.run_ears import Ears
from sidecar.harness.run_labels import Labels
from sidecar.harness.run_memory import Memories, Memory
from sidecar.harness.run_prompt import meta, prompt
from sidecar.harness.run_spans import RunSpans
from sidecar.harness.tokens import RunToken, RunTokens
from sidecar.harness.works import Work, WorkError, Works
from sidecar.harness.worktree import WorkState
from sidecar.model import Fields, JsonObject
from sidecar.ports.gate import Gate
from sidecar.ports.proxy import ChildProxy, Grant, NoProxy
from sidecar.ports.secrets import SecretError, Secrets
from sidecar.ports.tracer import Tracer
from sidecar.wire import json

__all__ = ["Worker"]

log = logging.getLogger(__name__)

LONGEST: Final = 86_400.0
"""Seconds that a run may take; one that never ends would hold its work for ever."""


@dataclass(slots=True)
class _Began:
    """An agent that has the work: how it came to it, and what the run ends for it."""

    occupant: Occupant
    spans: RunSpans
    continued: Continued | None
    token: RunToken | None = None


class Worker:
    """Takes one run from its beginning to its answer."""

    def __init__(
        self,
        works: Works,
        agents: Agents,
        memories: Memories,
        *,
        gate: Gate,
        bus: Bus,
        tracer: Tracer,
        tokens: RunTokens,
        labels: Labels,
        secrets: Secrets,
        mcp_url: Callable[[], str | None],
        proxy: ChildProxy | None,
        name: str,
        separator: str,
        clock: Callable[[], float],
    ) -> None:
        self._works = works
        self._agents = agents
        self._memories = memories
        self._gate = gate
        self._bus = bus
        self._tracer = tracer
        self._tokens = tokens
        self._labels = labels
        self._secrets = secrets
        self._mcp_url = mcp_url
        self._proxy = proxy
        self._name = name
        self._separator = separator
        self._clock = clock

    async def run(self, run: Run) -> Fields:
        """The answer. Raises WorkError where there is no work to be had."""
        async with self._works.use(run.name) as work:
            run.work = work
            run.state = "starting"
            run.tell(f"work {run.name.work}: the agent starts", True)
            run.wake()
            memory = await self._remembered(run, work)
            agent = run.agent_caller(run.trace)
            labels = self._labels.of(run.caller)
            if labels and not await self._labels.add(agent, labels, run.call, run.config.name):
                return refused(
                    "Not begun: the labels that the agent would start with cannot be stored; try "
                    "again later."
                )
            await self._keep(_begun(run, memory, memory.session if memory is not None else ""))
            ending, session = await self._worked(run, work, memory)
            return await self._told(run, work, memory, ending, session)

    async def _remembered(self, run: Run, work: Work) -> Memory | None:
        """What is known of the runs before; another kind of agent has another's sessions."""
        if work.new:
            # A work of that name was there before: what is known is of that one.
            return None
        memory = await asyncio.to_thread(self._memories.get, run.key)
        if memory is not None and memory.profile != run.config.profile:
            memory = msgspec.structs.replace(memory, session="")
        return memory

    async def _keep(self, memory: Memory) -> None:
        try:
            await asyncio.to_thread(self._memories.put, memory)
        except OSError as error:
            log.warning("work %s: its run cannot be remembered: %s", memory.name.key, error)

    async def _forget(self, run: Run) -> None:
        """What is remembered goes with the work; this process still knows the answer."""
        try:
            await asyncio.to_thread(self._memories.delete, run.key)
        except OSError as error:
            log.warning("work %s: its run cannot be forgotten: %s", run.key, error)

    # ------------------------------------------------------------------------------ the agent

    async def _worked(self, run: Run, work: Work, memory: Memory | None) -> tuple[Ending, str]:
        """How the agent did, and its session."""
        earlier = memory.session if memory is not None else ""
        try:
            began = await self._began(run, work, earlier)
        except AgentError as error:
            failed = _failed(error)
            if work.new and not run.opened and await self._works.discard(run.key):
                log.info("work %s: no agent came to work in it; it is removed", run.key)
                return replace(failed, removed=True), earlier
            state, unknown = await self._state(run)
            return replace(failed, state=state, unknown=unknown), earlier
        occupant, agent = began.occupant, began.occupant.agent
        ending: Ending | None = None
        try:
            before, _ = await self._state(run) if began.continued == "summary" else (None, "")
            text = prompt(run.text, work, began.continued, memory, before)
            if agent.session != earlier:
                # Not only at its end: a run that is killed is taken up where it was.
                await self._keep(_begun(run, memory, agent.session))
            run.state = "working"
            run.tell(f"work {run.name.work}: the agent is at work", True)
            if run.cancelling:
                raise asyncio.CancelledError
            run.agent = agent
            async with asyncio.timeout(LONGEST):
                turn = await agent.prompt(text, meta=meta(run.trace))
            ending = _ended(turn)
        except AgentError as error:
            ending = _failed(error)
        except TimeoutError:
            why = f"it worked for more than {LONGEST / 3600:g} hours, and was ended"
            ending = Ending("failed", "", why)
        finally:
            run.agent = None
            if began.token is not None:
                self._tokens.revoke(began.token)
            if ending is None:
                run.traced = True
                began.spans.end("interrupted", agent.session, began.continued, None)
            if ending is not None and occupant.keep and agent.idle:
                self._agents.keep(occupant)
            else:
                await self._agents.stop(occupant)
        session = agent.session or earlier
        state, unknown = await self._state(run)
        run.traced = True
        began.spans.end(ending.stop_reason, session, began.continued, state)
        ending = replace(ending, continued=began.continued, state=state, unknown=unknown)
        return ending, session

    async def _began(self, run: Run, work: Work, earlier: str) -> _Began:
        """An agent with an open session. Raises AgentError; then nothing is left of it."""
        place = await asyncio.to_thread(_place, work.path)
        kept = self._agents.take(run.key, run.config, place)
        if kept is not None:
            return _Began(kept, kept.ears.attend(run), "kept")
        token, servers = self._access(run)
        try:
            grant = self._granted(run.config)
            spec, ears = self._spec(run, work, grant, servers)
            occupant = await self._agents.begin(
                run.key, run.config, spec, ears, place=place, grant=grant, keep=token is None
            )
        except BaseException:
            if token is not None:
                self._tokens.revoke(token)
            raise
        try:
            spans = ears.attend(run)
            opened = await occupant.agent.open(earlier or None)
        except BaseException:
            run.opened = bool(occupant.agent.session)
            if token is not None:
                self._tokens.revoke(token)
            await self._agents.stop(occupant)
            raise
        run.opened = True
        anew: Continued | None = None if work.new else "summary"
        return _Began(occupant, spans, anew if opened.how == "new" else opened.how, token)

    def _spec(
        self, run: Run, work: Work, grant: Grant | None, servers: tuple[JsonObject, ...]
    ) -> tuple[AgentSpec, Ears]:
        config = run.config
        profile = PROFILES[config.profile]
        env = self._environment(config)
        if grant is not None:
            env.update(grant.env)
        spec = AgentSpec(
            config.name,
            profile,
            config.command or profile.command,
            work.path,
            env,
            servers,
        )
        ears = Ears(
            self._gate,
            self._bus,
            self._tracer,
            name=self._name,
            separator=self._separator,
            home=environment_of(env).get("HOME") or "/",
        )
        return spec, ears

    def _environment(self, config: HarnessConfig) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, ref in config.env.items():
            try:
                found[name] = self._secrets.read(ref)
            except SecretError as error:
                raise AgentFailed(config.name, "spawn", f"env.{name}: {error}") from None
        return found

    def _granted(self, config: HarnessConfig) -> Grant | None:
        if config.egress != "proxy":
            return None
        try:
            if self._proxy is None:
                raise NoProxy("there is no forward proxy")
            return self._proxy.grant(as_server(config))
        except NoProxy as error:
            raise AgentFailed(config.name, "spawn", f"egress: {error}") from None

    def _access(self, run: Run) -> tuple[RunToken | None, tuple[JsonObject, ...]]:
        """The sidecar as the agent's MCP server, where it may use any of what is behind it."""
        url = self._mcp_url() if run.principal.servers else None
        if url is None:
            return None, ()
        token = self._tokens.mint(run.principal)
        headers = [{"name": "Authorization", "value": f"Bearer {token.value}"}]
        return token, ({"type": "http", "name": self._name, "url": url, "headers": headers},)

    # ----------------------------------------------------------------------------- the answer

    async def _state(self, run: Run) -> tuple[WorkState | None, str]:
        """What there is of the work, or why that cannot be told."""
        try:
            return await self._works.state(run.key), ""
        except WorkError as error:
            log.warning("what became of it cannot be told: %s", error)
            return None, str(error)

    async def _told(
        self, run: Run, work: Work, memory: Memory | None, ending: Ending, session: str
    ) -> Fields:
        run.unfinished = ending.stop_reason != DONE
        if not run.traced:
            run.traced = True
            run.span.end(ending.stop_reason)
        answer = finished(
            replace(ending, asks=tuple(run.asks)),
            work=run.name.work,
            checkout=run.name.checkout,
            branch=work.branch,
            base=work.base,
            labels=self._gathered(run),
        )
        remembered = Memory(
            name=run.name,
            claim=run.claim,
            call=run.call,
            running=False,
            session=session,
            profile=run.config.profile,
            unfinished=run.unfinished,
            answer="" if run.cancelling else json.encode(answer).decode(),
            ended=self._clock(),
            episodes=memory.episodes if memory is not None else (),
        )
        if ending.removed:
            await self._forget(run)
            return answer
        await self._keep(remembered.with_episode(run.text, ending.last_message, ending.stop_reason))
        return answer

    def _gathered(self, run: Run) -> Iterable[str]:
        return self._labels.of(run.agent_caller(run.trace))


def _begun(run: Run, memory: Memory | None, session: str) -> Memory:
    """What is remembered of a run while it is one."""
    return Memory(
        name=run.name,
        claim=run.claim,
        call=run.call,
        running=True,
        session=session,
        profile=run.config.profile,
        episodes=memory.episodes if memory is not None else (),
    )


def _place(path: Path) -> tuple[int, int]:
    """A directory that was removed and made again is another one."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def _ended(turn: Turn) -> Ending:
    reason = turn.stop_reason or "unknown"
    error = ""
    if turn.ended_by == "denial":
        error = "the agent ended its turn because a permission was denied"
    elif turn.ended_by == "cancel":
        reason = "cancelled"
    return Ending(reason, turn.last_message, error)


def _failed(error: AgentError) -> Ending:
    died = isinstance(error, AgentGone)
    return Ending("died" if died else "failed", error.last_message, error.why)
