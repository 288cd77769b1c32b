"""The old HTTP+SSE transport (2024-11-05): one event stream down, a POST address up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import cast

from aiohttp import ClientResponse
from yarl import URL

from sidecar.model import Caller, Era, Fields, JsonObject, Unavailable
from sidecar.upstream import prepare
from sidecar.upstream.conversation import Conversation
from sidecar.upstream.faults import HttpStatus, StreamEnded
from sidecar.upstream.http import HttpClient
from sidecar.upstream.leg import SELF, Hello, Host, lose, until_gone
from sidecar.upstream.tasks import cancelled
from sidecar.wire.ndjson import Oversize


class SseLeg:
    """One stream; it is of use until the stream ends. ``connect`` comes first."""

    over_http = False

    def __init__(self, host: Host, http: HttpClient, isolation: str = "") -> None:
        self.hello = Hello(Era.LEGACY, "", {}, stateful=True)
        self.isolation = isolation
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._host = host
        self._http = http
        self._address: asyncio.Future[URL] = asyncio.get_running_loop().create_future()
        self._base = http.url
        self._reader: asyncio.Task[None] | None = None
        self.conversation = Conversation(host, self._send, self._prepare, self._heard, "event")

    async def connect(self) -> None:
        """Open the stream and wait for the address.

        Raises:
            HttpStatus: the server refuses the stream.
            Unavailable: no answer, or it is no such stream.
        """
        response = await self._http.get({})
        kind = response.headers.get("Content-Type", "")
        if response.status != 200 or not kind.startswith("text/event-stream"):
            response.close()
            if response.status != 200:
                raise HttpStatus(response.status)
            raise self._http.failed("has no event stream at this address", "no")
        self._base = response.url
        self._reader = asyncio.create_task(
            self._read(response), name=f"{self._host.name}: event stream"
        )
        await until_gone(self, cast("asyncio.Future[object]", self._address))
        if not self._address.done():
            raise self._http.failed(self.gone.result(), "no")

    def welcome(self, hello: Hello) -> None:
        """The handshake is done."""
        self.hello = replace(hello, stateful=True)
        self.conversation.version = hello.version

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        return await self.conversation.request(method, params, caller)

    async def subscribe(self, uri: str) -> None:
        await self.request("resources/subscribe", {"uri": uri}, SELF)

    async def unsubscribe(self, uri: str) -> None:
        await self.request("resources/unsubscribe", {"uri": uri}, SELF)

    async def set_log_level(self, level: str) -> None:
        await self.request("logging/setLevel", {"level": level}, SELF)

    def listen(self) -> None:
        """Nothing to do: everything comes on the one stream."""

    async def end(self) -> None:
        lose(self.gone, "the leg was ended")
        if self._reader is not None:
            await cancelled(self._reader)
        self.conversation.over("the connection was ended")

    # ------------------------------------------------------------------------------- inside

    def _prepare(self, params: JsonObject, token: int, caller: Caller) -> JsonObject:
        return prepare.legacy(params, token, caller, trusted=self._host.trusted)

    def _heard(self, method: str, params: JsonObject) -> None:
        self._host.heard(self, method, params)

    async def _send(self, body: bytes) -> None:
        if self.gone.done():
            raise self._http.failed(self.gone.result(), "no")
        try:
            response = await self._http.post(body, {}, self._address.result())
            await self._http.accepted(response)
        except HttpStatus as status:
            if status.status not in (400, 404, 410):
                raise self._http.refused(status) from None
            # It does not know the session that the address stands for.
            lose(self.gone, f"forgot the session (HTTP {status.status})")
            raise self._http.failed(self.gone.result(), "no") from None

    async def _read(self, response: ClientResponse) -> None:
        why = "the event stream ended"
        try:
            async for event in self._http.events(response):
                if isinstance(event, Oversize):
                    self.conversation.feed(event)
                elif event.event == "endpoint":
                    if not self._address.done():
                        self._address.set_result(self._checked(event.data))
                elif event.data and event.event in ("message", ""):
                    self.conversation.feed(event.data)
        except StreamEnded:
            pass
        except Unavailable as error:
            why = error.why
        self.conversation.over(why)
        lose(self.gone, why)

    def _checked(self, data: bytes) -> URL:
        """The address for messages: on the server's own origin, or our headers would go
        wherever a stranger says."""
        with suppress(ValueError):
            address = self._base.join(URL(data.decode("utf-8", "replace").strip()))
            if address.origin() == self._http.url.origin():
                return address
        raise self._http.failed("names an address of another origin for its messages", "no")
