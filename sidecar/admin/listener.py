"""The operator's HTTP API: a unix socket checked by peer, or TCP with a token.

Errors are problem+json (RFC 9457). Nothing is answered before the peer is known.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from sidecar.admin import view
from sidecar.admin.peer import Stranger, identify
from sidecar.config import Listen
from sidecar.model import JsonObject

log = logging.getLogger("sidecar.admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SocketInUse(Exception):
    """Another sidecar listens on the socket, or something that is not ours is in its place."""


def problem(status: int, title: str, detail: str) -> web.Response:
    """One problem+json answer; ``detail`` says what to do next."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/problem+json",
        headers={"WWW-Authenticate": "Bearer"} if status == 401 else None,
    )


def answer(body: JsonObject) -> web.Response:
    """One JSON answer, not to be cached: it is a state of now."""
    return web.Response(
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


class AdminListener:
    """``start`` binds and serves; ``close`` ends it and removes the socket.

    ``token`` is the TCP listener's bearer; without one only a unix socket may be bound.
    ``own`` are the pids whose descendants are refused.
    """

    def __init__(self, sources: view.Sources, *, token: str | None, own: frozenset[int]) -> None:
        self._sources = sources
        self._token = hashlib.sha256(token.encode()).digest() if token is not None else None
        self._own = own
        self._runner: web.AppRunner | None = None
        self._path: Path | None = None

    async def start(self, listen: Listen) -> str:
        """Bind; returns the address as the ready line tells it.

        Raises:
            SocketInUse: somebody else's socket or file is at the path.
            OSError: the address cannot be bound.
        """
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 20)
        app.router.add_get("/v1/servers", self._servers)
        app.router.add_get("/v1/tools", self._tools)
        app.router.add_get("/v1/sessions", self._sessions)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runner = runner
        if listen.path is not None:
            bound = _bind_unix(listen.path)
            self._path = listen.path
            await web.SockSite(runner, bound).start()
            return f"unix:{listen.path}"
        if self._token is None:
            raise ValueError("a TCP admin listener needs a token")
        site = web.TCPSite(runner, listen.host, listen.port)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        """Stop serving; idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = self._refuse(request)
        if refused is not None:
            return refused
        try:
            return await handler(request)
        except web.HTTPException as error:
            return problem(error.status, error.reason, f"{request.method} {request.path}")

    def _refuse(self, request: web.Request) -> web.Response | None:
        sock = request.transport.get_extra_info("socket") if request.transport else None
        if sock is None:
            return problem(403, "Forbidden", "the connection cannot be checked")
        if sock.family == socket.AF_UNIX:
            try:
                identify(sock, self._own)
            except Stranger as why:
                log.warning("admin socket: refused a peer: %s", why)
                return problem(403, "Forbidden", str(why))
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode()).digest()
        if self._token is None or scheme.lower() != "bearer":
            return problem(401, "Unauthorized", "send the admin token as a bearer token")
        if not hmac.compare_digest(digest, self._token):
            return problem(401, "Unauthorized", "the token is not the one in admin.token_file")
        return None

    async def _servers(self, _request: web.Request) -> web.Response:
        return answer({"servers": [view.server(s) for s in self._sources.servers()]})

    async def _tools(self, _request: web.Request) -> web.Response:
        return answer({"tools": [view.tool(t) for t in self._sources.tools()]})

    async def _sessions(self, _request: web.Request) -> web.Response:
        return answer({"sessions": list(self._sources.sessions())})


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
