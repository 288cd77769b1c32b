"""How upstream connections are dialled."""

from __future__ import annotations

from typing import Protocol

import aiohttp


class Connector(Protocol):
    """Makes the aiohttp connector for one server; egress rules live behind it."""

    def connector(self, server: str, url: str) -> aiohttp.BaseConnector:
        """A connector of the server's own: the server's sockets are nobody else's."""
        ...


class DirectConnector:
    """Dials whatever the operator configured."""

    def connector(self, server: str, url: str) -> aiohttp.BaseConnector:
        """Unbounded: concurrency is bounded where calls come in, not where they leave."""
        return aiohttp.TCPConnector(limit=0, ttl_dns_cache=10)
