"""ACP over a WebSocket at ``/acp/{harness}``: one JSON-RPC message a text frame.

A request to open one has passed the checks of every request (Host, Origin, who calls) before it
comes here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web

from sidecar.downstream.acp_server import EditorServer
from sidecar.downstream.auth import Grant
from sidecar.downstream.replies import Refusal
from sidecar.downstream.state import State
from sidecar.events import Bus
from sidecar.model import Caller, JsonObject
from sidecar.ports.agents import EditorSessions

__all__ = ["Editors"]

log = logging.getLogger("sidecar.downstream")

MOST: Final = 128
"""Connections of editors at once."""
HEARTBEAT: Final = 30.0
"""Seconds between two pings; an editor that answers none is gone."""
CLOSE: Final = 2.0


class Editors:
    """The connections of editors to one listener."""

    def __init__(
        self,
        state: State,
        bus: Bus,
        sessions: Callable[[], EditorSessions | None],
        *,
        name: str,
        version: str,
    ) -> None:
        """``sessions`` gives what editors may open, ``None`` while there is no harness."""
        self._state = state
        self._bus = bus
        self._sessions = sessions
        self._name = name
        self._version = version
        self._open: set[EditorServer] = set()

    async def connect(
        self, request: web.BaseRequest, grant: Grant, body: bytes, harness: str | None
    ) -> web.StreamResponse:
        """Serve one until it ends. Raises Refusal."""
        sessions = self._sessions()
        if sessions is None or harness is None or not self._offered(harness, grant):
            raise Refusal(404, "there is no harness of this name that you may use")
        self._state.admit(None)
        if len(self._open) >= MOST:
            raise Refusal(503, f"{MOST} editors are connected already", {"Retry-After": "5"})
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT,
            max_msg_size=self._state.limits.line,
            compress=False,
            timeout=CLOSE,
        )
        socket.headers["Server"] = "sidecar"
        if not socket.can_prepare(request).ok:
            raise Refusal(426, "ACP is spoken over a WebSocket here", {"Upgrade": "websocket"})
        await socket.prepare(request)
        server = EditorServer(
            self._state.gateway,
            sessions,
            self._bus,
            grant,
            harness,
            name=self._name,
            version=self._version,
            limits=self._state.limits,
            crowd=self._state.crowd,
        )
        self._open.add(server)
        try:
            await server.serve(_lines(socket), lambda message: socket.send_str(message.decode()))
        finally:
            self._open.discard(server)
            code = WSCloseCode.GOING_AWAY if server.why else WSCloseCode.OK
            await socket.close(code=code, message=server.why.encode()[:120])
        return socket

    def _offered(self, harness: str, grant: Grant) -> bool:
        gateway = self._state.gateway
        config = gateway.config_of(harness)
        if config is None or config.transport != "acp":
            return False
        return gateway.sees(harness, Caller(grant.principal))

    def rows(self) -> list[JsonObject]:
        """The sessions that editors have open, for the operator."""
        # One that two editors have open is one.
        rows = {str(row["id"]): row for server in self._open for row in server.rows()}
        return list(rows.values())

    def renew(self, renewed: Callable[[Grant], Grant | None]) -> None:
        """Tokens have changed: end what was opened with one that stands for somebody else now,
        or for nobody."""
        for server in tuple(self._open):
            if renewed(server.grant) != server.grant:
                server.end("the token of this connection was revoked or changed")

    def drain(self) -> None:
        """Begin nothing new."""
        for server in self._open:
            server.draining = True

    def close(self) -> None:
        """End all of them."""
        for server in tuple(self._open):
            server.end("the sidecar is shutting down")


async def _lines(socket: web.WebSocketResponse) -> AsyncIterator[bytes]:
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            yield message.data.encode()
        elif message.type is WSMsgType.BINARY:
            yield message.data
