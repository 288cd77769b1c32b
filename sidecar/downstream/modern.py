"""MCP over HTTP without sessions: 2026-07-28. Every request stands for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from aiohttp import web
from multidict import istr

from sidecar.downstream.accept import accepts
from sidecar.downstream.auth import Grant
from sidecar.downstream.exchange import Exchange
from sidecar.downstream.feed import LIST_CHANGES, RESOURCE_UPDATED, Notification
from sidecar.downstream.replies import Refusal, refused
from sidecar.downstream.state import State
from sidecar.downstream.stream import Stream
from sidecar.mcp import errors, inbound, shape
from sidecar.mcp.errors import Rejection
from sidecar.mcp.inbound import Inbound
from sidecar.mcp.meta import SUBSCRIPTION_ID
from sidecar.model import Caller, Era, JsonObject, Notify, RequestId, no_notify
from sidecar.wire import jsonrpc
from sidecar.wire.json import BadJson, decode_request

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
MOST_URIS = 1024
"""Resources that one stream may watch."""

_ACCEPT = istr("Accept")
_KINDS = {f"{kind}ListChanged": method for method, kind in LIST_CHANGES.items()}


@dataclass(frozen=True, slots=True)
class Filter:
    """What a listener asked to be told: notification methods, and resources by URI."""

    kinds: dict[str, str]
    uris: tuple[str, ...]

    @classmethod
    def of(cls, params: JsonObject) -> Filter:
        """Read the params of ``subscriptions/listen``; what is not known is not honoured.

        Raises:
            Rejection: -32602, a known key of the wrong shape.
        """
        wanted = params.get("notifications", {})
        if not isinstance(wanted, dict):
            raise errors.invalid_params("params.notifications is an object")
        notifications = cast("JsonObject", wanted)
        kinds: dict[str, str] = {}
        for key, method in _KINDS.items():
            value = notifications.get(key)
            if value is not None and not isinstance(value, bool):
                raise errors.invalid_params(f"params.notifications.{key} is a boolean")
            if value:
                kinds[key] = method
        uris = notifications.get("resourceSubscriptions") or []
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
            raise errors.invalid_params("params.notifications.resourceSubscriptions is URIs")
        if len(uris) > MOST_URIS:
            raise errors.invalid_params(f"at most {MOST_URIS} resources can be watched")
        return cls(kinds, tuple(dict.fromkeys(cast("list[str]", uris))))

    def honoured(self, uris: list[str]) -> JsonObject:
        """What the acknowledgement names."""
        found: JsonObject = dict.fromkeys(self.kinds, True)
        if uris:
            found["resourceSubscriptions"] = uris
        return found

    def passes(self, method: str, params: JsonObject, uris: frozenset[str]) -> bool:
        if method == RESOURCE_UPDATED:
            return params.get("uri") in uris
        return method in self.kinds.values()


class Modern:
    """POST of the stateless era; there is nothing else."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def post(
        self, request: web.BaseRequest, grant: Grant, body: bytes, server: str | None
    ) -> web.StreamResponse:
        """One message of the client's. Closing the connection cancels what it asked for."""
        wanted = accepts(request.headers.getall(_ACCEPT, ()))
        if not (wanted.json and wanted.sse):
            raise Refusal(406, "send Accept: application/json, text/event-stream")
        try:
            message = inbound.modern(
                decode_request(body, self._state.limits.depth), request.headers
            )
        except BadJson as bad:
            return refused(errors.parse_error(str(bad)), None, 400)
        except Rejection as rejection:
            return refused(rejection, rejection.id, rejection.status)
        id_ = message.id
        if id_ is None:
            return web.Response(status=202)
        if server is not None and not self._state.gateway.sees(
            server, self._caller(grant, server, message, no_notify)
        ):
            raise self._state.unknown_server(id_)
        self._state.admit(id_)
        if message.method == LISTEN:
            return await self._listen(request, grant, server, message, id_)
        exchange = Exchange(self._state.crowd, grant, id_, era=Era.MODERN, sse=True)
        caller = self._caller(grant, server, message, exchange.notify)
        exchange.start(self._state.desk.answer(id_, message.method, message.params, caller))
        return await exchange.respond(request)

    @staticmethod
    def _caller(grant: Grant, server: str | None, message: Inbound, notify: Notify) -> Caller:
        envelope = message.envelope
        return Caller(
            principal=grant.principal,
            era=Era.MODERN,
            server=server,
            client=envelope.client,
            capabilities=envelope.capabilities or {},
            trace=envelope.trace,
            progress=envelope.progress,
            log_level=envelope.log_level,
            notify=notify,
        )

    async def _listen(
        self,
        request: web.BaseRequest,
        grant: Grant,
        server: str | None,
        message: Inbound,
        id_: RequestId,
    ) -> web.StreamResponse:
        """A stream of what was asked for, acknowledged first, ended with a result."""
        state = self._state
        if len(state.listens) >= state.limits.sessions:
            raise Refusal(
                503,
                f"limits.sessions, {state.limits.sessions}, streams are open already",
                {"Retry-After": "5"},
                id=id_,
            )
        try:
            wanted = Filter.of(message.params)
        except Rejection as rejection:
            return refused(rejection, id_, rejection.status)
        watched: frozenset[str] = frozenset()

        def offer(method: str, params: JsonObject) -> None:
            # What comes before the resources are watched is about lists alone.
            if wanted.passes(method, params, watched):
                stream.offer(method, params)

        stream = Stream(request, lambda notification: render(notification, id_))
        caller = self._caller(grant, server, message, no_notify)
        listening = state.gateway.listen(caller, offer)
        state.listens[stream] = grant
        try:
            uris = await listening.watch(wanted.uris) if wanted.uris else []
            watched = frozenset(uris)
            return await stream.run(
                [acknowledgement(id_, wanted.honoured(uris))],
                lambda: self.listened(id_),
            )
        finally:
            del state.listens[stream]
            listening.stop()

    def listened(self, id_: RequestId) -> bytes:
        """The result that ends a listen."""
        fields = shape.result_for(
            Era.MODERN, LISTEN, {"_meta": {SUBSCRIPTION_ID: id_}}, self._state.desk.server_info
        )
        return jsonrpc.result(id_, fields)


def acknowledgement(id_: RequestId, honoured: JsonObject) -> bytes:
    """The first message of a listen stream."""
    return jsonrpc.notification(
        ACKNOWLEDGED, {"_meta": {SUBSCRIPTION_ID: id_}, "notifications": honoured}
    )


def render(notification: Notification, id_: RequestId) -> bytes | None:
    """A notification as a message of the listen stream ``id_``."""
    method, params = notification
    shaped = shape.notification_for(Era.MODERN, method, params, subscription=id_)
    return None if shaped is None else jsonrpc.notification(method, shaped)
