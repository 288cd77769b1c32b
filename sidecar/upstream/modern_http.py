"""A stateless server over HTTP (2026-07-28): every request stands for itself."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count

from sidecar.mcp.errors import HEADER_MISMATCH
from sidecar.mcp.headers import ParamHeaders, request_headers
from sidecar.mcp.versions import MODERN_VERSION
from sidecar.model import Caller, Fields, JsonObject, RpcError, Unavailable
from sidecar.upstream import lost, prepare
from sidecar.upstream.conversation import read_result
from sidecar.upstream.faults import HttpStatus, StreamEnded, Unreachable
from sidecar.upstream.http import HttpClient
from sidecar.upstream.leg import SELF, Hello, Host, doubt, lose
from sidecar.upstream.listener import Listener
from sidecar.upstream.notices import progress, read_params
from sidecar.wire import jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import Message


class ModernHttpLeg:
    """No connection of its own: it is of use as long as the server can be reached."""

    over_http = True

    def __init__(self, host: Host, http: HttpClient) -> None:
        self.hello: Hello
        self.isolation = ""
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._host = host
        self._http = http
        self._ids = count(1)
        self._listener: Listener | None = None

    def welcome(self, hello: Hello) -> None:
        """The server has said what it offers."""
        self.hello = hello

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        mapping = self._mapping(method, params)
        try:
            return await self._once(method, params, caller, mapping)
        except RpcError as error:
            if error.code != HEADER_MISMATCH or method != "tools/call":
                raise
            # Refused unread: the headers that the tool asks for are not those we know of.
            await self._host.relisted()
            again = self._mapping(method, params)
            if again == mapping:
                raise
        return await self._once(method, params, caller, again)

    async def subscribe(self, uri: str) -> None:
        self.listen()
        if self._listener is not None:
            self._listener.watch(uri)

    async def unsubscribe(self, uri: str) -> None:
        if self._listener is not None:
            self._listener.unwatch(uri)

    async def set_log_level(self, level: str) -> None:
        """Nothing to do: the level goes with each request."""

    def listen(self) -> None:
        if self._listener is None and not self.gone.done():
            self._listener = Listener(self._host, self, self._listened)

    async def end(self) -> None:
        lose(self.gone, "the leg was ended")
        if self._listener is not None:
            await self._listener.end()

    # ------------------------------------------------------------------------------- inside

    def _mapping(self, method: str, params: JsonObject) -> ParamHeaders | None:
        if method != "tools/call":
            return None
        name = params.get("name")
        return self._host.param_headers.get(name) if isinstance(name, str) else None

    async def _once(
        self, method: str, params: JsonObject, caller: Caller, mapping: ParamHeaders | None
    ) -> Fields:
        host = self._host
        id = next(self._ids)
        prepared = prepare.modern(params, id, caller, host.level_for(caller), trusted=host.trusted)
        if caller.sent is not None:
            caller.sent(id, MODERN_VERSION)
        try:
            message = await self._http.exchange(
                jsonrpc.request(id, method, prepared),
                request_headers(method, prepared, mapping)
                | prepare.trace_headers(caller, trusted=host.trusted),
                id,
                partial(self._heard, id, caller),
            )
        except HttpStatus as status:
            if not status.answers and lost.by_status(status, had_id=False):
                # In its place is a server of the other era.
                lose(self.gone, "wants sessions now")
                raise self._http.failed("wants sessions now", "no") from None
            if status.error is not None and (status.answers or status.status < 500):
                raise status.error from None
            doubt(host, self, status, caller)
            raise self._http.refused(status) from None
        except StreamEnded as ended:
            raise Unavailable(host.name, str(ended), ran="maybe") from None
        except Unreachable as error:
            # Whoever noticed it.
            lose(self.gone, error.why)
            raise
        return read_result(host, message)

    def _heard(self, id: int, caller: Caller, message: Message) -> None:
        """Whatever comes on a request's stream before its answer."""
        host = self._host
        if not message.is_notification:
            host.complaints.warn("stray message", "sends on a stream what does not belong there")
            return
        try:
            params = read_params(message, host.limits.depth)
        except BadJson as error:
            host.complaints.warn("garbage", f"sends a notification we cannot read: {error}")
            return
        if message.method == "notifications/progress":
            if params.get("progressToken") == id:
                progress(caller, params)
        elif message.method == "notifications/message":
            if host.wants(params.get("level"), caller):
                caller.notify(message.method, params)
        elif self._listener is None or not self._listener.heard(message.method):
            host.heard(self, message.method, params)

    async def _listened(self, params: JsonObject) -> None:
        await self._once("subscriptions/listen", params, SELF, None)
