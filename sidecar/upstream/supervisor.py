"""The owner of a server's shared leg: connecting, ready, backoff, and again, for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext, suppress
from typing import cast

from sidecar.events import Bus, LegChanged, PromptsChanged, ResourcesChanged, ToolsChanged
from sidecar.model import State, Unavailable
from sidecar.upstream.attempts import Attempts
from sidecar.upstream.backoff import Backoff
from sidecar.upstream.complaints import Complaints
from sidecar.upstream.leg import Leg, until_gone
from sidecar.upstream.legacy_http import LegacyHttpLeg
from sidecar.upstream.lister import Lister
from sidecar.upstream.listing import ALL, Difference, List
from sidecar.upstream.opener import Opener
from sidecar.upstream.scopes import Scope
from sidecar.upstream.tasks import cancelled

log = logging.getLogger("sidecar.upstream")

DEBOUNCE = 0.075
"""Seconds from the first list_changed of a storm to the listing that answers all of them."""

PATIENCE = 2.0
"""Seconds that a request waits for a leg that is about to come back."""

KNOCK = 1.0
"""A request that finds the leg down has it tried at once, this often at most (seconds)."""

SWEEP = 30.0
"""Seconds between two looks for what nobody uses any more."""

RELIST_WAIT = 10.0
"""Seconds that a request waits for the tools to be listed again."""


class Supervisor:
    """Runs one task. Everything else in here is asked from other tasks and never blocks them
    for longer than it says."""

    def __init__(
        self,
        server: str,
        *,
        sidecar: str,
        bus: Bus,
        opener: Opener,
        lister: Lister,
        complaints: Complaints,
        connected: Callable[[], None],
        sweep: Callable[[], None],
        attempts: Attempts | None = None,
    ) -> None:
        """``connected`` is called with each new leg, ``sweep`` now and then; neither waits.
        ``attempts`` are turns that it takes to connect, but for a server that was just there."""
        self.scope = Scope("")
        self.state = State.CONNECTING
        self.error: str | None = None
        self._server = server
        self._sidecar = sidecar
        self._bus = bus
        self._opener = opener
        self._lister = lister
        self._complaints = complaints
        self._connected = connected
        self._sweep = sweep
        self._attempts = attempts
        self._was_there = False
        self._backoff = Backoff()
        self._list_backoff = Backoff(base=2.0)
        self._retry_at: float | None = None
        self._started_at = 0.0
        self._tried_at = 0.0
        self._offered = False
        self._settled = asyncio.Event()
        self._tried = asyncio.Event()
        self._knock = asyncio.Event()
        self._wake = asyncio.Event()
        self._dirty: set[List] = set()
        self._list_again: float | None = None
        self._listed: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    # ------------------------------------------------------------------- from other tasks

    @property
    def leg(self) -> Leg | None:
        """The shared leg while it is of use."""
        leg = self.scope.leg
        return None if leg is None or leg.gone.done() else leg

    @property
    def retry_in(self) -> float | None:
        """Seconds until the next attempt, ``None`` when none is being waited for."""
        if self._retry_at is None:
            return None
        return max(0.0, self._retry_at - asyncio.get_running_loop().time())

    def start(self) -> None:
        if self._task is None and not self._stopped:
            self._task = asyncio.create_task(self._run(), name=f"server {self._server}")

    async def stop(self) -> None:
        """End the task and the leg."""
        self._stopped = True
        if self._task is not None:
            await cancelled(self._task)
        leg, self.scope.leg = self.scope.leg, None
        if leg is not None:
            await leg.end()
        self.state, self.error, self._retry_at = State.FAILED, "it was closed", None
        self._turned()
        self._answer_listed()

    async def settled(self) -> None:
        """Return when the first attempt has succeeded or failed."""
        await self._settled.wait()

    async def awaited(self) -> Leg:
        """The leg, if it is there or back within ``PATIENCE``.

        Raises:
            Unavailable: it is not; the request was not sent.
        """
        now = asyncio.get_running_loop().time()
        until = now + PATIENCE
        if self._retry_at is None:
            # An attempt is running; one that hangs is not waited for by everybody.
            until = self._started_at + PATIENCE
        elif now - self._tried_at >= KNOCK:
            self._knock.set()
        elif self._backoff.failures > 1 or self._retry_at > until:
            raise self._down_error()
        while not self._stopped:
            if (leg := self.leg) is not None:
                return leg
            self._tried.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._tried.wait()
            except TimeoutError:
                break
            if self.leg is None and self._backoff.failures > 1:
                break
        raise self._down_error()

    def changed(self, which: Iterable[List]) -> None:
        """The server says that these lists are other than they were."""
        self._dirty.update(which)
        self._wake.set()

    async def relisted(self) -> None:
        """Return when the tools have been listed again, within ``RELIST_WAIT``."""
        listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listed.append(listed)
        self.changed({"tools"})
        with suppress(TimeoutError):
            async with asyncio.timeout(RELIST_WAIT):
                await listed

    # ------------------------------------------------------------------------ the owner task

    async def _run(self) -> None:
        while True:
            self._retry_at = None
            self._started_at = asyncio.get_running_loop().time()
            self._enter(State.CONNECTING)
            self._knock.clear()
            try:
                why = await self._attempt()
            except Exception:
                # A fault of ours must not end the supervision of a server for good.
                log.exception("server %s: an attempt to use it failed", self._server)
                why = "the sidecar failed; its log says more"
            retry_at = self._down(why)
            leg, self.scope.leg = self.scope.leg, None
            if leg is not None:
                await leg.end()
            self._sweep()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(retry_at):
                    await self._knock.wait()

    async def _attempt(self) -> str:
        """Connect and serve, once; why it is over."""
        loop = asyncio.get_running_loop()
        was_there, self._was_there = self._was_there, False
        turns = None if was_there else self._attempts
        try:
            async with nullcontext() if turns is None else turns.turn():
                leg = await self._opener.open()
        except Unavailable as error:
            return error.why
        self._was_there = True
        started = loop.time()
        self.scope.leg = leg
        self._connected()
        self._tried.set()
        try:
            return await self._serve(leg)
        finally:
            self._backoff.ran(loop.time() - started)

    async def _serve(self, leg: Leg) -> str:
        """Keep the leg's lists up to date until it is gone; why it is."""
        gone = leg.gone
        gone.add_done_callback(lambda _: self._wake.set())
        self._dirty.clear()
        leg.listen()
        if isinstance(leg, LegacyHttpLeg):
            await leg.listening()
        await self._until_gone(leg, self._ready(leg))
        while not gone.done():
            await self._woken()
            if gone.done():
                break
            if self._dirty:
                await asyncio.sleep(DEBOUNCE)
                which, self._dirty = frozenset(self._dirty), set()
                await self._until_gone(leg, self._relist(leg, which))
        return gone.result()

    async def _woken(self) -> None:
        """Return when there is something to do: a change, a list to try again, a sweep."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SWEEP
        if self._list_again is not None:
            until = min(until, self._list_again)
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            if self._list_again is not None and loop.time() >= self._list_again:
                self._dirty |= ALL
            self._sweep()
        self._wake.clear()

    async def _until_gone(self, leg: Leg, job: Coroutine[object, object, None]) -> None:
        """Run the job, but not beyond the leg's end."""
        task = asyncio.create_task(job, name=f"{self._server}: lists")
        try:
            await until_gone(leg, cast("asyncio.Future[object]", task))
        finally:
            await cancelled(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault

    async def _ready(self, leg: Leg) -> None:
        """First lists after a connect; then the server is ready."""
        outcome = await self._lister.read(leg, ALL)
        if leg.gone.done():
            return
        self._remember(outcome.failed)
        self._offered = True
        self._enter(State.READY, outcome.failed)
        if self._complaints.forgive("down"):
            tools = len(self._lister.entries.tools)
            log.info("server %s: is up again, tools: %d", self._server, tools)
        entries = self._lister.entries
        self._tools(outcome.tools)
        if entries.prompts or outcome.prompts:
            self._bus.publish(PromptsChanged(server=self._server))
        if entries.resources or entries.templates or outcome.resources:
            self._bus.publish(ResourcesChanged(server=self._server))
        self._turned()

    async def _relist(self, leg: Leg, which: frozenset[List]) -> None:
        outcome = await self._lister.read(leg, which)
        if leg.gone.done():
            return
        self._remember(outcome.failed)
        self.error = outcome.failed
        if outcome.tools:
            self._tools(outcome.tools)
        if outcome.prompts:
            self._bus.publish(PromptsChanged(server=self._server))
        if outcome.resources:
            self._bus.publish(ResourcesChanged(server=self._server))
        if "tools" in which:
            self._answer_listed()

    def _remember(self, failed: str | None) -> None:
        """Lists that could not be read are tried again, less and less often."""
        if failed is None:
            self._list_again = None
            self._list_backoff = Backoff(base=2.0)
        else:
            loop = asyncio.get_running_loop()
            self._list_again = loop.time() + self._list_backoff.failed()

    # ---------------------------------------------------------------------------- its state

    def _enter(self, state: State, error: str | None = None) -> None:
        self.state = state
        if state is not State.CONNECTING:
            # While it is tried again, what went wrong the last time is still worth knowing.
            self.error = error
        self._bus.publish(
            LegChanged(server=self._server, state=state, error=self.error, retry_in=self.retry_in)
        )

    def _down(self, why: str) -> float:
        """The leg is of no use: say so, at once. Returns when to try again (loop's clock)."""
        self._tried_at = asyncio.get_running_loop().time()
        self._retry_at = retry_at = self._tried_at + self._backoff.failed()
        self._list_again = None
        offered, self._offered = self._offered, False
        self._enter(State.BACKOFF, why)
        self._complaints.warn("down", f"is down, and tried again now and then: {why}")
        if offered:
            entries = self._lister.entries
            self._bus.publish(ToolsChanged(name=self._sidecar, server=self._server, count=0))
            if entries.prompts:
                self._bus.publish(PromptsChanged(server=self._server))
            if entries.resources or entries.templates:
                self._bus.publish(ResourcesChanged(server=self._server))
        self._turned()
        self._answer_listed()
        return retry_at

    def _turned(self) -> None:
        """An attempt has ended, well or not."""
        self._settled.set()
        self._tried.set()

    def _tools(self, change: Difference) -> None:
        self._bus.publish(
            ToolsChanged(
                name=self._sidecar,
                server=self._server,
                count=len(self._lister.entries.tools),
                added=change.added,
                removed=change.removed,
                changed=change.changed,
            )
        )

    def _answer_listed(self) -> None:
        waiting, self._listed = self._listed, []
        for listed in waiting:
            if not listed.done():
                listed.set_result(None)

    def _down_error(self) -> Unavailable:
        if self._stopped:
            return Unavailable(self._server, "the server is being closed", ran="no")
        why = self.error or "it is not connected"
        if self._retry_at is None:
            why = (
                f"it is being connected; the last attempt: {self.error}"
                if self.error
                else ("it is still being connected")
            )
        return Unavailable(self._server, why, ran="no", retry_in=self.retry_in)
