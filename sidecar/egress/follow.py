"""Requests whose redirects are followed one hop at a time, each checked like the first address.

For what is fetched on a stranger's word: discovery documents, servers added while the sidecar
runs. Nothing is followed by the HTTP library itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from sidecar.egress.check import NOBODY, About, EgressCheck, Reason
from sidecar.egress.dial import Tls, pinned
from sidecar.egress.urls import Ambiguous, Target, join

MOST_HOPS: Final = 5
"""Redirects that are followed."""
REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class NotFollowed(Exception):
    """A redirect that is not followed; the text says why, and quotes no address."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that is no redirect, and where it came from."""

    response: aiohttp.ClientResponse
    target: Target
    hops: int


def next_hop(target: Target, method: str, status: int, location: str | None) -> Target:
    """Where a redirect leads (RFC 9110 section 15.4). Pure.

    A body is sent again only where the status says that the method stays (307, 308); a client
    may not be led from https to http.

    Raises:
        NotFollowed: it leads nowhere, or where a client may not be led.
    """
    if method not in ("GET", "HEAD") and status not in (307, 308):
        raise NotFollowed(f"a redirect with HTTP {status} does not say that {method} is sent on")
    if location is None:
        raise NotFollowed(f"a redirect (HTTP {status}) without a Location")
    try:
        found = join(target, location)
    except Ambiguous as error:
        raise NotFollowed(f"a redirect whose address cannot be read: {error}") from None
    if target.scheme == "https" and found.scheme != "https":
        raise NotFollowed("a redirect from https to http")
    return found


@asynccontextmanager
async def request(
    check: EgressCheck,
    method: str,
    url: str,
    *,
    reason: Reason,
    about: About = NOBODY,
    headers: Mapping[str, str] | None = None,
    credentials: Mapping[str, str] | None = None,
    data: bytes | None = None,
    timeout: float = 30.0,
    ssl: Tls = True,
) -> AsyncIterator[Answer]:
    """Send a request and follow its redirects. The answer is open inside the ``async with``.

    ``reason`` is the first check's; hops are ``redirect``. ``credentials`` are headers for the
    origin of ``url`` alone: once it is left they are not sent again, not even back to it.
    ``timeout`` is in seconds, for one hop.

    Raises:
        Denied: an address may not be dialled; nothing was sent to it.
        NotFollowed: too many redirects, or one that must not be followed.
        aiohttp.ClientError, OSError, TimeoutError: as the request of any client.
    """
    checked = await check.url(url, reason, about)
    first = checked.target
    sent = {**(headers or {}), **(credentials or {})}
    for hop in range(MOST_HOPS + 1):
        target = checked.target
        if target.origin != first.origin:
            # For good: who was led away and back does not know by whom.
            sent = dict(headers or {})
        async with (
            aiohttp.ClientSession(
                connector=pinned(checked, ssl),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=timeout),
            ) as session,
            session.request(
                method,
                URL(target.canonical, encoded=True),
                headers=sent,
                data=data,
                allow_redirects=False,
            ) as response,
        ):
            if response.status not in REDIRECTS:
                yield Answer(response, target, hop)
                return
            location = response.headers.get("Location")
            found = next_hop(target, method, response.status, location)
        checked = await check.target(found, "redirect", about)
    raise NotFollowed(f"more than {MOST_HOPS} redirects")
