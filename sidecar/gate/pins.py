"""Definitions of tools as they were first seen, so that a change of them can be told."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote

import msgspec

from sidecar.gate.mirror import PATIENCE, Mirror
from sidecar.model import Json, JsonObject, Tool
from sidecar.ports.store import ABSENT, ANY, Conflict, Record, Store, StoreError
from sidecar.wire import json

log = logging.getLogger("sidecar.gate")

PREFIX: Final = "pins/"
MOST: Final = 10_000
"""Tools of one server that are pinned; any further one counts as changed."""
_TOGETHER: Final = 256
_LARGEST_DEFINITION: Final = 32 << 10
_LONGEST_NAME: Final = 400
_SULK: Final = 1.0
"""Seconds in which a store that just failed is not asked again for another call."""

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pin:
    """A definition's digest, and since when (seconds since the epoch) it is the one."""

    digest: str
    at: float
    version: int


class Pins:
    """By server and the server's own name. Whether the store can be read matters only for
    tools of which nothing is known yet."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        """``clock`` is in seconds since the epoch."""
        self._store = store
        self._clock = clock
        self._pins: dict[_Key, Pin] = {}
        self._keys: dict[str, _Key] = {}
        self._counts: dict[str, int] = {}
        self._seeing: dict[_Key, asyncio.Task[bool]] = {}
        self._told_of: dict[_Key, str] = {}
        self._failed = 0.0
        self._mirror = Mirror(store, PREFIX, self._changed, self._gone)

    async def start(self) -> None:
        """Read what is pinned. Raises StoreError."""
        await self._mirror.start()

    async def close(self) -> None:
        """Stop. Idempotent."""
        await self._mirror.close()
        tasks = list(self._seeing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -------------------------------------------------------------------------- for a call

    def changed(self, tool: Tool) -> bool | None:
        """Whether its definition is other than the pinned one; ``None``: nothing is known."""
        pin = self._pins.get((tool.server, tool.upstream_name))
        if pin is not None:
            return pin.digest != tool.digest
        return True if self._counts.get(tool.server, 0) >= MOST else None

    def knows(self, tool: Tool) -> bool:
        """Whether ``changed`` has an answer."""
        key = (tool.server, tool.upstream_name)
        return key in self._pins or self._counts.get(tool.server, 0) >= MOST

    async def see(self, tool: Tool) -> bool:
        """Pin a tool that is seen for the first time; ``False``: the store cannot say."""
        if self.knows(tool):
            return True
        key = (tool.server, tool.upstream_name)
        task = self._seeing.get(key)
        if task is None:
            loop = asyncio.get_running_loop()
            if loop.time() < self._failed + _SULK:
                return False
            task = loop.create_task(self._first(tool), name=f"pin {tool.name}")
            self._seeing[key] = task
            task.add_done_callback(lambda _: self._seeing.pop(key, None))
        # A caller that gives up does not take it from the others who wait for the same.
        return await asyncio.shield(task)

    async def see_all(self, tools: Iterable[Tool]) -> bool:
        """Pin what is new among these; whether all of them are known now."""
        new = [tool for tool in tools if self._check(tool) is None]
        known = True
        for start in range(0, len(new), _TOGETHER):
            some = await asyncio.gather(*map(self.see, new[start : start + _TOGETHER]))
            known = known and all(some)
        return known

    def _check(self, tool: Tool) -> bool | None:
        """As ``changed``; a change is told in the log, once."""
        changed = self.changed(tool)
        key = (tool.server, tool.upstream_name)
        if changed and key in self._pins and self._told_of.get(key) != tool.digest:
            self._told_of[key] = tool.digest
            log.warning(
                "the definition of %s is other than when it was pinned; after a look at it, "
                "`sidecar tools pin %s` accepts it",
                tool.name,
                tool.name,
            )
        return changed

    async def _first(self, tool: Tool) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                try:
                    record = await self._put(tool, ABSENT)
                except Conflict:
                    # Another sidecar saw it first, maybe otherwise.
                    found = await self._store.get(_key(tool))
                    if found is None:
                        return False
                    record = found
        except (StoreError, TimeoutError) as error:
            self._failed = asyncio.get_running_loop().time()
            log.warning("%s cannot be pinned: %s", tool.name, error or "the store does not answer")
            return False
        self._changed(record)
        return (tool.server, tool.upstream_name) in self._pins

    async def _put(self, tool: Tool, expected: int) -> Record:
        about: JsonObject = {
            "server": tool.server,
            "tool": tool.upstream_name,
            "digest": tool.digest,
            "at": self._clock(),
        }
        if len(tool.own_json) <= _LARGEST_DEFINITION:
            # For a person who wants to see what changed.
            about["definition"] = msgspec.Raw(tool.own_json)
        return await self._store.put(_key(tool), json.encode(about), expected=expected)

    # --------------------------------------------------------------------------- the store

    def _changed(self, record: Record) -> None:
        try:
            read = json.fields(record.value)
            server, tool, digest = (_text(read, name) for name in ("server", "tool", "digest"))
            at = json.decode(cast("msgspec.Raw", read["at"]))
            if not isinstance(at, int | float):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            # A pin that cannot be read is none: the tool cannot be called until it is pinned.
            log.error("%s: the pin cannot be read; pin the tool anew", record.key)
            self._gone(record.key)
            return
        key = (server, tool)
        held = self._pins.get(key)
        if held is None:
            self._counts[server] = self._counts.get(server, 0) + 1
        elif held.version > record.version:
            return
        self._pins[key] = Pin(digest, float(at), record.version)
        self._keys[record.key] = key

    def _gone(self, name: str) -> None:
        key = self._keys.pop(name, None)
        if key is not None and self._pins.pop(key, None) is not None:
            self._counts[key[0]] -= 1

    # ------------------------------------------------------------------------ for a person

    async def pin(self, tool: Tool) -> None:
        """Its definition of now is the right one. Raises StoreError."""
        try:
            async with asyncio.timeout(PATIENCE):
                self._changed(await self._put(tool, ANY))
        except TimeoutError:
            raise StoreError("the store does not answer") from None

    async def definition(self, tool: Tool) -> Json:
        """The definition that is pinned, under the server's own name; ``None`` where there is
        none, or it was too long to keep. Raises StoreError."""
        try:
            async with asyncio.timeout(PATIENCE):
                record = await self._store.get(_key(tool))
        except TimeoutError:
            raise StoreError("the store does not answer") from None
        try:
            read = json.fields(record.value) if record is not None else {}
            return json.decode(cast("msgspec.Raw", read["definition"]))
        except (ValueError, KeyError):
            return None

    def listing(self, tools: Sequence[Tool]) -> list[JsonObject]:
        """``[{name, server, upstream_name, digest, pinned, at, changed}]``, in their order.

        ``pinned`` and ``at`` (seconds since the epoch) are absent where nothing is pinned.
        """
        found: list[JsonObject] = []
        for tool in tools:
            row: JsonObject = {
                "name": tool.name,
                "server": tool.server,
                "upstream_name": tool.upstream_name,
                "digest": tool.digest,
                "changed": self.changed(tool) is True,
            }
            pin = self._pins.get((tool.server, tool.upstream_name))
            if pin is not None:
                row["pinned"], row["at"] = pin.digest, pin.at
            found.append(row)
        return found


def _key(tool: Tool) -> str:
    return f"{PREFIX}{_short(tool.server)}/{_short(tool.upstream_name)}"


def _short(name: str) -> str:
    quoted = quote(name, safe="", errors="surrogatepass")
    if len(quoted) <= _LONGEST_NAME:
        return quoted
    return "%" + hashlib.sha256(quoted.encode()).hexdigest()


def _text(read: JsonObject, name: str) -> str:
    value = json.decode(cast("msgspec.Raw", read[name]))
    if not isinstance(value, str):
        raise TypeError
    return value
