"""What the faces of the agent listener share: who answers, what runs, which sessions there are."""

from __future__ import annotations

import asyncio
import logging
import time

from sidecar.config.types import Limits
from sidecar.downstream.auth import Grant
from sidecar.downstream.desk import Desk, fault
from sidecar.downstream.feed import LIST_CHANGES
from sidecar.downstream.replies import Refusal
from sidecar.downstream.running import Crowd
from sidecar.downstream.session import Opening
from sidecar.downstream.sessions import HttpSession, Sessions, TooMany
from sidecar.downstream.stream import Stream
from sidecar.events import Bus, SessionClosed, SessionOpened
from sidecar.mcp import errors
from sidecar.mcp.meta import Envelope
from sidecar.model import RequestId, Unroutable, no_notify

log = logging.getLogger("sidecar.downstream")

CLOSING = 5.0
"""Seconds that the end of sessions may take at shutdown."""


class State:
    """Shared by the handlers of one listener."""

    def __init__(self, desk: Desk, bus: Bus, limits: Limits, crowd: Crowd) -> None:
        self.desk = desk
        self.gateway = desk.gateway
        self.limits = limits
        self.crowd = crowd
        self.draining = False
        self.sessions = Sessions(limits.sessions, limits.session_ttl, self._ended)
        # The open ``subscriptions/listen`` streams.
        self.listens: dict[Stream, Grant] = {}
        self._bus = bus
        self._closing: set[asyncio.Task[None]] = set()

    def reconfigure(self, limits: Limits) -> None:
        """Other limits for what comes from now on."""
        self.limits = limits
        self.crowd.most = limits.in_flight
        self.sessions.reconfigure(limits.sessions, limits.session_ttl)

    def admit(self, id: RequestId | None) -> None:
        """Refuse what should not run now.

        Raises:
            Refusal: 503, draining or as many requests at once as may be.
        """
        if self.draining:
            raise Refusal(
                503, "the sidecar is shutting down; try again", {"Retry-After": "5"}, id=id
            )
        if self.crowd.full:
            raise Refusal(
                503,
                f"{self.crowd.most} requests are running already; try again",
                {"Retry-After": "1"},
                id=id,
            )

    def unknown_server(self, id: RequestId | None) -> Refusal:
        """404 for ``/mcp/{server}`` when there is no such server for this principal."""
        error = errors.of(Unroutable("unknown_server", "there is no server of this name"))
        return Refusal(404, error.message, error=error, id=id)

    def open(self, grant: Grant, server: str | None, opening: Opening) -> HttpSession:
        """Open a session and let it be told of changes.

        Raises:
            Refusal: 503, every session that may exist is in use.
        """
        now = asyncio.get_running_loop().time()
        try:
            session = self.sessions.open(grant, server, opening, now, time.time())
        except TooMany:
            raise Refusal(
                503,
                f"limits.sessions, {self.limits.sessions}, is reached and every session is in use",
                {"Retry-After": "5"},
            ) from None
        self._listen(session)
        client = f"{session.client.name} {session.client.version}".strip()
        self._bus.publish(
            SessionOpened(session=session.key, principal=session.principal.name, client=client)
        )
        return session

    def regrant(self, session: HttpSession, grant: Grant) -> None:
        """A session's principal may see other servers than before."""
        session.grant = grant
        session.principal = grant.principal
        if session.listening is not None:
            session.listening.stop()
        self._listen(session)
        for method in LIST_CHANGES:
            session.told(method, {})

    def _listen(self, session: HttpSession) -> None:
        caller = session.caller(Envelope(), no_notify)
        session.listening = self.gateway.listen(caller, session.told)

    def _ended(self, session: HttpSession, why: str) -> None:
        if session.listening is not None:
            session.listening.stop()
        for running in session.calls:
            running.end(errors.invalid_request("the session of this request has ended"))
        task = asyncio.get_running_loop().create_task(self._forget(session.key))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._bus.publish(
            SessionClosed(session=session.key, principal=session.principal.name, why=why)
        )

    async def _forget(self, key: str) -> None:
        try:
            await self.gateway.close_session(key)
        except Exception as failure:  # noqa: BLE001  a session that ends has nobody to tell
            log.error("ending a session failed: %s", fault(failure))

    async def close(self) -> None:
        """Wait for what sessions leave behind, and no longer than that."""
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=CLOSING)
            for task in late:
                task.cancel()
