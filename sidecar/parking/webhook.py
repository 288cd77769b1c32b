"""Tells somebody's URL of each call that begins to wait, signed; never in the way of the call.

A ``POST`` of JSON. ``Sidecar-Signature: t=SECONDS,v1=HEX``, where HEX is the HMAC-SHA256 of
``SECONDS.BODY`` under ``parking.webhook.secret``: whoever receives it recomputes that, and refuses
what is older than it likes. ``Sidecar-Delivery`` is the same each time one event is sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp

from sidecar.config import Webhook
from sidecar.model import JsonObject
from sidecar.parking.answers import moment
from sidecar.parking.record import Parked
from sidecar.ports.connector import Connector
from sidecar.ports.secrets import SecretError, Secrets
from sidecar.wire import json

log = logging.getLogger("sidecar.parking")

MOST: Final = 1000
"""Events that wait; beyond, the oldest is not sent."""
MOST_ARGUMENTS: Final = 64 << 10
"""Bytes of arguments that are told."""
ATTEMPTS: Final = 4
PAUSE: Final = 1.0
"""Seconds before the second attempt; each pause after it is four times as long."""
TIMEOUT: Final = 10.0
_SENDER: Final = "sidecar"


@dataclass(frozen=True, slots=True)
class _Event:
    id: str
    call: str
    body: bytes


class Hook:
    """``tell`` queues; one task sends. Between ``start`` and ``close`` it may be reconfigured."""

    def __init__(
        self,
        config: Webhook | None,
        secrets: Secrets,
        connector: Callable[[str], Connector],
        *,
        name: str,
        pause: float = PAUSE,
    ) -> None:
        """``connector`` dials for a URL; ``name`` is the sidecar's own."""
        self._config = config
        self._secrets = secrets
        self._connector = connector
        self._name = name
        self._pause = pause
        self._waiting: deque[_Event] = deque()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._dropped = 0

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.get_running_loop().create_task(self._send_all(), name="webhook")

    def reconfigure(self, config: Webhook | None) -> None:
        """Another URL or secret, for what has not been sent yet."""
        self._config = config

    async def close(self) -> None:
        """Stop; what waits is not sent. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def tell(self, parked: Parked) -> None:
        """A call begins to wait. Never waits itself."""
        if self._config is None:
            return
        if len(self._waiting) >= MOST:
            self._waiting.popleft()
            self._dropped += 1
            if self._dropped == 1:
                log.warning("parking.webhook: more than %d events wait; the oldest go", MOST)
        self._waiting.append(_Event(str(uuid.uuid4()), parked.id, self._body(parked, self._config)))
        self._news.set()

    def _body(self, parked: Parked, config: Webhook) -> bytes:
        call: JsonObject = {
            "id": parked.id,
            "state": parked.state.value,
            "tool": parked.tool,
            "server": parked.server,
            "principal": parked.principal,
            "rules": list(parked.rules),
            "labels": list(parked.labels),
            "asked_at": moment(parked.asked_at),
            "expires_at": moment(parked.expires_at),
        }
        # A message that is made for the call may quote its arguments.
        if parked.message_constant or config.arguments:
            call["message"] = parked.message
        if config.arguments and len(bytes(parked.args)) <= MOST_ARGUMENTS:
            call["args"] = parked.args
        return json.encode({"event": "parked", "sidecar": self._name, "call": call})

    # ------------------------------------------------------------------------------ sending

    async def _send_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                event = self._waiting.popleft()
                try:
                    await self._send(event)
                except Exception as error:  # noqa: BLE001  one event fails, the next is sent
                    log.warning("parking.webhook: failed (%s)", type(error).__name__)
            self._dropped = 0

    async def _send(self, event: _Event) -> None:
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                pause = self._pause * 4.0 ** (attempt - 1)
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
            config = self._config
            if config is None:
                return
            try:
                status = await self._post(event, config)
            except SecretError as error:
                why = str(error)
                continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                # Its text may hold the URL, and the URL may be a secret.
                why = type(error).__name__
                continue
            if status < 300:
                return
            why = f"it answered {status}"
            if status < 500 and status not in (408, 425, 429):
                break
        log.warning("parking.webhook: parked call %s was not taken: %s", event.call, why)

    async def _post(self, event: _Event, config: Webhook) -> int:
        url, secret = self._secrets.read(config.url), self._secrets.read(config.secret)
        stamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": _SENDER,
            "Sidecar-Delivery": event.id,
            "Sidecar-Signature": f"t={stamp},v1={sign(secret, stamp, event.body)}",
        }
        # A session for each: they are rare, and whoever revokes a URL is not dialled again.
        async with (
            aiohttp.ClientSession(
                connector=self._connector(url).connector(_SENDER, url),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT),
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session,
            session.post(url, data=event.body, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status


def sign(secret: str, stamp: str, body: bytes) -> str:
    """The signature of a body sent at ``stamp``: HMAC-SHA256 (RFC 2104), in hex."""
    message = stamp.encode() + b"." + body
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
