"""One server's HTTP: its own connections, its headers, its caps, and what can go wrong.

Nothing in here knows eras. Calls run in the caller's task; cancelling one closes its connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from sidecar.config import ServerConfig
from sidecar.model import Ran, RpcError, Unavailable
from sidecar.ports.connector import Connector
from sidecar.ports.secrets import SecretError, Secrets
from sidecar.upstream import faults
from sidecar.upstream.faults import HttpStatus, StreamEnded
from sidecar.upstream.leg import Host
from sidecar.upstream.redirects import FAULTS, NO_TIMEOUT, PROTOCOL, Redirects, payload
from sidecar.wire import jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import BadMessage, Message
from sidecar.wire.ndjson import Oversize
from sidecar.wire.sse import SseEvent, SseParser

DRAIN = 1.0
"""Seconds that an answered event stream may take to end before its connection is given up."""

ERROR_BODY = 64 << 10
"""Bytes of an HTTP error's body that are read in search of a JSON-RPC error."""

_OURS = ("accept", "content-type", "content-length", "transfer-encoding", "connection")

Hear = Callable[[Message], None]
"""Takes a message that came before the answer, on the answer's own stream."""


class HttpClient:
    """The connections to one server. ``refresh`` before use, ``close`` when nothing uses it."""

    def __init__(
        self,
        host: Host,
        config: ServerConfig,
        secrets: Secrets,
        connector: Connector,
    ) -> None:
        self.server = config.name
        try:
            self.url = URL(config.url)
        except ValueError:
            self.url = URL()  # Says so when it is used.
        self._config = config
        self._limits = host.limits
        self._secrets = secrets
        self._connector = connector
        self._tasks = host.tasks
        self._complaints = host.complaints
        self._redirects = Redirects(config.name, connector, host.complaints)
        self._own: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None
        self._former: list[aiohttp.ClientSession] = []

    # ------------------------------------------------------------------------- its headers

    def refresh(self) -> bool:
        """Read the configured headers again; whether they are other than they were.

        Raises:
            Unavailable: a secret cannot be read, or holds what no header may.
        """
        own = {}
        for name, ref in self._config.headers.items():
            if name.lower() in _OURS:
                continue
            try:
                value = self._secrets.read(ref)
            except SecretError as error:
                raise self.failed(f"headers.{name}: {error}", "no", permanent=True) from None
            if any(ord(char) < 32 and char != "\t" for char in value) or "\x7f" in value:
                # aiohttp would refuse it too, with the value in its message.
                raise self.failed(
                    f"headers.{name} holds a line break or another control character",
                    "no",
                    permanent=True,
                )
            own[name] = value
        if own == self._own and self._session is not None:
            return False
        self._own = own
        self._renew()
        return True

    def _renew(self) -> None:
        """A client session with the headers of now, on the same connections as before."""
        before = self._session
        headers = CIMultiDict(PROTOCOL)
        headers.update(self._own)
        self._session = aiohttp.ClientSession(
            connector=(before and before.connector)
            or self._connector.connector(self.server, self._config.url),
            connector_owner=False,
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=NO_TIMEOUT,
            trust_env=False,
            read_bufsize=1 << 18,
        )
        if before is not None:
            # What is still running on it goes on.
            self._former.append(before)

    async def close(self) -> None:
        """Close every connection, also those in use. Idempotent."""
        session, self._session = self._session, None
        if session is None:
            return
        connector = session.connector
        for one in (session, *self._former):
            await one.close()
        self._former.clear()
        await self._redirects.close()
        if connector is not None:
            await connector.close()

    # ------------------------------------------------------------------------------- sending

    def post(
        self, body: bytes, headers: Mapping[str, str], url: URL | None = None
    ) -> Awaitable[aiohttp.ClientResponse]:
        """Send a message; returns when the answer's head is there.

        Raises:
            Unavailable: no answer, or a redirect that is not followed.
        """
        return self._send("POST", url or self.url, body, headers)

    async def get(self, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Ask for an event stream. Raises as ``post``."""
        wanted = {"Accept": "text/event-stream", "Cache-Control": "no-store", **headers}
        response = await self._send("GET", self.url, None, wanted)
        _keep_alive(response)
        return response

    async def delete(self, headers: Mapping[str, str]) -> int:
        """End a session; the status. Raises as ``post``."""
        response = await self._send("DELETE", self.url, None, headers)
        response.release()
        return response.status

    async def _send(
        self,
        method: str,
        url: URL,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        follow: bool = True,
    ) -> aiohttp.ClientResponse:
        """The answer's head, at the end of whatever redirects there are if they are followed."""
        session = self._session
        if session is None:
            raise self.failed("the connection is closed", "no")
        try:
            response = await session.request(
                method, url, data=payload(body), headers=headers, allow_redirects=False
            )
        except (*FAULTS, ValueError) as error:
            if self._session is None:
                # Cut by us, which is nothing to hold against the server.
                raise self.failed("is removed or starts anew here, in mid-call", "maybe") from None
            raise faults.of(self.server, self.url, error) from None
        if not follow or not 300 <= response.status < 400:
            return response
        return await self._redirects.follow(
            response,
            body,
            headers,
            partial(self._send, follow=False),
            # What the old transport sends is for the origin of its stream.
            elsewhere=self._config.transport != "sse",
        )

    async def exchange(
        self, body: bytes, headers: Mapping[str, str], id: int, hear: Hear
    ) -> Message:
        """Send request ``id`` and read its answer. Raises as ``post`` and ``answer``."""
        try:
            return await self.answer(await self.post(body, headers), id, hear)
        except HttpStatus as status:
            # A rotated secret shows itself like this; the request was not looked at.
            if status.status != 401 or not self.refresh():
                raise
        return await self.answer(await self.post(body, headers), id, hear)

    # ------------------------------------------------------------------------------- reading

    async def answer(self, response: aiohttp.ClientResponse, id: int, hear: Hear) -> Message:
        """Read the answer to request ``id``, whichever form it has.

        Messages before it on an event stream go to ``hear``, as they come.

        Raises:
            HttpStatus: anything but 2xx.
            StreamEnded: an event stream ended without it.
            Unavailable: over a cap, cut off, or no JSON-RPC.
        """
        try:
            if not 200 <= response.status < 300:
                raise await self._status(response, id)
            kind = response.headers.get("Content-Type", "")
            if kind.startswith("application/json"):
                message = self._parsed(await self._body(response))
                # Here the connection tells which request an error without an id answers.
                ours = message.id == id or (message.id is None and message.error is not None)
                if not ours or not message.is_response:
                    raise self._garbage("answered with a message that is no answer to ours")
                return message
            if kind.startswith("text/event-stream"):
                return await self._streamed(response, id, hear)
        except BaseException:
            response.close()
            raise
        response.close()
        what = kind.partition(";")[0].strip()[:100] or "nothing that has a content type"
        if response.status == 202:
            raise self.failed("took the request but gave no answer (HTTP 202)", "maybe")
        raise self._garbage(f"answered with {what} instead of JSON or an event stream")

    async def accepted(self, response: aiohttp.ClientResponse) -> None:
        """The answer to a notification or a response: nothing, if all is well.

        Raises:
            HttpStatus: anything but 2xx.
        """
        try:
            if not 200 <= response.status < 300:
                raise await self._status(response, -1)
        finally:
            response.release()

    async def events(self, response: aiohttp.ClientResponse) -> AsyncIterator[SseEvent | Oversize]:
        """The events of a stream until it ends. Closes the response, however it is left.

        Raises:
            StreamEnded: always, at the end.
        """
        parser = SseParser(self._limits.event)
        try:
            while chunk := await response.content.readany():
                for event in parser.feed(chunk):
                    yield event
        except FAULTS:
            pass  # Cut off or ended: the reader has to come back in either case.
        finally:
            response.close()
        raise StreamEnded(parser.last_event_id, _seconds(parser.retry))

    async def _streamed(self, response: aiohttp.ClientResponse, id: int, hear: Hear) -> Message:
        parser = SseParser(self._limits.event)
        content = response.content
        try:
            while chunk := await content.readany():
                for event in parser.feed(chunk):
                    if isinstance(event, Oversize):
                        raise self.too_large("event", event.size)
                    if not event.data or event.event not in ("message", ""):
                        continue  # A priming event, or a kind that MCP does not know.
                    message = self._parsed(event.data)
                    if message.is_response and message.id == id:
                        self._finish(response)
                        return message
                    hear(message)
        except FAULTS:
            pass
        response.close()
        raise StreamEnded(parser.last_event_id, _seconds(parser.retry))

    def _finish(self, response: aiohttp.ClientResponse) -> None:
        """The answer is there: let the stream end by itself, so that the connection is kept."""
        if response.content.at_eof() or response.connection is None:
            response.release()
            return

        async def drain() -> None:
            try:
                async with asyncio.timeout(DRAIN):
                    while await response.content.readany():
                        pass
            except FAULTS:
                pass
            finally:
                response.close()

        if not self._tasks.spawn(drain(), name=f"{self.server}: end of an answer"):
            response.close()

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """A whole body within ``limits.result``, which is what it has after decompression."""
        cap = self._limits.result
        try:
            if "Content-Encoding" not in response.headers:
                length = response.content_length
                if length is not None:
                    if length > cap:
                        raise self.too_large("result", length)
                    return await response.read()
            chunks, size = [], 0
            while chunk := await response.content.readany():
                size += len(chunk)
                if size > cap:
                    raise self.too_large("result", size)
                chunks.append(chunk)
        except FAULTS:
            raise self.failed("the answer broke off", "maybe") from None
        response.release()
        return b"".join(chunks)

    def _parsed(self, data: bytes) -> Message:
        try:
            return jsonrpc.parse(data)
        except (BadJson, BadMessage) as error:
            raise self._garbage(f"answered with what is no JSON-RPC message: {error}") from None

    async def _status(self, response: aiohttp.ClientResponse, id: int) -> HttpStatus:
        """What an HTTP error says. Its body is read within a bound."""
        error: RpcError | None = None
        answers = False
        data = b""
        with suppress(*FAULTS):
            while len(data) < ERROR_BODY and (chunk := await response.content.readany()):
                data += chunk
        with suppress(BadJson, BadMessage):
            message = jsonrpc.parse(data)
            if message.error is not None:
                error = jsonrpc.error_of(message.error)
                answers = message.id == id
        if response.content.at_eof():
            response.release()
        else:
            response.close()
        after = response.headers.get("Retry-After", "")
        return HttpStatus(
            response.status,
            error,
            answers=answers,
            retry_after=float(after) if after.isdecimal() and len(after) < 7 else None,
        )

    # ------------------------------------------------------------------------------ failures

    def failed(
        self, why: str, ran: Ran, *, permanent: bool = False, retry_in: float | None = None
    ) -> Unavailable:
        return Unavailable(self.server, why, ran=ran, permanent=permanent, retry_in=retry_in)

    def _garbage(self, why: str) -> Unavailable:
        """One call's error, and for the operator one warning."""
        self._complaints.warn("garbage", why)
        return self.failed(why, "maybe")

    def too_large(self, limit: str, size: int) -> Unavailable:
        """``limit`` is the key under ``limits`` that stands in the way."""
        return faults.too_large(self.server, self._limits, limit, size)

    def refused(self, status: HttpStatus) -> Unavailable:
        """An HTTP error that says nothing in JSON-RPC's terms."""
        return faults.refused(self._config, status)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    """Let the kernel find out when the other end of a silent stream is gone."""
    connection = response.connection
    if connection is None or connection.transport is None:
        return
    sock = connection.transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
