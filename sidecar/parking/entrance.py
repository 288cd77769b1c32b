"""How a call comes to a record: it joins, finds an approval, hears an ending, or asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sidecar.config import ParkingConfig
from sidecar.model import Caller, Decision, Kind, Refused
from sidecar.parking import answers, asking
from sidecar.parking.asking import Asked
from sidecar.parking.choices import Found, found
from sidecar.parking.claim import Claim, claim
from sidecar.parking.leases import Leases
from sidecar.parking.limits import Buckets
from sidecar.parking.live import Live
from sidecar.parking.machine import Delivered, Elapsed, Joined
from sidecar.parking.record import Parked
from sidecar.parking.steps import Steps
from sidecar.ports.store import StoreError

MOST_OPEN: Final = 50_000
"""Calls of all principals that may wait, be approved or run at once."""
_TRIES: Final = 16


class Entrance:
    """``node`` is this node's name; ``clock`` in seconds since the epoch."""

    def __init__(
        self,
        steps: Steps,
        leases: Leases,
        config: ParkingConfig,
        *,
        node: str,
        clock: Callable[[], float],
        labels: Callable[[Caller], tuple[str, ...]],
    ) -> None:
        self._steps = steps
        self._leases = leases
        self._config = config
        self._node = node
        self._clock = clock
        self._labels = labels
        self._buckets = Buckets(config.rate, time.monotonic)
        self._entering: dict[str, int] = {}
        self.told: Callable[[Parked], None] | None = None
        """Told of each call that begins to wait here."""

    def reconfigure(self, config: ParkingConfig) -> None:
        """Other settings, for what is parked from now on."""
        self._config = config
        self._buckets.reconfigure(config.rate)

    async def enter(self, asked: Asked, decision: Decision, after: str) -> Live | Refused:
        """What to wait for (``Lives.leave`` is owed), or the answer.

        ``after`` is the record that was waited for before what is asked for changed.
        """
        call, caller = asked.call, asked.caller
        for _ in range(_TRIES):
            claimed = claim(call, caller)
            last, pointer = await self._steps.book.last(claimed.digest)
            match found(last, self._clock(), self._config.expire):
                case Found.JOIN | Found.USE if last is not None:
                    live = self._steps.enter(last)
                    if await self._steps.did(last.id, Joined(self._node)):
                        return live
                    self._steps.lives.leave(live)
                case Found.TELL if last is not None:
                    if await self._steps.did(last.id, Delivered()):
                        return answers.ended(last, call, decision)
                case Found.AGE if last is not None:
                    await self._steps.did(last.id, Elapsed())
                case _:
                    before = last.id if last is not None else after
                    entered = await self._park(asked, decision, claimed, before, pointer)
                    if entered is not None:
                        return entered
        raise StoreError("a parked call changes faster than it can be joined")

    async def _park(
        self, asked: Asked, decision: Decision, claimed: Claim, before: str, pointer: int
    ) -> Live | Refused | None:
        """Ask a person. ``None``: somebody else has, for the same, at the same moment."""
        name = asked.caller.principal.name
        limit = self._limit(name)
        if limit is not None:
            return answers.limited(decision, asked.call, *limit)
        self._entering[name] = self._entering.get(name, 0) + 1
        try:
            parked = await self._write(asked, decision, claimed, before, pointer)
        finally:
            self._entering[name] -= 1
            if not self._entering[name]:
                del self._entering[name]
        if parked is None:
            self._buckets.give_back(name)
            return None
        if asked.call.kind is Kind.PERMISSION:
            self._leases.hold(parked.id)
        if self.told is not None:
            self.told(parked)
        return self._steps.enter(parked)

    async def _write(
        self, asked: Asked, decision: Decision, claimed: Claim, before: str, pointer: int
    ) -> Parked | None:
        parked = asking.record(
            asked,
            decision,
            claimed,
            config=self._config,
            now=self._clock(),
            node=self._node,
            lease=self._leases.until(),
            labels=self._labels(asked.caller),
            previous=before,
            again=self._steps.book.index.get(asked.call.id) is not None,
        )
        tool = asked.call.tool
        if tool is not None:
            until = parked.expires_at + self._config.expire
            await self._steps.book.define(tool.digest, tool.own_json, until)
        return await self._steps.book.create(parked, pointer)

    def _limit(self, principal: str) -> tuple[str, str] | None:
        """Which limit is reached, and what to do about it."""
        index, most = self._steps.book.index, self._config.max_waiting
        if index.waiting(principal) + self._entering.get(principal, 0) >= most:
            text = (
                f"{most} calls wait for approval already (parking.max_waiting); "
                "wait until a person has answered some of them"
            )
            return "max_waiting", text
        if index.open >= MOST_OPEN:
            return "full", "too many calls wait for approval; try again later"
        if not self._buckets.take(principal):
            text = (
                f"more than {self._config.rate} calls would ask for approval (parking.rate); "
                "slow down, and do not ask for what you can do without"
            )
            return "rate", text
        return None
