"""Which servers there are, and what the catalog knows of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.catalog import Catalog, Entry, Kind, Shelf, Untold, View
from sidecar.config import ServerConfig
from sidecar.gateway.agents import is_harness
from sidecar.model import NOTHING, JsonObject, State, Unroutable
from sidecar.ports.upstream import Upstream

log = logging.getLogger("sidecar.gateway")

_IN_WORDS: Final[Mapping[State, str]] = {
    State.CONNECTING: "still connecting",
    State.READY: "up, but does not list",
    State.BACKOFF: "down",
    State.FAILED: "closed",
    State.SHADOWED: "not in use here",
}


@dataclass(slots=True, eq=False)
class Slot:
    """One server's place. ``settled`` once its first attempt has succeeded or failed; until
    ``patience`` (on the loop's clock) lists wait for that, by ``waiter``."""

    upstream: Upstream
    config: ServerConfig
    settled: bool = False
    waiter: asyncio.Task[None] | None = None
    patience: float = 0.0

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def up(self) -> bool:
        """Whether what it offers is listed."""
        return self.upstream.status.state is State.READY


class Roster:
    """The slots in order, and a catalog kept in step with what their servers last told.

    The catalog is brought up to date when somebody asks, not when something is announced: an
    announcement that is late or lost makes no answer wrong. ``list_wait`` is in seconds.
    """

    def __init__(self, catalog: Catalog, list_wait: float) -> None:
        self.catalog = catalog
        self.slots: dict[str, Slot] = {}
        self.list_wait = list_wait
        self._unavailable: set[str] = set()

    # -------------------------------------------------------------------- coming and going

    def place(self, servers: Sequence[tuple[Upstream, ServerConfig]]) -> list[Upstream]:
        """Make these the servers, in this order; what is no longer used, unclosed."""
        before = self.slots
        slots: dict[str, Slot] = {}
        for upstream, config in servers:
            old = before.get(config.name)
            if old is not None and old.upstream is upstream:
                old.config = config
                slots[config.name] = old
            else:
                slots[config.name] = Slot(upstream, config)
        self.slots = slots
        kept = {id(slot.upstream) for slot in slots.values()}
        gone = [slot for slot in before.values() if id(slot.upstream) not in kept]
        for slot in gone:
            if slot.waiter is not None:
                slot.waiter.cancel()
        self.catalog.place([slot.config for slot in slots.values()])
        self.refresh()
        return [slot.upstream for slot in gone]

    async def close(self) -> None:
        """End our waiting for servers."""
        waiters = [slot.waiter for slot in self.slots.values() if slot.waiter is not None]
        for waiter in waiters:
            waiter.cancel()
        if waiters:
            await asyncio.wait(waiters)

    # ----------------------------------------------------------------------- what they told

    def refresh(self) -> None:
        """Bring the catalog in step with every server."""
        for slot in self.slots.values():
            self._sync(slot)

    def _sync(self, slot: Slot) -> None:
        if not self.fresh(slot.name):
            self.catalog.update(slot.name, slot.upstream.entries())

    def fresh(self, server: str) -> bool:
        """Whether the catalog is in step with this one server.

        One that has not told yet and takes the place of another is taken to offer what that one
        did: its tools are unavailable for a moment, not unknown.
        """
        slot = self.slots.get(server)
        shelf = self.catalog.shelf(server)
        if slot is None or shelf is None:
            return False
        entries = slot.upstream.entries()
        return entries is shelf.entries or entries is NOTHING

    def tool(self, name: str, view: View, separator: str | None) -> Entry:
        """Route a tool's name. Raises Unroutable, Untold."""
        try:
            entry = self.catalog.route_tool(name, view, separator)
            if self.fresh(entry.server):
                return entry
        except (Unroutable, Untold):
            pass
        self.refresh()
        return self.catalog.route_tool(name, view, separator)

    def shelves(self, view: View) -> list[Shelf]:
        """What the view's servers offer, listed or not."""
        self.refresh()
        return self.catalog.shelves(view)

    def listed(self, server: str) -> bool:
        """Whether what the server offers is part of a list now."""
        slot = self.slots.get(server)
        return slot is not None and slot.up

    def sees(self, view: View, server: str) -> bool:
        """Whether there is such a server, or harness, in the view."""
        slot = self.slots.get(server)
        return slot is not None and view.sees(server, harness=is_harness(slot.config))

    def visible(self, view: View) -> list[Slot]:
        """The view's servers, in order."""
        return [slot for name, slot in self.slots.items() if self.sees(view, name)]

    # -------------------------------------------------------------------------- waiting

    async def settle(self, view: View) -> None:
        """Wait until the first attempt of each visible server has ended, at most ``list_wait``.

        The patience with a server begins when it is first needed and is spent once:
        one that hangs delays nobody again and again.
        """
        await self._patiently([slot for slot in self.visible(view) if not slot.settled])

    async def told(self, server: str, deadline: float | None = None) -> None:
        """Wait for one server as a list would, and not past ``deadline`` (loop's clock).

        Raises:
            Untold: it has still not told what it has.
        """
        slot, shelf = self.slots.get(server), self.catalog.shelf(server)
        if slot is None or shelf is None or shelf.told:
            return
        if not slot.settled:
            await self._patiently([slot], deadline)
        if slot.upstream.entries() is NOTHING:
            status = slot.upstream.status
            why = f"it is {_IN_WORDS[status.state]} and has not told yet what it has"
            if status.error:
                why += f": {status.error}"
            raise Untold(server, why, retry_in=status.retry_in)
        self.refresh()

    async def _patiently(self, slots: Sequence[Slot], deadline: float | None = None) -> None:
        now = until = asyncio.get_running_loop().time()
        waiters: list[asyncio.Task[None]] = []
        for slot in slots:
            if slot.waiter is None:
                slot.waiter = asyncio.get_running_loop().create_task(_settle(slot))
                slot.patience = now + self.list_wait
            if slot.patience > now:
                until = max(until, slot.patience)
                waiters.append(slot.waiter)
        if deadline is not None:
            until = min(until, deadline)
        if waiters and until > now:
            await asyncio.wait(waiters, timeout=until - now)

    def unavailable(self, view: View, kind: Kind) -> list[JsonObject]:
        """The visible servers that are missing from a list now: ``[{server, state}]``.

        One that is connected and cannot list is missing too, unless its older list is shown.
        """
        missing: list[JsonObject] = []
        for slot in self.visible(view):
            status = slot.upstream.status
            shelf = self.catalog.shelf(slot.name)
            if status.state is State.READY and (
                status.error is None or (shelf is not None and shelf.rows[kind])
            ):
                self._unavailable.discard(slot.name)
                continue
            missing.append({"server": slot.name, "state": str(status.state)})
            # What is down, or tried again after it was, has said so itself, with the reason.
            down = status.state is State.BACKOFF or (
                status.state is State.CONNECTING and status.error is not None
            )
            if slot.name not in self._unavailable and not down:
                self._unavailable.add(slot.name)
                words = _IN_WORDS[status.state]
                why = f": {status.error}" if status.error else ""
                log.warning("server %s is missing from lists: it is %s%s", slot.name, words, why)
        return missing


async def _settle(slot: Slot) -> None:
    try:
        await slot.upstream.settled()
    except Exception:
        log.exception("server %s failed while it was waited for", slot.name)
    slot.settled = True
