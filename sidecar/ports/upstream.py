"""What stands behind the gateway: an MCP server, or a coding agent."""

from __future__ import annotations

from typing import Protocol

from sidecar.model import Caller, Entries, Fields, JsonObject, ServerStatus


class Upstream(Protocol):
    """One server or harness. Its owner starts and closes it; callers come and go at any time."""

    @property
    def name(self) -> str:
        """The configured name; the first half of every catalog name."""
        ...

    @property
    def status(self) -> ServerStatus:
        """Its state now. Never waits."""
        ...

    def entries(self) -> Entries:
        """The last complete lists, kept while a leg is down; ``NOTHING`` before the first."""
        ...

    async def settled(self) -> None:
        """Return once the first attempt to connect and list has succeeded or failed."""
        ...

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        """Send one request and return the result's fields.

        ``params`` is in the server's own names; progress token, era envelope and trace are this
        side's to write: ``params["_meta"]`` holds the caller's vendor keys only. Progress and
        log messages that belong to the request reach ``caller.notify`` as they come, progress
        with ``caller.progress`` as its token. Cancelling the awaiting task cancels the request
        upstream in its era's way.

        Raises:
            RpcError: the server's own error, unchanged.
            Unavailable: everything else that kept it from answering.
        """
        ...

    async def subscribe(self, uri: str, caller: Caller) -> None:
        """Watch a resource for this caller; counted, so that the server is asked once."""
        ...

    async def unsubscribe(self, uri: str, caller: Caller) -> None:
        """End ``subscribe``. Unknown URIs are ignored."""
        ...

    async def set_log_level(self, level: str, caller: Caller) -> None:
        """The lowest level that this caller wants; the server is asked for the lowest of all."""
        ...

    async def forget(self, isolation: str) -> None:
        """A caller is gone for good (its session ended): end what was kept for it alone."""
        ...

    async def close(self) -> None:
        """End every leg and child. Returns when nothing of it is left. Idempotent."""
        ...
