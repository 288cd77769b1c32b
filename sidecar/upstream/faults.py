"""What can go wrong between us and a server, in words that an operator can act on.

``ran`` is ``no`` only where the server surely did not run the request.
"""

from __future__ import annotations

import errno
import os
import socket

import aiohttp
from yarl import URL

from sidecar.config import Limits, ServerConfig
from sidecar.model import RpcError, Unavailable

CONNECT_TIMEOUT = 10.0
"""Seconds for TCP and TLS together."""


class Unreachable(Unavailable):
    """Not this request failed but the whole server: no connection to it can be made."""


class SessionElsewhere(Unavailable):
    """A redirect leads a session away from the origin that began it; another can be begun."""


class HttpStatus(Exception):
    """An answer that is no 2xx. ``error`` is the JSON-RPC error in its body, if there is one,
    and ``answers`` whether that error carries the request's own id."""

    def __init__(
        self,
        status: int,
        error: RpcError | None = None,
        *,
        answers: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.error = error
        self.answers = answers
        self.retry_after = retry_after


class StreamEnded(Exception):
    """An event stream ended before the answer. ``last_event_id`` is where to resume, if the
    server gave ids, and ``retry`` the seconds it asked us to wait."""

    def __init__(self, last_event_id: str, retry: float | None) -> None:
        super().__init__("the stream ended before the answer")
        self.last_event_id = last_event_id
        self.retry = retry


def refused(config: ServerConfig, status: HttpStatus) -> Unavailable:
    """An HTTP error that says nothing in JSON-RPC's terms."""
    code, server = status.status, config.name
    if code in (401, 403):
        return Unavailable(server, _credentials(config, code), ran="no", permanent=True)
    if code in (404, 405):
        return Unavailable(
            server,
            f"has nothing at this address (HTTP {code}); see url of server {server}",
            ran="no",
        )
    return Unavailable(
        server,
        f"answered with HTTP {code}",
        ran="no" if code in (413, 429) else "maybe",
        retry_in=status.retry_after,
        permanent=code == 413,
    )


def _credentials(config: ServerConfig, code: int) -> str:
    """Why, and where the credentials of this server are to be set."""
    why = f"refuses us (HTTP {code})"
    if config.headers:
        why = f"refuses our credentials (HTTP {code})"
    elif code == 401:
        why = "wants credentials, and has none (HTTP 401)"
    if not config.runtime:
        return f"{why}; see headers of server {config.name}"
    return f"{why}; add server {config.name} again with a credential that it takes"


def redirected(
    server: str,
    response: aiohttp.ClientResponse,
    why: str,
    kind: type[Unavailable] = Unavailable,
) -> Unavailable:
    """A redirect that is not followed, and why."""
    try:
        where = shown(response.url.join(URL(response.headers.get("Location", ""))))
    except ValueError:
        where = "an address that is none"
    return kind(
        server,
        f"redirects to {where} (HTTP {response.status}), which is not followed: {why}; "
        f"set url of server {server} to the final address",
        ran="no",
        permanent=True,
    )


def shown(url: URL) -> str:
    """Where a redirect leads is worth telling; what a query or a user name holds is not."""
    return str(url.with_query(None).with_fragment(None).with_user(None))[:200]


def of(server: str, url: URL, error: Exception) -> Unavailable:
    """Why there is no answer's head, and whether the request may have been read."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Unreachable(server, f"no connection within {CONNECT_TIMEOUT:g} s", ran="no")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Unreachable(server, f"its TLS certificate is not valid for {url.host}", ran="no")
    if isinstance(error, aiohttp.ClientSSLError):
        return Unreachable(server, "cannot connect: it does not speak TLS as we do", ran="no")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unreachable(server, f"cannot connect: {_reason(error.os_error)}", ran="no")
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError | ValueError):
        return Unavailable(server, f"see url of server {server}: not an address", ran="no")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return Unavailable(server, "closed the connection without an answer", ran="maybe")
    if isinstance(error, aiohttp.ClientResponseError):
        return Unavailable(server, "answered with what is no HTTP", ran="maybe")
    if isinstance(error, OSError):
        return Unavailable(server, f"the connection broke: {_reason(error)}", ran="maybe")
    return Unavailable(server, "the connection broke", ran="maybe")


def too_large(server: str, limits: Limits, limit: str, size: int) -> Unavailable:
    """An answer over a cap: sending the request again would end the same way."""
    cap: int = getattr(limits, limit)
    return Unavailable(
        server,
        f"the answer has at least {size} bytes, more than limits.{limit} allows ({cap}); "
        f"raise limits.{limit} or ask for less",
        ran="maybe",
        permanent=True,
    )


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    if isinstance(error, aiohttp.ClientError):
        return "it was cut"  # Its text may hold the URL, and that a key in its query.
    # uvloop's and the event loop's own texts name addresses only.
    return error.strerror or type(error).__name__
