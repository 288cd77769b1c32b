"""A whole sidecar without its listeners, on a clock that a test moves.

``Node`` is the real gateway, gate and parking before a scripted server; several may share one
store. Time passes only when nothing else is to be done, so that minutes take milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sidecar.config import Config, LabelsConfig, ParkingConfig, Rate, Retry
from sidecar.events import Bus
from sidecar.gate import Gatehouse
from sidecar.gateway import Gateway
from sidecar.model import (
    Caller,
    Decision,
    Entries,
    Era,
    Fields,
    JsonObject,
    Phase,
    Principal,
)
from sidecar.parking import Parking
from sidecar.policy.guard import Guarded
from sidecar.ports.store import Record, Store, StoreError
from sidecar.store.memory import MemoryStore
from sidecar.wire.json import encode
from tests.gateway.scripted import Scripted, config, offers, result, tool

T = TypeVar("T")
EPOCH = 1_800_000_000.0
FREE = Rate(1_000_000, 1.0)
PARKING = ParkingConfig(hold=45.0, expire=86400.0, max_waiting=20, rate=FREE)


# ------------------------------------------------------------------------------------ time


class _Selector(selectors.SelectSelector):
    """Never waits: when nothing is ready, the loop's clock moves on instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everything waits for something that will never come")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def epoch(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + self.now - 1000.0


def virtually(test: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """The coroutine as a plain test, on a loop of its own whose time is virtual."""

    def run(*args: object, **kwargs: object) -> T:
        loop = VirtualLoop()
        try:
            asyncio.set_event_loop(loop)
            return loop.run_until_complete(test(*args, **kwargs))
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    # What pytest gives as fixtures and parameters are those of the test itself.
    run.__signature__ = __import__("inspect").signature(test)  # type: ignore[attr-defined]
    marks = getattr(test, "pytestmark", None)
    if marks is not None:
        run.pytestmark = marks  # type: ignore[attr-defined]
    return run


async def moment(seconds: float = 0.001) -> None:
    """Let everything happen that is to happen within so many seconds."""
    await asyncio.sleep(seconds)


def epoch() -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.epoch()


# ---------------------------------------------------------------------------------- policy


class Rules:
    """A policy: what it decides of a call, and the rules that say so, until they are changed."""

    def __init__(
        self,
        decision: str = "ask",
        *rules: str,
        revision: str = "r1",
        labels: tuple[str, ...] = (),
    ) -> None:
        self.labels = labels
        self.decision = decision
        self.rules = rules or ("p/gated",)
        self._revision = revision

    @property
    def revision(self) -> str:
        return self._revision

    def decide(self, phase: Phase, given: JsonObject) -> Decision:
        if phase is not Phase.CALL:
            labels = self.labels if phase is Phase.RESULT else ()
            return Decision("allow", "default", revision=self.revision, labels=labels)
        rule = self.rules[0]
        return Decision(
            self.decision,  # type: ignore[arg-type]
            rule,
            self.rules,
            "p",
            self.revision,
            f"{rule} says {self.decision}",
        )

    def refs(self, phase: Phase) -> frozenset[str]:
        return frozenset()

    def specialise(self, known: Mapping[str, object]) -> Rules:
        return self


class Holder:
    """The policy in force, as the gate asks for it."""

    def __init__(self, rules: Rules) -> None:
        self._guarded = Guarded(rules, timeout=None)

    @property
    def current(self) -> Guarded:
        return self._guarded

    def set(self, rules: Rules) -> None:
        self._guarded = Guarded(rules, timeout=None)


# ---------------------------------------------------------------------------------- stores


class Wire:
    """A node's way to a store; ``cut`` and everything fails from then on, as after kill -9."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cut = False

    def _check(self) -> None:
        if self.cut:
            raise StoreError("cut")

    async def open(self) -> None:
        await self._store.open()

    async def get(self, key: str) -> Record | None:
        self._check()
        return await self._store.get(key)

    async def put(self, key: str, value: bytes, **rest: Any) -> Record:
        self._check()
        return await self._store.put(key, value, **rest)

    async def delete(self, key: str, **rest: Any) -> bool:
        self._check()
        return await self._store.delete(key, **rest)

    async def list(self, prefix: str) -> list[Record]:
        self._check()
        return await self._store.list(prefix)

    def watch(self, prefix: str) -> Any:
        self._check()
        return self._store.watch(prefix)

    async def close(self) -> None:
        """The store is the test's."""


# ----------------------------------------------------------------------------------- nodes


class Node:
    """One sidecar with one server ``s``. ``ran`` are the params that reached the server."""

    def __init__(
        self,
        store: Store,
        rules: Rules | None = None,
        *,
        parking: ParkingConfig = PARKING,
        entries: Entries | None = None,
        scope: str = "principal",
        **rest: Any,
    ) -> None:
        self.store = Wire(store)
        self.bus = Bus()
        self.holder = Holder(rules or Rules())
        self.config = Config(
            list_wait=0.2,
            retry=Retry(attempts=1),
            parking=parking,
            labels=LabelsConfig(scope=scope),  # type: ignore[arg-type]
        )
        self.parking = Parking(
            self.store,
            self.config.parking,
            revision=lambda: self.holder.current.revision,
            bus=self.bus,
            labels=lambda caller: self.house.ledger.of(caller),  # noqa: PLW0108  it comes later
            clock=epoch,
            **rest,
        )
        self.house = Gatehouse(
            self.holder,
            self.store,
            self.bus,
            self.config,
            servers=lambda name: self.gateway.config_of(name),  # noqa: PLW0108  it comes later
            parking=self.parking,
        )
        # Labels last in the same time as everything else here.
        self.house.ledger._clock = epoch
        self.gateway = Gateway(self.config, self.bus, gate=self.house.gate)
        self.parking.definition = self.gateway.definition
        self.server = Scripted("s", entries or offers(["write", "other"]), bus=self.bus)
        self.gateway.attach(self.server, config("s"))

    async def start(self) -> Node:
        await self.house.start(self.gateway.tools)
        await self.parking.start()
        return self

    async def close(self) -> None:
        await self.gateway.close()
        await self.parking.close()
        await self.house.close()

    async def __aenter__(self) -> Node:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------------- what agents do

    def call(
        self,
        name: str = "s__write",
        args: JsonObject | None = None,
        **rest: Any,
    ) -> asyncio.Task[Fields]:
        """Begin a call."""
        return self.send({"name": name, "arguments": {"a": 1} if args is None else args}, **rest)

    def send(
        self,
        params: JsonObject,
        *,
        who: str = "agent",
        on_behalf_of: str = "",
        session: str = "s1",
        era: Era = Era.LEGACY,
        **rest: Any,
    ) -> asyncio.Task[Fields]:
        """Begin a call with these params."""
        sender = Caller(Principal(who, on_behalf_of=on_behalf_of), era=era, session=session, **rest)
        return asyncio.create_task(self.gateway.request("tools/call", params, sender))

    @property
    def ran(self) -> list[JsonObject]:
        return [params for method, params, _ in self.server.asked if method == "tools/call"]

    def redefine(self, name: str = "write", **definition: object) -> None:
        """The server's tool is another one from now on."""
        others = [t for t in self.server.entries().tools if t.key != name]
        self.server.lists(replace(self.server.entries(), tools=(tool(name, **definition), *others)))

    # ------------------------------------------------------------------ what people see

    def rows(self, *states: str) -> list[Any]:
        """The parked calls in these states, oldest first."""
        found, _ = self.parking.book.index.page(
            lambda parked: not states or parked.state in states,
            after=None,
            limit=1000,
            oldest_first=True,
        )
        return [row.parked for row in found]

    def only(self, *states: str) -> Any:
        """The one parked call in these states."""
        (row,) = self.rows(*states)
        return row

    async def approve(self, id: str | None = None, **rest: Any) -> Any:
        return await self.parking.answer(
            id or self.only("waiting").id, approve=True, by="alice", way="token", **rest
        )

    async def deny(self, id: str | None = None, **rest: Any) -> Any:
        return await self.parking.answer(
            id or self.only("waiting").id, approve=False, by="alice", way="token", **rest
        )

    def reload(self, rules: Rules) -> None:
        """Other policies are in force."""
        self.holder.set(rules)
        self.parking.reloaded()


async def store() -> MemoryStore:
    """An open store on the virtual clock."""
    made = MemoryStore(clock=epoch)
    await made.open()
    return made


def plain(fields: Fields) -> dict[str, Any]:
    """A result as a client reads it."""
    return json.loads(encode(fields))


def meta(fields: Fields, key: str) -> Any:
    return plain(fields)["_meta"].get(f"sidecar/{key}")


__all__ = ["Node", "Rules", "meta", "moment", "plain", "result", "store", "virtually"]
