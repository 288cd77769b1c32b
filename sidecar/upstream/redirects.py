"""Redirects of a server, followed one hop at a time.

A server may move within its origin (a slash at the end of a path, mostly); then it is asked as
ever. Where it leads elsewhere, a stranger names the address: the built-in verdict counts, whoever
configured the server, and none of the configured headers go along, not even back.

Only where the status says that method and body stay (307, 308), or for a GET.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import aiohttp
from yarl import URL

import sidecar
from sidecar.egress.follow import MOST_HOPS, REDIRECTS, NotFollowed, next_hop
from sidecar.egress.urls import Ambiguous, Target, parse
from sidecar.mcp.headers import SESSION_HEADER
from sidecar.model import Unavailable
from sidecar.ports.connector import Connector
from sidecar.upstream import faults
from sidecar.upstream.complaints import Complaints
from sidecar.upstream.faults import CONNECT_TIMEOUT, SessionElsewhere

FAULTS: Final = (aiohttp.ClientError, OSError)
"""What aiohttp raises when a connection fails; a TimeoutError is an OSError."""
NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
PROTOCOL: Final[Mapping[str, str]] = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "User-Agent": f"mcp-sidecar/{sidecar.__version__}",
}
"""What every request says, wherever it goes."""
_GOES_ALONG: Final = ("mcp-", "accept", "cache-control", "last-event-id")
_BUFFER: Final = 1 << 18

MOST_SESSIONS: Final = 4096
"""Sessions begun elsewhere whose origin is remembered; the oldest are forgotten, and so refused."""

_LARGE: Final = 1 << 20

Send = Callable[[str, URL, bytes | None, Mapping[str, str]], Awaitable[aiohttp.ClientResponse]]
"""Sends to the server's own origin, over its own connections and with its headers."""


class Redirects:
    """Of one server."""

    def __init__(self, server: str, connector: Connector, complaints: Complaints) -> None:
        self._server = server
        self._connector = connector
        self._complaints = complaints
        # Each goes with its one connection.
        self._connectors: weakref.WeakSet[aiohttp.BaseConnector] = weakref.WeakSet()
        # Which origin began a session, of those that were not begun at the server's own.
        self._sessions: dict[str, str] = {}
        self._closed = 0

    async def follow(
        self,
        response: aiohttp.ClientResponse,
        body: bytes | None,
        headers: Mapping[str, str],
        send: Send,
        *,
        elsewhere: bool = True,
    ) -> aiohttp.ClientResponse:
        """The answer at the end of the way. ``elsewhere``: also at another origin.

        Raises:
            SessionElsewhere: it would lead a session away from the origin that began it.
            Unavailable: it is not followed, or may not be dialled, or does not answer.
        """
        method, away, closed = response.method, False, self._closed
        origin = session = None
        for name, value in headers.items():
            if name.lower() == SESSION_HEADER.lower():
                session = value
        for _ in range(MOST_HOPS):
            response.release()
            before, there = self._next(response, method)
            origin = origin or before.origin
            away = away or there.origin != origin
            if away and not elsewhere:
                raise faults.redirected(self._server, response, "it leads to another origin")
            if away and session is not None and self._sessions.get(session) != there.origin:
                raise faults.redirected(
                    self._server,
                    response,
                    "the session was begun at another origin",
                    SessionElsewhere,
                )
            url = URL(there.canonical, encoded=True)
            connector = await self._checked(url, away=away)
            if closed != self._closed:
                await connector.close()
                raise Unavailable(self._server, "is removed or starts anew here", ran="no")
            if away:
                response = await self._away(connector, method, url, body, headers)
            else:
                await connector.close()
                response = await send(method, url, body, headers)
            if not 300 <= response.status < 400:
                if away:
                    self._begun(there, method, session, response)
                self._complaints.warn(
                    "redirect",
                    f"redirects to {faults.shown(url)}; with that as its url, each request "
                    "would take one trip less",
                )
                return response
        response.close()
        raise faults.redirected(self._server, response, f"there are more than {MOST_HOPS} in a row")

    async def close(self) -> None:
        """Close the connections to other origins, also those in use."""
        self._closed += 1
        for connector in list(self._connectors):
            await connector.close()

    def _next(self, response: aiohttp.ClientResponse, method: str) -> tuple[Target, Target]:
        """Whence and where to. Raises Unavailable."""
        if response.status not in REDIRECTS:
            raise faults.redirected(self._server, response, "its status is no plain redirect")
        locations = response.headers.getall("Location", [])
        try:
            base = parse(str(response.url))
            if len(locations) > 1:
                raise NotFollowed("it has more than one Location")
            found = next_hop(base, method, response.status, locations[0] if locations else None)
        except (Ambiguous, NotFollowed) as error:
            raise faults.redirected(self._server, response, str(error)) from None
        return base, found

    def _begun(
        self, there: Target, method: str, session: str | None, response: aiohttp.ClientResponse
    ) -> None:
        """Note whose session it is that an answer from elsewhere begins or ends."""
        if method == "DELETE" and session is not None:
            self._sessions.pop(session, None)
        begun = response.headers.get(SESSION_HEADER)
        if session is None and begun:
            # What was begun elsewhere first stays with whoever did.
            self._sessions.setdefault(begun, there.origin)
            if len(self._sessions) > MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]

    async def _checked(self, there: URL, *, away: bool) -> aiohttp.BaseConnector:
        try:
            return await self._connector.redirect(self._server, str(there), elsewhere=away)
        except OSError as error:
            raise Unavailable(
                self._server,
                f"redirects to {faults.shown(there)}, which may not be dialled: {error}",
                ran="no",
                permanent=True,
            ) from None

    async def _away(
        self,
        connector: aiohttp.BaseConnector,
        method: str,
        there: URL,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> aiohttp.ClientResponse:
        """One request over a connection of its own, which ends with the answer."""
        plain = {
            name: value for name, value in headers.items() if name.lower().startswith(_GOES_ALONG)
        }
        self._connectors.add(connector)
        session = aiohttp.ClientSession(
            connector=connector,
            headers=PROTOCOL,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=NO_TIMEOUT,
            trust_env=False,
            read_bufsize=_BUFFER,
        )
        try:
            response = await session.request(
                method, there, data=payload(body), headers=plain, allow_redirects=False
            )
        except (*FAULTS, ValueError) as error:
            await session.close()
            raise faults.of(self._server, there, error) from None
        except BaseException:
            await session.close()
            raise
        # The connection closes when the answer has been read; there is nothing else to close.
        session.detach()
        return response


def payload(body: bytes | None) -> bytes | io.BytesIO | None:
    """A body as aiohttp takes it: it warns of large ones in one piece, since sending them takes
    time."""
    return body if body is None or len(body) < _LARGE else io.BytesIO(body)
