"""The operator's HTTP API: a unix socket checked by peer, or TCP with tokens.

Errors are problem+json (RFC 9457). Nothing is answered before the peer is known and its role
reaches as far as the route asks, but for the page's own files over TCP. What a browser sends has
to come from a page of ours: ``Host`` is checked against DNS rebinding, ``Origin`` against
requests forged by other sites.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from aiohttp import web

from sidecar.admin import openapi, page
from sidecar.admin.api import (
    ACTOR,
    MOST_BODY,
    STREAMS,
    TARGETS,
    Handler,
    Problem,
    Route,
    problem,
)
from sidecar.admin.peer import Stranger, identify
from sidecar.admin.roles import Actor, Role, Tokens
from sidecar.config import Listen
from sidecar.events import AdminActed, Bus
from sidecar.wire.hosts import HostRules, HostVerdict

log = logging.getLogger("sidecar.admin")


class SocketInUse(Exception):
    """Another sidecar listens on the socket, or something that is not ours is in its place."""


class AdminListener:
    """``start`` binds and serves; ``close`` ends it and removes the socket.

    ``tokens`` are the TCP listener's bearers; without one only a unix socket may be bound.
    ``own`` are the pids whose descendants are refused.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        tokens: Tokens,
        own: frozenset[int],
        bus: Bus | None = None,
    ) -> None:
        """``bus`` is told of what is changed."""
        self._bus = bus
        self._routes = [*routes, page.me(), openapi.route(lambda: self._routes)]
        self._page = page.files()
        self._hosts = HostRules(Listen())
        self._tokens = tokens
        self._own = own
        self._streams: set[Callable[[], None]] = set()
        self._runner: web.AppRunner | None = None
        self._path: Path | None = None

    async def start(self, listen: Listen) -> str:
        """Bind; returns the address as the ready line tells it.

        Raises:
            SocketInUse: somebody else's socket or file is at the path.
            OSError: the address cannot be bound.
        """
        app = web.Application(middlewares=[self._guard], client_max_size=MOST_BODY)
        app[STREAMS] = self._streams
        for each in self._routes:
            app.router.add_route(each.method, each.path, self._handler(each))
        for path, file in self._page.items():
            app.router.add_get(path, page.serving(file))
        self._hosts = HostRules(listen)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True
        )
        await runner.setup()
        self._runner = runner
        if listen.path is not None:
            bound = _bind_unix(listen.path)
            self._path = listen.path
            await web.SockSite(runner, bound).start()
            return f"unix:{listen.path}"
        if not len(self._tokens):
            raise ValueError("a TCP admin listener needs a token")
        site = web.TCPSite(runner, listen.host, listen.port)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        """Stop serving; idempotent."""
        runner, self._runner = self._runner, None
        # aiohttp would wait for them twice as long as it is told to wait.
        self.end_streams()
        if runner is not None:
            await runner.cleanup()
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)

    def end_streams(self) -> None:
        """End what would go on for ever: readers come back, and show again who they are."""
        for end in tuple(self._streams):
            end()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            self._check_browser(request)
            if request.path not in self._page or _on_socket(request):
                request[ACTOR] = self._actor(request)
            return await handler(request)
        except Problem as error:
            return problem(error)
        except web.HTTPException as error:
            allow = error.headers.get("Allow")
            reason = {404: "not_found", 405: "method"}.get(error.status, "refused")
            return problem(
                Problem(
                    error.status,
                    reason,
                    f"there is no {request.method} {request.path}; /openapi.json lists what is",
                    headers={"Allow": allow} if allow else None,
                )
            )
        except Exception:
            # What failed is in the log; whoever asked learns only that it did.
            log.exception("admin: %s %s failed", request.method, request.path)
            return problem(Problem(500, "failed", "the sidecar failed; its log says more"))

    def _handler(self, route: Route) -> Handler:
        handler, bus = _within(route), self._bus
        if bus is None or not route.changes:
            return handler

        async def handle(request: web.Request) -> web.StreamResponse:
            targets = request[TARGETS] = list(request.match_info.values())
            error = "failed"
            try:
                response = await handler(request)
                error = ""
            except Problem as refusal:
                error = refusal.reason
                raise
            finally:
                bus.publish(
                    AdminActed(
                        action=route.changes,
                        by=request[ACTOR].name,
                        way="socket" if _on_socket(request) else "token",
                        targets=tuple(targets),
                        error=error,
                    )
                )
            return response

        return handle

    def _check_browser(self, request: web.Request) -> None:
        """That no other site sends this through somebody's browser. Raises Problem."""
        lines = request.headers.getall("Host", [])
        sock = _socket(request)
        name = sock.getsockname() if sock is not None else None
        verdict = self._hosts.host(lines, name[0] if isinstance(name, tuple) else None)
        if verdict is HostVerdict.FOREIGN and _on_socket(request):
            # Tools put any word there. A site that is rebound has a domain, and so a dot.
            verdict = HostVerdict.FOREIGN if "." in lines[0] else HostVerdict.OURS
        if verdict is HostVerdict.MALFORMED:
            raise Problem(400, "host", "a request has one Host header that names a host")
        if verdict is HostVerdict.FOREIGN:
            raise Problem(
                421,
                "host",
                "this host is not served here; use localhost or the address in admin.listen",
            )
        origins = request.headers.getall("Origin", [])
        if origins and origins not in (["http://" + lines[0]], ["https://" + lines[0]]):
            raise Problem(403, "origin", "requests from pages of another origin are refused")

    def _actor(self, request: web.Request) -> Actor:
        """Who asks. Raises Problem."""
        sock = _socket(request)
        if sock is None:
            raise Problem(403, "peer", "the connection cannot be checked")
        if sock.family == socket.AF_UNIX:
            try:
                return Actor(identify(sock, self._own).name, Role.OPERATOR)
            except Stranger as why:
                log.warning("admin socket: refused a peer: %s", why)
                raise Problem(403, "peer", str(why)) from None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        ask = {"WWW-Authenticate": "Bearer"}
        if scheme.lower() != "bearer":
            raise Problem(401, "token", "send your admin token as a bearer token", headers=ask)
        actor = self._tokens.actor(given.strip())
        if actor is None:
            raise Problem(
                401,
                "token",
                "the token is neither the one in admin.token_file nor an approver's",
                headers=ask,
            )
        return actor


def _socket(request: web.Request) -> socket.socket | None:
    transport = request.transport
    found: socket.socket | None = transport.get_extra_info("socket") if transport else None
    return found


def _on_socket(request: web.Request) -> bool:
    """Whether it came over the unix socket; so does what cannot be told."""
    sock = _socket(request)
    return sock is None or sock.family == socket.AF_UNIX


def _within(route: Route) -> Handler:
    """The route's handler, for those whose role reaches that far."""

    async def handle(request: web.Request) -> web.StreamResponse:
        actor = request[ACTOR]
        if actor.role < route.role:
            raise Problem(
                403,
                "role",
                f"this needs the role {route.role}, and {actor.name} is {actor.role}; "
                "ask an operator",
            )
        return await route.handler(request)

    return handle


def _bind_unix(path: Path) -> socket.socket:
    """A socket that only the sidecar's uid can open, from its first moment.

    A socket left by a sidecar that was killed is replaced; a live one, or a file that is no
    socket, is not.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    home = path.parent.lstat()
    open_to_others = home.st_mode & stat.S_IWOTH and not home.st_mode & stat.S_ISVTX
    if home.st_uid not in (0, os.getuid()) or open_to_others:
        raise SocketInUse(f"{path.parent} can be written by others; choose another admin.listen")
    if path.is_symlink() or path.exists():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SocketInUse(
                f"{path} is there and is not a socket; move it or change admin.listen"
            )
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                path.unlink(missing_ok=True)
            except OSError as error:
                raise SocketInUse(f"{path}: {error.strerror}") from error
            else:
                raise SocketInUse(f"{path}: another sidecar listens there; stop it first")
    bound = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(before)
    bound.setblocking(False)
    return bound
