"""How upstream connections are dialled."""

from __future__ import annotations

from typing import Protocol

import aiohttp


class Connector(Protocol):
    """Makes the aiohttp connector for one server; egress rules live behind it."""

    def connector(self, server: str, url: str) -> aiohttp.BaseConnector:
        """A connector of the server's own: the server's sockets are nobody else's."""
        ...

    async def redirect(self, server: str, url: str, *, elsewhere: bool) -> aiohttp.BaseConnector:
        """A connector for one request to where the server redirects. ``elsewhere``: it has left
        the server's own origin, so that the address is a stranger's word.

        Raises:
            OSError: it may not be dialled.
        """
        ...


class DirectConnector:
    """Dials whatever the operator configured."""

    def connector(self, server: str, url: str) -> aiohttp.BaseConnector:
        """Unbounded: concurrency is bounded where calls come in, not where they leave."""
        return aiohttp.TCPConnector(limit=0, ttl_dns_cache=10)

    async def redirect(self, server: str, url: str, *, elsewhere: bool) -> aiohttp.BaseConnector:
        """As above, for one request."""
        return aiohttp.TCPConnector(force_close=True)
