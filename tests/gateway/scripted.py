"""An upstream that does what a test says, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable

from sidecar.config import ServerConfig
from sidecar.events import Bus, LegChanged, ToolsChanged
from sidecar.model import (
    NOTHING,
    Caller,
    Definition,
    Entries,
    Era,
    Fields,
    JsonObject,
    Principal,
    ServerStatus,
    State,
)
from sidecar.wire.json import fields

ALL = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}}
ALL["logging"] = {}

Answer = Callable[[str, JsonObject, Caller], Awaitable[Fields]]


def config(name: str, **rest: object) -> ServerConfig:
    return ServerConfig(name, "stdio", **rest)  # type: ignore[arg-type]


def tool(name: str, **rest: object) -> Definition:
    return Definition(
        name, json.dumps({"name": name, "inputSchema": {"type": "object"}, **rest}).encode()
    )


def prompt(name: str, **rest: object) -> Definition:
    return Definition(name, json.dumps({"name": name, **rest}).encode())


def resource(uri: str, **rest: object) -> Definition:
    return Definition(uri, json.dumps({"uri": uri, "name": uri, **rest}).encode())


def template(uri: str, **rest: object) -> Definition:
    return Definition(uri, json.dumps({"uriTemplate": uri, "name": uri, **rest}).encode())


def offers(
    tools: Iterable[str | Definition] = (), capabilities: JsonObject | None = None, **rest: object
) -> Entries:
    made = tuple(tool(t) if isinstance(t, str) else t for t in tools)
    return Entries(tools=made, capabilities=ALL if capabilities is None else capabilities, **rest)  # type: ignore[arg-type]


def result(text: str = "ok", **rest: object) -> Fields:
    """What an upstream gives: the fields of a result, unread."""
    data = {"content": [{"type": "text", "text": text}], **rest}
    return fields(json.dumps(data).encode())


def caller(
    *servers: str, name: str = "agent", session: str = "s1", era: Era = Era.LEGACY, **rest: object
) -> Caller:
    return Caller(Principal(name, servers or ("*",)), era=era, session=session, **rest)  # type: ignore[arg-type]


class Scripted:
    """``answers`` by method, or ``answer`` for any; without either it answers ``ok``."""

    def __init__(
        self,
        name: str,
        entries: Entries = NOTHING,
        *,
        state: State = State.READY,
        bus: Bus | None = None,
    ) -> None:
        self.name = name
        self.bus = bus
        self.state = state
        self.error: str | None = None
        self.asked: list[tuple[str, JsonObject, Caller]] = []
        self.watched: list[tuple[str, str, str]] = []
        self.levels: list[tuple[str, str]] = []
        self.forgotten: list[str] = []
        self.closed = False
        self.answer: Answer | None = None
        self.answers: dict[str, Fields | Exception | list[Fields | Exception]] = {}
        self._entries = entries
        self._settled = asyncio.Event()
        if state is State.READY:
            self._settled.set()

    @property
    def status(self) -> ServerStatus:
        return ServerStatus(self.name, "configured", "stdio", self.state, error=self.error)

    def entries(self) -> Entries:
        return self._entries

    async def settled(self) -> None:
        await self._settled.wait()

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        self.asked.append((method, params, caller))
        if self.answer is not None:
            return await self.answer(method, params, caller)
        scripted = self.answers.get(method)
        if isinstance(scripted, list):
            scripted = scripted.pop(0)
        if isinstance(scripted, Exception):
            raise scripted
        return result() if scripted is None else scripted

    async def subscribe(self, uri: str, caller: Caller) -> None:
        failure = self.answers.get("resources/subscribe")
        if isinstance(failure, Exception):
            raise failure
        self.watched.append(("+", uri, caller.isolation))

    async def unsubscribe(self, uri: str, caller: Caller) -> None:
        self.watched.append(("-", uri, caller.isolation))

    async def set_log_level(self, level: str, caller: Caller) -> None:
        self.levels.append((level, caller.session))

    async def forget(self, isolation: str) -> None:
        self.forgotten.append(isolation)

    async def close(self) -> None:
        self.closed = True

    # ------------------------------------------------------------- what a test makes it do

    def becomes(self, state: State, entries: Entries | None = None) -> None:
        """Change the state, and what is offered, and say so on the bus."""
        self.state = state
        if entries is not None:
            self._entries = entries
        self._settled.set()
        if self.bus is not None:
            self.bus.publish(LegChanged(server=self.name, state=state))
            self.bus.publish(ToolsChanged(name="sidecar", server=self.name, count=0))

    def lists(self, entries: Entries, times: int = 1) -> None:
        """Offer something else, and say so so many times."""
        self._entries = entries
        for _ in range(times):
            if self.bus is not None:
                self.bus.publish(
                    ToolsChanged(name="sidecar", server=self.name, count=len(entries.tools))
                )
