"""Parks calls: whoever has to wait for a person waits here."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from sidecar.config import ParkingConfig
from sidecar.events import Bus, ParkedAnswered, ParkedChanged, ToolsChanged
from sidecar.gate.answers import denied as refused
from sidecar.model import (
    CLIENT_CANCELLED,
    NO_TRACE,
    Admitted,
    Call,
    Caller,
    Decision,
    Fields,
    Kind,
    NotSent,
    Refused,
    Tool,
    TraceContext,
    Unavailable,
)
from sidecar.parking import answers, asking, tracing
from sidecar.parking.asking import Asked
from sidecar.parking.book import Book, Missing
from sidecar.parking.choices import uncovered
from sidecar.parking.claim import claim
from sidecar.parking.elicit import Elicitation
from sidecar.parking.entrance import Entrance
from sidecar.parking.inflight import InFlight
from sidecar.parking.leases import LEASE, Leases
from sidecar.parking.live import Live
from sidecar.parking.machine import (
    Answered,
    Delivered,
    Elapsed,
    Finished,
    Left,
    Polled,
    Taken,
    Unsent,
    Voided,
    WrongState,
)
from sidecar.parking.patience import PROGRESS, Patience
from sidecar.parking.record import Parked, State
from sidecar.parking.steps import Steps
from sidecar.parking.tracing import Waiting
from sidecar.parking.upkeep import Upkeep
from sidecar.ports.store import Store, StoreError
from sidecar.ports.tracer import PassingTracer, Tracer
from sidecar.semconv import Key

log = logging.getLogger("sidecar.parking")

MOST_WHY: Final = 2000
"""Characters of a person's reason."""
_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class _Again:
    """What was waited for is another thing now: decide, and if need be ask, anew."""

    after: str


_Outcome: TypeAlias = Admitted | Refused | _Again


class Parking:
    """``hold`` is for the gate; ``answer`` for the admin listener; the rest for its owner."""

    def __init__(
        self,
        store: Store,
        config: ParkingConfig,
        *,
        revision: Callable[[], str],
        bus: Bus,
        tracer: Tracer | None = None,
        labels: Callable[[Caller], tuple[str, ...]] = lambda caller: (),
        clock: Callable[[], float] = time.time,
        lease: float = LEASE,
    ) -> None:
        """``revision`` is that of the policy in force; ``clock`` in seconds since the epoch."""
        self._config = config
        self._revision = revision
        self._bus = bus
        self._tracer = tracer or PassingTracer()
        self._clock = clock
        self.node = secrets.token_hex(8)
        self.book = Book(store, clock)
        self.definition: Callable[[str, str], Tool | None] = lambda server, name: None
        """The tool of a server, by its own name, as it is now; ``None`` for one unknown."""
        self.recorded: Callable[[], Awaitable[object]] = _at_once
        """Returns when what was told of an answer is written down: before whoever gave it hears."""
        self._steps = Steps(self.book)
        self._leases = Leases(self.book, self.node, clock, length=lease)
        self._upkeep = Upkeep(self.book, clock)
        self._in_flight = InFlight(self._steps)
        self._entrance = Entrance(
            self._steps, self._leases, config, node=self.node, clock=clock, labels=labels
        )
        self._draining = False
        self._stops: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------ start and end

    async def start(self) -> None:
        """Read what is parked. Raises StoreError."""
        self._stops = [self.book.listen(self._saw), self._bus.listen(ToolsChanged, self._redefined)]
        await self.book.start()
        self._upkeep.start()

    def tell(self, told: Callable[[Parked], None]) -> None:
        """Call ``told`` for each call that begins to wait here; it has its arguments."""
        self._entrance.told = told

    def reconfigure(self, config: ParkingConfig) -> None:
        """Other settings, for what is parked from now on."""
        self._config = config
        self._entrance.reconfigure(config)

    def drain(self) -> None:
        """The end is near: whoever waits is told to call again. What is parked stays."""
        self._draining = True
        self._steps.lives.wake()

    async def close(self) -> None:
        """End our own tasks; what is parked stays. Idempotent."""
        self.drain()
        while self._stops:
            self._stops.pop()()
        await self._upkeep.close()
        await self._steps.chores.close()
        await self._leases.close()
        await self.book.close()

    # ----------------------------------------------------------------------- what happens

    def removed(self, server: str) -> None:
        """A server is gone for good."""
        self._in_flight.removed(server)

    def revoked(self, principal: str) -> None:
        """A principal may not call any more."""
        self._in_flight.revoked(principal)

    def reloaded(self) -> None:
        """The policies are others now."""
        self._in_flight.reloaded(self._revision())

    def _redefined(self, event: ToolsChanged) -> None:
        self._in_flight.redefined(event.server, self.definition)

    def _saw(self, parked: Parked, before: Parked | None) -> None:
        self._steps.lives.saw(parked)
        if before is None or before.state is not parked.state:
            self._bus.publish(_event(parked, before, self.node))

    async def answer(self, id: str, *, approve: bool, by: str, way: str, why: str = "") -> Parked:
        """A person's answer; ``way`` is how it came (``socket``, ``token`` …).

        The id of a coding agent's call stands for what that agent asks, while that is one thing.

        Raises:
            Missing: there is no such call.
            WrongState: it is answered, or over; its ``parked`` tells by whom.
            StoreError: it cannot be written.
        """
        until, meant = self._clock() + self._config.expire, self._meant(id)
        row = self.book.index.get(meant)
        span = tracing.answer(
            self._tracer, row.parked if row else None, approve=approve, by=by, way=way
        )
        # Nobody links to a span that is not there.
        trace = span.context.traceparent if span.sampled else ""
        event = Answered(approve, by, way, why[:MOST_WHY], self._revision(), until, trace)
        try:
            parked = await self.book.change(meant, event)
        except Exception as failure:
            span.end(type(failure).__name__)
            raise
        span.end()
        log.info("parked call %s of %s: %s by %s (%s)", id, parked.tool, parked.state, by, way)
        self._bus.publish(_answer(parked, approve, span.context if span.sampled else NO_TRACE))
        await self.recorded()
        return parked

    def _meant(self, id: str) -> str:
        row = self.book.index.get(id)
        if row is not None and row.parked.state is State.WAITING:
            return id
        asked = [
            row.parked.id
            for row in self.book.index.still_open()
            if row.parked.parent == id and row.parked.state is State.WAITING
        ]
        return asked[0] if len(asked) == 1 else id

    # ----------------------------------------------------------------------------- holding

    async def hold(self, asked: Asked) -> Admitted | Refused:
        """Wait until a person has answered, at most ``parking.hold``.

        What is admitted is for running at once: its ``settle`` is owed. Cancelling the awaiting
        task is to hang up.

        Raises:
            Unavailable, RpcError: what was asked for is gone; or the call that ran for
                everybody who asked for the same has failed.
        """
        waiting = tracing.wait(self._tracer, asked)
        how = "failed"
        try:
            answer = await self._hold(waiting)
            how = answer.kind if isinstance(answer, Refused) else "approved"
            return answer
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            if waiting.span.sampled:
                waiting.span.set(Key.APPROVAL_OUTCOME, how)
            waiting.span.end("failed" if how == "failed" else None)

    async def _hold(self, asked: Waiting) -> Admitted | Refused:
        call, decision, after = asked.call, asked.decision, ""
        try:
            for _ in range(_ROUNDS):
                answer = await self._wait(asked, decision, after)
                if not isinstance(answer, _Again):
                    return answer
                after = answer.after
                self._take_over(call)
                admitted = asked.anew()
                decision = admitted.decision
                if decision.decision == "allow":
                    return admitted
                if decision.decision == "deny":
                    return refused(decision, call)
        except StoreError as error:
            log.error("a call of %s cannot be parked: %s", call.target, error)
            return answers.store_lost(decision, call)
        why = "what is asked for changes faster than it can be approved"
        raise Unavailable(call.server, why, ran="no")

    async def _wait(self, asked: Waiting, decision: Decision, after: str) -> _Outcome:
        entered = await self._steps.chores.finish(
            self._entrance.enter(asked, decision, after), lambda late: self._hung_up(late, False)
        )
        if not isinstance(entered, Live):
            return entered
        cancelled = False
        try:
            return await self._stay(entered, asked, decision)
        except asyncio.CancelledError as why:
            cancelled = why.args == (CLIENT_CANCELLED,)
            raise
        finally:
            asked.saw(entered.parked)
            self._hung_up(entered, cancelled)

    async def _stay(self, live: Live, asked: Asked, decision: Decision) -> _Outcome:
        """See the call through, from whatever its record is at."""
        forever = asked.call.kind is Kind.PERMISSION or asked.caller.updates
        patience = Patience(asked.caller, self._config.hold, forever)
        client = Elicitation(asked, self._steps, self.answer, lambda: self._config.elicit)
        try:
            while True:
                answer = await self._look(live, asked, decision, patience, client)
                if answer is not None:
                    return answer
        finally:
            client.stop()

    async def _look(
        self,
        live: Live,
        asked: Asked,
        decision: Decision,
        patience: Patience,
        client: Elicitation,
    ) -> _Outcome | None:
        """Do what is to be done about the record as it is. ``None``: look again."""
        call, parked = asked.call, live.parked
        if parked.state is not State.WAITING:
            # Nothing is left to be asked.
            client.stop()
        match parked.state:
            case State.WAITING | State.APPROVED if client.brings:
                await client.take_brought(parked)
            case State.WAITING if parked.expires_at <= self._clock():
                await self._steps.did(parked.id, Elapsed())
            case State.WAITING if client.asks_in_rounds(parked) and not self._draining:
                return await client.ask_in_rounds(parked, decision)
            case State.WAITING if self._draining or patience.over:
                if await self._steps.did(parked.id, Polled()):
                    return answers.parked(parked, call, decision)
            case State.WAITING:
                client.begin(live)
                patience.progress(parked)
                await live.change(min(parked.expires_at - self._clock(), patience.next()))
            case State.APPROVED:
                return await self._use(live, asked)
            case State.TAKEN if live.outcome is None:
                patience.progress(parked)
                await live.change(PROGRESS)
            case State.TAKEN | State.DONE | State.UNKNOWN:
                return Refused(decision, "joined", await self._joined(live, call))
            case State.DENIED | State.EXPIRED:
                if parked.polled:
                    await self._steps.did(parked.id, Delivered())
                return answers.ended(parked, call, decision)
            case State.LOST:
                raise Unavailable(call.server, parked.ended, ran="no", permanent=True)
            case State.CANCELLED | State.VOID:
                if parked.anew:
                    return _Again(parked.id)
                return answers.cancelled(parked, call, decision)
        return None

    async def _use(self, live: Live, asked: Asked) -> _Outcome | None:
        """Take the approval, if it covers what would run. ``None``: look again."""
        call, id = asked.call, live.parked.id
        self._take_over(call)
        admitted = asked.anew()
        decision, revision = admitted.decision, self._revision()
        claimed = claim(call, asked.caller)
        why = uncovered(live.parked, claimed, decision, revision)
        if why:
            await self._steps.did(id, Voided(why))
            return refused(decision, call) if decision.decision == "deny" else None
        taken = Taken(
            claimed.digest,
            claimed.definition,
            revision,
            asking.rules(decision) if decision.decision == "ask" else (),
            self.node,
            call.id,
            self._leases.until(),
        )
        if not await self._steps.chores.finish(
            self._steps.did(id, taken), lambda did: self._give_back(id) if did else None
        ):
            return None
        # Nothing is awaited between this and the sending of the call.
        if self._revision() != revision or self._redefined_since(call):
            await self._steps.did(id, Unsent(self.node, "it changed as it was about to run"))
            return None
        self._leases.hold(id)
        return replace(admitted, settle=lambda outcome: self._settle(live, outcome))

    def _give_back(self, id: str) -> None:
        unsent = self.book.change(id, Unsent(self.node, "the caller hung up"))
        self._steps.chores.start(f"giving back parked call {id}", unsent)

    async def _joined(self, live: Live, call: Call) -> Fields:
        """What the one call brought for all who asked."""
        if live.outcome is not None:
            return answers.shared(live.outcome, call.server)
        if live.parked.state is State.UNKNOWN:
            raise Unavailable(call.server, live.parked.ended, ran="maybe", permanent=True)
        return answers.unpack(await self.book.handed_over(live.parked.id), call.server)

    def _take_over(self, call: Call) -> None:
        """The call is for the tool as it is defined now."""
        call.tool = self._now(call) or call.tool

    def _now(self, call: Call) -> Tool | None:
        return self.definition(call.server, call.upstream_name) if call.tool is not None else None

    def _redefined_since(self, call: Call) -> bool:
        now = self._now(call)
        return now is not None and call.tool is not None and now.digest != call.tool.digest

    # ------------------------------------------------------------------------------ leaving

    def _hung_up(self, entered: Live | Refused, cancelled: bool) -> None:
        """Whoever waited does so no longer."""
        if not isinstance(entered, Live) or not self._steps.lives.leave(entered):
            return
        parked = entered.parked
        if parked.state is State.WAITING:
            self._leases.let_go(parked.id)
            what = f"leaving parked call {parked.id}"
            self._steps.chores.start(what, self._leave(parked.id, cancelled))

    async def _leave(self, id: str, cancelled: bool) -> None:
        if not self._steps.lives.held(id):
            await self.book.change(id, Left(self.node, cancelled))

    async def _settle(self, live: Live, outcome: Fields | BaseException) -> None:
        """The call that took it has ended."""
        self._leases.let_go(live.parked.id)
        if not isinstance(outcome, NotSent):
            live.ended(outcome)
        await self._steps.chores.finish(self._finish(live, outcome), lambda done: None)

    async def _finish(self, live: Live, outcome: Fields | BaseException) -> None:
        id = live.parked.id
        try:
            if isinstance(outcome, NotSent):
                await self.book.change(id, Unsent(self.node, str(outcome)))
                return
            how, known = answers.ending(outcome)
            if set(live.parked.nodes) - {self.node}:
                packed = answers.pack(outcome)
                if packed is not None:
                    await self.book.hand_over(id, packed)
            await self.book.change(id, Finished(self.node, how, known))
        except (Missing, WrongState) as error:
            log.warning("the end of parked call %s cannot be noted: %s", id, error)
        except StoreError as error:
            log.error("the end of parked call %s cannot be stored: %s", id, error)


def _event(parked: Parked, before: Parked | None, node: str) -> ParkedChanged:
    return ParkedChanged(
        call=parked.id,
        state=parked.state.value,
        before=before.state.value if before is not None else "",
        target=parked.tool,
        server=parked.server,
        principal=parked.principal,
        session=parked.session,
        rules=parked.rules,
        by=parked.answered_by,
        way=parked.way,
        why=parked.why,
        ended=parked.ended,
        ran_as=parked.ran_as,
        here=parked.taken_by == node,
    )


async def _at_once() -> None:
    """Nobody writes anything down."""


def _answer(parked: Parked, approve: bool, trace: TraceContext) -> ParkedAnswered:
    return ParkedAnswered(
        trace=trace,
        call=parked.id,
        approve=approve,
        by=parked.answered_by,
        way=parked.way,
        why=parked.why,
        target=parked.tool,
        server=parked.server,
        principal=parked.principal,
        session=parked.session,
        rules=parked.rules,
        definition=parked.definition,
        arguments=parked.arguments,
        revision=parked.revision,
    )
