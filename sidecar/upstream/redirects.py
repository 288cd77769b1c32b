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
from sidecar.egress.urls import Ambiguous, parse
from sidecar.model import Unavailable
from sidecar.ports.connector import Connector
from sidecar.upstream import faults
from sidecar.upstream.complaints import Complaints
from sidecar.upstream.faults import CONNECT_TIMEOUT

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
            Unavailable: it is not followed, or may not be dialled, or does not answer.
        """
        method, away = response.method, False
        for _ in range(MOST_HOPS):
            response.release()
            there = self._next(response, method)
            away = away or there.origin() != response.url.origin()
            if away and not elsewhere:
                raise faults.redirected(self._server, response, "it leads to another origin")
            connector = await self._checked(there, away=away)
            if away:
                response = await self._away(connector, method, there, body, headers)
            else:
                await connector.close()
                response = await send(method, there, body, headers)
            if not 300 <= response.status < 400:
                self._complaints.warn(
                    "redirect",
                    f"redirects to {faults.shown(there)}; with that as its url, each request "
                    "would take one trip less",
                )
                return response
        response.close()
        raise faults.redirected(self._server, response, f"there are more than {MOST_HOPS} in a row")

    async def close(self) -> None:
        """Close the connections to other origins, also those in use."""
        for connector in list(self._connectors):
            await connector.close()

    def _next(self, response: aiohttp.ClientResponse, method: str) -> URL:
        if response.status not in REDIRECTS:
            raise faults.redirected(self._server, response, "its status is no plain redirect")
        try:
            base = parse(str(response.url))
            found = next_hop(base, method, response.status, response.headers.get("Location"))
        except (Ambiguous, NotFollowed) as error:
            raise faults.redirected(self._server, response, str(error)) from None
        return URL(found.canonical, encoded=True)

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
