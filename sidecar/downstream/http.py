"""The agent listener: MCP over HTTP at ``/mcp`` and ``/mcp/{server}``, REST at ``/v1``, ACP at
``/acp/{harness}``.

Every request passes the same checks in the same order, cheapest first and nothing read before it
must be: Host, Origin, path and method, content type, size → who calls → the body. What is MCP
about the rest is in ``legacy`` and ``modern``, what is ACP in ``acp_http``, what is neither in
``rest``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from aiohttp import web
from multidict import istr

from sidecar.config.types import Limits, Listen
from sidecar.downstream.acp_http import Editors
from sidecar.downstream.auth import Authenticator, Grant
from sidecar.downstream.connections import ConnectionServer
from sidecar.downstream.desk import Desk, fault
from sidecar.downstream.legacy import Legacy
from sidecar.downstream.modern import Modern
from sidecar.downstream.replies import JSON, Refusal
from sidecar.downstream.rest import Rest
from sidecar.downstream.running import Crowd
from sidecar.downstream.state import State
from sidecar.events import Bus
from sidecar.gateway import Gateway
from sidecar.mcp import errors
from sidecar.mcp.headers import VERSION_HEADER
from sidecar.mcp.versions import era_of_header
from sidecar.model import Era, JsonObject, Unavailable
from sidecar.ports.agents import EditorSessions
from sidecar.wire.hosts import HostRules, HostVerdict

log = logging.getLogger("sidecar.downstream")

TICK = 5.0
"""Seconds between two looks at what runs and what is idle."""
SLOW_BODY = 30.0
"""Seconds that a client may take to send a request's body."""

_HOST = istr("Host")
_ORIGIN = istr("Origin")
_AUTHORIZATION = istr("Authorization")
_CONTENT_TYPE = istr("Content-Type")
_CONTENT_LENGTH = istr("Content-Length")
_CONTENT_ENCODING = istr("Content-Encoding")
_EXPECT = istr("Expect")
_VERSION = istr(VERSION_HEADER)

# The request, who sent it, its body, and the server of ``/mcp/{server}``.
Answering = Callable[[web.BaseRequest, Grant, bytes, str | None], Awaitable[web.StreamResponse]]


class AgentListener:
    """Serves agents over HTTP from ``start`` until ``close``.

    ``drain`` ends it gracefully: what runs may finish, what comes anew is told to come back.
    """

    def __init__(
        self,
        gateway: Gateway,
        authenticator: Authenticator,
        bus: Bus,
        *,
        name: str,
        version: str,
        limits: Limits | None = None,
        hosts: Sequence[str] = (),
        most_in_flight: int | None = None,
        editors: Callable[[], EditorSessions | None] = lambda: None,
    ) -> None:
        """``hosts`` are further names that are ours; loopback and the listen address are anyway.
        ``editors`` gives what editors may open.

        Raises:
            ValueError: an entry of ``hosts`` is no host name.
        """
        self._authenticator = authenticator
        self._hosts = tuple(hosts)
        self._rules = HostRules(Listen(), hosts)
        limits = limits or Limits()
        if most_in_flight is not None:
            limits = dataclasses.replace(limits, in_flight=most_in_flight)
        self._state = State(Desk(gateway, name, version), bus, limits, Crowd(limits.in_flight))
        self._legacy = Legacy(self._state)
        self._modern = Modern(self._state)
        self._rest = Rest(self._state)
        self._editors = Editors(self._state, bus, editors, name=name, version=version)
        self._connections: ConnectionServer | None = None
        self._socket: asyncio.AbstractServer | None = None
        self._path: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] | None = None

    # ------------------------------------------------------------------------ its life

    async def start(self, listen: Listen) -> Listen:
        """Listen; returns the address, with the port that port 0 became.

        Raises:
            OSError: the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        self._connections = ConnectionServer(self._serve)
        if listen.path is not None:
            path = str(listen.path)
            # asyncio replaces a socket that is there, also one at which somebody listens.
            await asyncio.to_thread(_not_in_use, path)
            before = os.umask(0o177)
            try:
                self._socket = await loop.create_unix_server(self._connections, path)
            finally:
                os.umask(before)
            self._path = path
        else:
            self._socket = await loop.create_server(
                self._connections, listen.host, listen.port, backlog=1024, reuse_address=True
            )
            port: int = self._socket.sockets[0].getsockname()[1]
            listen = Listen(listen.host, port)
        self._rules = HostRules(listen, self._hosts)
        self._unlisten = self._authenticator.listen(self._tokens_changed)
        self._tasks = [self._keep(self._connections.sweep()), self._keep(self._tick())]
        return listen

    def reconfigure(self, limits: Limits) -> None:
        """Other limits from now on; sessions that are open stay open."""
        self._state.reconfigure(limits)

    async def drain(self, grace: float) -> None:
        """Stop taking requests (503), let what runs finish for ``grace`` seconds, then end it."""
        state = self._state
        state.draining = True
        for session in state.sessions:
            session.end_streams()
        for stream in tuple(state.listens):
            stream.end()
        self._editors.drain()
        await state.crowd.wait(grace)
        stopped = Unavailable("sidecar", "it is shutting down", ran="maybe")
        await state.crowd.end(errors.of(stopped), timeout=2.0)
        self._editors.close()

    async def close(self) -> None:
        """End at once whatever is left. Returns when nothing is. Idempotent."""
        if self._unlisten is not None:
            self._unlisten()
        server, self._socket = self._socket, None
        if server is not None:
            server.close()
        await self.drain(0.0)
        for session in self._state.sessions:
            self._state.sessions.end(session, "shutdown")
        if self._connections is not None:
            self._connections.pre_shutdown()
            await self._connections.shutdown(1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._state.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._path = None

    def sessions(self) -> list[JsonObject]:
        """The open sessions for the operator: ``id`` is the name they have in spans and logs,
        never what the client shows; ``opened_at`` in seconds since the epoch, ``idle`` in
        seconds. Those of editors have the era ``acp``, and their harness as ``server``."""
        now = asyncio.get_running_loop().time()
        rows: list[JsonObject] = [
            {
                "id": session.key,
                "principal": session.principal.name,
                "client": {"name": session.client.name, "version": session.client.version},
                "era": Era.LEGACY.value,
                "server": session.server,
                "opened_at": session.opened_at,
                "idle": 0.0 if not session.idle else round(now - session.used, 3),
                "calls": len(session.calls),
            }
            for session in self._state.sessions
        ]
        return rows + self._editors.rows()

    def _keep(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK)
            now = loop.time()
            for running in self._state.crowd:
                running.tick(now)
            self._state.sessions.reap(now)

    def _tokens_changed(self) -> None:
        """End what was opened with a token that is no longer good, and refresh the rest."""
        revoked = errors.invalid_request("the token of this request was revoked")
        for running in self._state.crowd:
            if self._authenticator.renewed(running.grant) is None:
                running.end(revoked, 401)
        for session in self._state.sessions:
            renewed = self._authenticator.renewed(session.grant)
            if renewed is None:
                self._state.sessions.end(session, "its token was revoked")
            elif renewed != session.grant:
                self._state.regrant(session, renewed)
        for stream, grant in tuple(self._state.listens.items()):
            if self._authenticator.renewed(grant) != grant:
                stream.end()
        self._editors.renew(self._authenticator.renewed)

    # --------------------------------------------------------------------- one request

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        rest = path.startswith("/v1/")
        try:
            return await self._checked(request, path)
        except Refusal as refusal:
            return refusal.reply(rest=rest)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as failure:  # noqa: BLE001  one request fails, the listener goes on
            face = next(face for face in ("/v1", "/acp", "/mcp", "/") if path.startswith(face))
            log.error("a request to %s failed: %s", face, fault(failure))
            return Refusal(500, "the sidecar failed; its log says more").reply(rest=rest)

    async def _checked(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        headers = request.headers
        self._check_host(request)
        if not self._rules.origin(headers.getall(_ORIGIN, ())):
            raise Refusal(403, "requests of web pages are refused: the Origin is not of this host")
        answering, server = self._route(request, path)
        body_follows = request.method == "POST"
        if body_follows:
            self._check_body(request)
        grant = self._authenticator.authenticate(headers.getall(_AUTHORIZATION, ()))
        if grant is None:
            sent = _AUTHORIZATION in headers
            raise Refusal(
                401,
                "send a token of this sidecar as Authorization: Bearer …",
                {"WWW-Authenticate": 'Bearer error="invalid_token"' if sent else "Bearer"},
            )
        body = await self._read(request) if body_follows else b""
        return await answering(request, grant, body, server)

    def _check_host(self, request: web.BaseRequest) -> None:
        if not request.raw_path.startswith("/"):
            raise Refusal(400, "the request's target is a path, not a whole URL")
        lines = request.headers.getall(_HOST, ())
        verdict = self._rules.host(lines)
        if verdict is HostVerdict.FOREIGN and request.transport is not None:
            name = request.transport.get_extra_info("sockname")
            verdict = self._rules.host(lines, name[0] if isinstance(name, tuple) else None)
        if verdict is HostVerdict.MALFORMED:
            raise Refusal(400, "a request has one Host header that names a host")
        if verdict is HostVerdict.FOREIGN:
            raise Refusal(
                421,
                "this host is not served here; use localhost, or the IP address in `listen` or, "
                "where that is every address, one of this machine's, or add the name to `hosts`",
            )

    def _route(self, request: web.BaseRequest, path: str) -> tuple[Answering, str | None]:
        method = request.method
        if path == "/v1/tools":
            if method != "GET":
                raise Refusal(405, "GET /v1/tools", {"Allow": "GET"})
            return self._rest.tools, None
        if path == "/v1/call":
            if method != "POST":
                raise Refusal(405, "POST /v1/call", {"Allow": "POST"})
            return self._rest.call, None
        if path == "/mcp":
            server = None
        elif path.startswith("/mcp/") and path.find("/", 5) < 0 and len(path) > 5:
            server = path[5:]
        elif path.startswith("/acp/") and path.find("/", 5) < 0 and len(path) > 5:
            if method != "GET":
                raise Refusal(405, "GET, to open a WebSocket", {"Allow": "GET"})
            return self._editors.connect, path[5:]
        else:
            raise Refusal(
                404,
                "MCP is at /mcp and /mcp/{server}, REST at /v1/tools and /v1/call, ACP at "
                "/acp/{harness}",
            )
        if era_of_header(request.headers.get(_VERSION)) is Era.MODERN:
            if method != "POST":
                raise Refusal(405, "this revision of MCP has POST alone", {"Allow": "POST"})
            return self._modern.post, server
        if method == "POST":
            return self._legacy.post, server
        if method == "GET":
            return self._legacy.get, server
        if method == "DELETE":
            return self._legacy.delete, server
        raise Refusal(405, "MCP has POST, GET and DELETE", {"Allow": "POST, GET, DELETE"})

    def _check_body(self, request: web.BaseRequest) -> None:
        headers = request.headers
        types = headers.getall(_CONTENT_TYPE, ())
        if len(types) != 1 or (types[0] != JSON and not _is_json(types[0])):
            raise Refusal(415, "the body is JSON: send Content-Type: application/json")
        if _CONTENT_ENCODING in headers and headers[_CONTENT_ENCODING].lower() != "identity":
            raise Refusal(415, "bodies are not compressed here: send no Content-Encoding")
        length = headers.get(_CONTENT_LENGTH)
        if length is not None and length.isdigit() and int(length) > self._state.limits.body:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        most = self._state.limits.body
        return Refusal(413, f"the body is larger than limits.body, {most} bytes")

    async def _read(self, request: web.BaseRequest) -> bytes:
        content = request.content
        if content.is_eof():
            # Nearly always it has come with the headers.
            body = content.read_nowait(-1)
            if len(body) > self._state.limits.body:
                raise self._too_large()
            return body
        await self._expected(request)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(SLOW_BODY):
                while chunk := await content.readany():
                    size += len(chunk)
                    if size > self._state.limits.body:
                        raise self._too_large()
                    parts.append(chunk)
        except TimeoutError:
            raise Refusal(
                408, f"the body did not come within {SLOW_BODY:.0f} s", {"Connection": "close"}
            ) from None
        except web.RequestPayloadError:
            raise Refusal(400, "the body is not what its headers say") from None
        return b"".join(parts)

    async def _expected(self, request: web.BaseRequest) -> None:
        """Tell a client that waits for it that its body is welcome (RFC 9110 section 10.1.1)."""
        expected = request.headers.get(_EXPECT)
        if expected is None:
            return
        if expected.lower() != "100-continue":
            raise Refusal(417, "nothing but 100-continue may be expected")
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def _is_json(content_type: str) -> bool:
    kind, _, parameters = content_type.partition(";")
    if kind.strip().lower() != JSON:
        return False
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in (
            "utf-8",
            "utf8",
        ):
            return False
    return True


def _not_in_use(path: str) -> None:
    """Raises OSError where somebody listens at the socket; one that was left behind passes."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
