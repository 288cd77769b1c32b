"""Pinned dialling: connections are made to the addresses that were checked, and to no other.

Two walls. The resolver that aiohttp is given checks a host at each new connection and answers
with what passed. It is not asked where the host is an IP address, so the factory of sockets,
which is called with every address about to be dialled, looks as well.

TLS names the host of the URL, not the address: certificates are checked as ever. Environment
variables such as ``HTTPS_PROXY`` have no say, since client sessions are made without them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl as tls
from dataclasses import replace
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from sidecar.config import ServerConfig
from sidecar.egress.check import About, Checked, Denied, EgressCheck
from sidecar.egress.urls import Ambiguous, Target, parse
from sidecar.ports.policy import Policy

PIN: Final = 60.0
"""Seconds for which an address that passed may be dialled: longer than any connecting takes."""
MOST_PINNED: Final = 256
MOST_RETIRED: Final = 8
"""Connectors of former policy revisions on which something may still run; beyond, it is cut."""

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV

Tls = bool | tls.SSLContext


class ServerDialer:
    """The ``Connector`` of one server: every new connection is checked, and pinned.

    A connection in use goes on as it was allowed. After a change of the policy the connections
    made before it are not used for new requests: the next one is dialled, and so decided, anew.
    """

    def __init__(self, check: EgressCheck, config: ServerConfig, *, ssl: Tls = True) -> None:
        self._check = check
        self._about = About.of(config)
        self._ssl = ssl

    def connector(self, server: str, url: str) -> aiohttp.BaseConnector:
        """See :class:`sidecar.ports.connector.Connector`."""
        return CheckedConnector(self._check, self._about, url, self._ssl)

    async def redirect(self, server: str, url: str, *, elsewhere: bool) -> aiohttp.BaseConnector:
        """See the port. Elsewhere the verdict counts, whoever configured or added the server."""
        about = self._about
        if elsewhere:
            about = replace(about, checked=True, lenient=False)
        return pinned(await self._check.url(url, "redirect", about), self._ssl)


class CheckedConnector(aiohttp.BaseConnector):
    """Hands requests to a connector that belongs to the policy revision in force."""

    def __init__(self, check: EgressCheck, about: About, url: str, ssl: Tls = True) -> None:
        super().__init__(limit=0)
        self._check = check
        self._about = about
        self._url = url
        self._tls = ssl
        self._policy: Policy | None = None
        self._inner: aiohttp.TCPConnector | None = None
        self._retired: list[aiohttp.TCPConnector] = []

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        """A connection, kept alive since an earlier request under this revision or a new one."""
        inner = self._inner
        if inner is None or self._check.policy() is not self._policy:
            inner = await self._renew()
        return await inner.connect(req, traces, timeout)

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close every connection, also those in use. Idempotent."""
        # The base class promises an awaitable, as this is.
        await super().close(abort_ssl=abort_ssl)
        inner, self._inner = self._inner, None
        for each in [*self._retired, *([] if inner is None else [inner])]:
            await each.close()
        self._retired.clear()

    async def _renew(self) -> aiohttp.TCPConnector:
        if self.closed:
            raise aiohttp.ClientConnectionError("Connector is closed")
        before = self._inner
        pins = _Pins(self._check, self._about, self._url)
        self._policy = self._check.policy()
        # No limit: concurrency is bounded where calls come in, not where they leave. No cache:
        # what is dialled is what this very connection's check saw.
        self._inner = inner = aiohttp.TCPConnector(
            limit=0,
            use_dns_cache=False,
            resolver=pins,
            socket_factory=pins.socket,
            ssl=self._tls,
        )
        if before is not None:
            self._retired.append(before)
            if len(self._retired) > MOST_RETIRED:
                await self._retired.pop(0).close()
        return inner


class _Pins(AbstractResolver):
    """Both walls of one server's connections."""

    def __init__(self, check: EgressCheck, about: About, url: str) -> None:
        self._check = check
        self._about = about
        own = URL(url)
        self._scheme = own.scheme
        self._own = (own.raw_host, own.port)
        self._path = own.raw_path
        self._pinned: dict[str, float] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a host that may be dialled.

        Raises:
            Denied: none may.
            socket.gaierror: there is none.
        """
        try:
            target = self._target(host, port)
        except Ambiguous as error:
            raise self._check.refused(error.why, "dial", self._about) from None
        checked = await self._check.target(target, "dial", self._about)
        if checked.decision.rule == "egress/unresolved":
            raise socket.gaierror(socket.EAI_NONAME, checked.decision.message)
        if not checked.ok:
            raise Denied(checked.decision)
        self._pin(checked.addresses)
        return [_result(host, address, port) for address in checked.addresses]

    def socket(self, addr_info: aiohttp.AddrInfoType) -> socket.socket:
        """A socket for an address that was checked, or that passes now.

        Raises:
            Denied: it does not.
        """
        family, kind, proto, _, sockaddr = addr_info
        text, port = str(sockaddr[0]), int(sockaddr[1])
        if self._pinned.get(text, 0.0) < asyncio.get_running_loop().time():
            try:
                target = self._target(text, port)
            except Ambiguous as error:
                raise self._check.refused(error.why, "dial", self._about) from None
            checked = self._check.literal(target, "dial", self._about)
            if not checked.ok:
                raise Denied(checked.decision)
        return socket.socket(family, kind, proto)

    async def close(self) -> None:
        """There is nothing to close: the resolver behind it belongs to the check."""

    def _pin(self, addresses: tuple[str, ...]) -> None:
        if len(self._pinned) + len(addresses) > MOST_PINNED:
            self._pinned.clear()
        until = asyncio.get_running_loop().time() + PIN
        self._pinned.update(dict.fromkeys(addresses, until))

    def _target(self, host: str, port: int) -> Target:
        """What is dialled, as the check takes it. A stranger's host is read strictly again.

        Raises:
            Ambiguous: it cannot be.
        """
        path = self._path if (host, port) == self._own else "/"
        if self._about.checked:
            return parse(_url(self._scheme, host, port, path))
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return Target(self._scheme, host, port, path)
        return Target(self._scheme, host, port, path, address=address)


def pinned(checked: Checked, ssl: Tls = True) -> aiohttp.TCPConnector:
    """A connector for what one check allowed: that host and port, those addresses, once each.

    Raises:
        Denied: the check did not allow it.
    """
    fixed = _Fixed(checked)
    return aiohttp.TCPConnector(
        use_dns_cache=False,
        force_close=True,
        resolver=fixed,
        socket_factory=fixed.socket,
        ssl=ssl,
    )


class _Fixed(AbstractResolver):
    """Answers with the addresses of one check, and makes sockets for them alone."""

    def __init__(self, checked: Checked) -> None:
        self._target = checked.target
        self._decision = checked.decision
        self._addresses = checked.addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The checked addresses. Raises OSError for another host or port."""
        # yarl keeps one trailing dot, which the check took off.
        if (host.lower().removesuffix("."), port) != (self._target.host, self._target.port):
            raise OSError(None, "another host than the one that was checked")
        return [_result(host, address, port) for address in self._addresses]

    def socket(self, addr_info: aiohttp.AddrInfoType) -> socket.socket:
        """A socket for one of the checked addresses. Raises OSError for another."""
        family, kind, proto, _, sockaddr = addr_info
        if str(sockaddr[0]) not in self._addresses or sockaddr[1] != self._target.port:
            raise OSError(None, "another address than the one that was checked")
        return socket.socket(family, kind, proto)

    async def close(self) -> None:
        """There is nothing to close."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=_NUMERIC
    )


def _url(scheme: str, host: str, port: int, path: str) -> str:
    return f"{scheme}://[{host}]:{port}{path}" if ":" in host else f"{scheme}://{host}:{port}{path}"
