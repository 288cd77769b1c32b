"""Asking the client of a call that waits, where ``parking.elicit`` says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from sidecar.gate.answers import with_meta
from sidecar.mcp import rounds
from sidecar.model import Ask, Decision, Era, JsonObject, Kind, Refused, RpcError
from sidecar.parking import answers, question
from sidecar.parking.asking import Asked
from sidecar.parking.book import Missing
from sidecar.parking.live import Live
from sidecar.parking.machine import Dismissed, Polled, Revoked, WrongState
from sidecar.parking.picture import folded
from sidecar.parking.record import Parked, State
from sidecar.parking.steps import Steps
from sidecar.wire import json

log = logging.getLogger("sidecar.parking")

WAY: Final = "elicitation"
_DEPTH: Final = 512


class Answer(Protocol):
    """``Parking.answer``."""

    async def __call__(self, id: str, *, approve: bool, by: str, way: str, why: str) -> object: ...


class Elicitation:
    """One request's. ``on`` tells whether clients may be asked, now. ``stop`` is owed."""

    def __init__(self, asked: Asked, steps: Steps, answer: Answer, on: Callable[[], bool]) -> None:
        self._call = asked.call
        self._caller = asked.caller
        self._steps = steps
        self._answer = answer
        self._on = on
        # A coding agent asks through whoever has it work; its own client is itself.
        self._agents = asked.call.kind is Kind.PERMISSION
        self._able = rounds.has_forms(asked.caller) and (
            self._agents or not asked.caller.principal.on_behalf_of
        )
        self._task: asyncio.Task[None] | None = None
        self._live: Live | None = None
        self._brought = asked.caller.brought

    def stop(self) -> None:
        """Withdraw the question, if it is asked still. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._live is not None:
            self._live.asking = False
            self._live = None

    # --------------------------------------------------- asked while the request is held open

    def begin(self, live: Live) -> None:
        """Ask, if it can be asked so and is not asked already. Returns at once."""
        if self._task is not None or self._caller.ask is None or not self._may_ask(live.parked):
            return
        if live.asking:
            # Of several requests that wait for the same, one client is asked at a time.
            return
        live.asking, self._live = True, live
        what = f"asking the client about parked call {live.parked.id}"
        self._task = self._steps.chores.start(what, self._ask(live.parked.id, self._caller.ask))

    async def _ask(self, id: str, ask: Ask) -> None:
        params = await self._params(id)
        try:
            response = await ask(rounds.ELICIT, params)
        except RpcError as error:
            # Its text is the client's; the call waits on, for people elsewhere.
            log.info("the client of parked call %s cannot be asked: error %s", id, error.code)
            return
        # To its end, though this request may be over before: somebody has answered.
        await self._steps.chores.finish(self._take(id, question.said(response)), lambda done: None)

    # --------------------------------------------- asked by an answer, brought with a request

    @property
    def brings(self) -> bool:
        """Whether the client has brought an answer that nobody has looked at."""
        return self._brought is not None

    def asks_in_rounds(self, parked: Parked) -> bool:
        """Whether to ask it by the answer to its request."""
        call = self._call
        return (
            self._caller.era is Era.MODERN
            and call.method in rounds.ROUNDS
            # Not with the answer to a question of the server's own: one cannot be asked within
            # the other.
            and rounds.STATE not in call.params
            and rounds.RESPONSES not in call.params
            and self._may_ask(parked)
        )

    async def ask_in_rounds(self, parked: Parked, decision: Decision) -> Refused | None:
        """The answer that asks; ``None``: it does not wait any more. Raises StoreError."""
        if not await self._steps.did(parked.id, Polled()):
            return None
        try:
            params = await self._params(parked.id)
        except Missing:
            return None
        asked = rounds.question(question.state(parked), question.KEY, rounds.ELICIT, params)
        about: JsonObject = {"id": parked.id, "expires_at": answers.moment(parked.expires_at)}
        return Refused(decision, "parked", with_meta(asked, answers.PARKED, about))

    async def take_brought(self, parked: Parked) -> None:
        """Take in what it brought. Raises StoreError."""
        brought, self._brought = self._brought, None
        if brought is None or question.asked_about(brought.state) != parked.id:
            # Of another call: of this one as it was before its tool or its arguments changed.
            return
        said = question.said(brought.responses.get(question.KEY))
        if parked.state is State.APPROVED:
            if said.approve is not False or not (self._able and self._on()):
                return
            # Somebody else said yes meanwhile. What has not run yet is not run against a no.
            await self._steps.did(parked.id, Revoked("denied at the calling client"))
            return
        try:
            await self._take(parked.id, said)
        except (Missing, WrongState) as error:
            log.debug("the answer to parked call %s came late: %s", parked.id, error)

    # -------------------------------------------------------------------------------- both

    def _may_ask(self, parked: Parked) -> bool:
        return self._able and self._on() and not parked.dismissed

    async def _params(self, id: str) -> JsonObject:
        book = self._steps.book
        parked = await book.get(id)
        hidden: list[str] = []
        definition = await book.definition(parked.definition) if parked.trusted else None
        if isinstance(definition, dict):
            # Not for a server that nobody trusts: it could fold away what matters.
            schema = cast("JsonObject", definition).get("inputSchema")
            hidden = folded(schema, json.decode(parked.args, depth=_DEPTH))
        return question.params(parked, hidden, self._caller.era)

    async def _take(self, id: str, said: question.Said) -> None:
        if not (self._able and self._on()):
            return
        if said.approve is None:
            await self._steps.book.change(id, Dismissed())
            return
        principal = self._caller.principal
        by = principal.on_behalf_of if self._agents else principal.name
        await self._answer(id, approve=said.approve, by=by, way=WAY, why=said.why)
