"""A client on standard input, joined to the sidecar that already runs, over HTTP.

Nothing is decided here: each line becomes one POST, each answer one line. The joined sidecar
knows the principal by its token, and the servers stay shared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

import aiohttp

from sidecar.downstream.pipes import Write, stdio_lines
from sidecar.mcp import headers, meta
from sidecar.mcp.errors import HEADER_MISMATCH
from sidecar.model import JsonObject, RequestId, RpcError
from sidecar.wire import json, jsonrpc
from sidecar.wire.ndjson import Oversize
from sidecar.wire.sse import SseParser

log = logging.getLogger("sidecar.stdio")

LIMIT = 64 << 20
"""Bytes of one answer; the joined sidecar's own limits are what bind."""
IN_FLIGHT = 256
RETRY = 1.0
"""Seconds between attempts to open the stream of notifications again."""
CONNECT_TIMEOUT = 5.0
IDLE = 60.0
"""Seconds without a byte on a stream, its keep-alives included, until it counts as dead."""
PAGES = 100
"""Pages of tools that are read to learn what they want repeated as headers."""
FAREWELL = 5.0
"""Seconds that running calls get once standard input has ended."""

_ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class Joined:
    """``run`` until the input ends. ``url`` is the sidecar's ``/mcp`` or ``/mcp/{server}``.

    ``write`` takes one message without its line end. ``socket`` is the path of the unix socket
    behind ``url``, ``None`` for TCP.
    """

    def __init__(
        self, url: str, credentials: Mapping[str, str], write: Write, socket: str | None = None
    ) -> None:
        self._url = url
        self._socket = socket
        self._credentials = dict(credentials)
        self._write = write
        self._session: dict[str, str] = {}
        self._initialize: bytes | None = None
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._reopening = asyncio.Lock()
        self._repeated: dict[str, headers.ParamHeaders] = {}
        self._free = asyncio.Semaphore(IN_FLIGHT)
        self._stream: asyncio.Task[None] | None = None

    async def run(self, lines: AsyncIterator[bytes | Oversize]) -> None:
        """Carry every line; returns when the input ended and the last answer is written."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        way = aiohttp.UnixConnector(self._socket) if self._socket is not None else None
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False, connector=way) as http:
            self._http = http
            try:
                async for line in lines:
                    if isinstance(line, Oversize):
                        await self._refuse(None, f"a line of {line.size} bytes is too long")
                    elif line.strip():
                        await self._take(line)
                if self._running:
                    await asyncio.wait(self._running.values(), timeout=FAREWELL)
            finally:
                await self._end()

    async def _end(self) -> None:
        tasks = [*self._running.values(), *([self._stream] if self._stream else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if "mcp-session-id" in self._session:
            try:
                async with asyncio.timeout(FAREWELL):
                    await self._http.delete(self._url, headers=self._headers({}))
            except (aiohttp.ClientError, TimeoutError) as error:
                log.debug("the session could not be ended: %s", error)

    # ------------------------------------------------------------------------ one message

    async def _take(self, line: bytes) -> None:
        try:
            message = jsonrpc.parse(line)
            params = json.decode(message.params) if message.params is not None else {}
        except jsonrpc.BadMessage as bad:
            await self._refuse(bad.id, str(bad), jsonrpc.INVALID_REQUEST)
            return
        except json.BadJson as bad:
            await self._refuse(None, str(bad), jsonrpc.PARSE_ERROR)
            return
        given: JsonObject = params if isinstance(params, dict) else {}
        id_, method = message.id, message.method
        if method == "notifications/cancelled" and not self._legacy:
            # The stateless era has no cancel message on HTTP: closing the request is the cancel.
            wanted = jsonrpc.as_id(given.get("requestId"))
            if wanted is not None and (task := self._running.get(wanted)) is not None:
                task.cancel()
            return
        if method is None or id_ is None:
            await self._say(line, {})
            if method == "notifications/initialized" and self._stream is None:
                self._stream = asyncio.create_task(self._listen())
            return
        if id_ in self._running:
            why = "a request with this id is running already"
            await self._refuse(id_, why, jsonrpc.INVALID_REQUEST)
            return
        if method == "initialize":
            self._initialize = line
        await self._free.acquire()
        task = asyncio.create_task(self._ask(id_, method, line, given))
        self._running[id_] = task
        task.add_done_callback(lambda _: self._done(id_))
        if method == "initialize":
            # What follows needs the session that this one opens.
            await asyncio.wait({task})

    def _done(self, id_: RequestId) -> None:
        self._running.pop(id_, None)
        self._free.release()

    @property
    def _legacy(self) -> bool:
        return self._initialize is not None

    def _headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        return {**_ACCEPT, **self._credentials, **self._session, **extra}

    async def _say(self, line: bytes, extra: Mapping[str, str]) -> None:
        """A notification or a response: nothing comes back for it."""
        try:
            async with asyncio.timeout(IDLE):
                await self._http.post(self._url, data=line, headers=self._headers(extra))
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("a notification did not reach the sidecar: %s", error)

    async def _ask(self, id_: RequestId, method: str, line: bytes, params: JsonObject) -> None:
        """One request: its answer, or why there is none, is written."""
        try:
            status, body = await self._answer(method, line, params)
        except (aiohttp.ClientError, TimeoutError) as error:
            why = f"the sidecar does not answer ({type(error).__name__}); is it running?"
            await self._refuse(id_, why)
            return
        if body is not None:
            await self._tell(id_, status, body)

    async def _answer(
        self, method: str, line: bytes, params: JsonObject
    ) -> tuple[int, bytes | None]:
        """The answer, sent for again once when the session, or what a tool wants, has changed."""
        if self._legacy:
            before = self._session
            opens = method == "initialize"
            status, body = await self._post(line, {}, initialize=opens)
            if status == 404 and before and not opens and await self._reopen(before):
                return await self._post(line, {})
            return status, body
        status, body = await self._post(line, self._modern_headers(method, params))
        if method == "tools/list" and body is not None:
            self._learn(body)
        if method == "tools/call" and body is not None and _code(body) == HEADER_MISMATCH:
            await self._list(params)
            return await self._post(line, self._modern_headers(method, params))
        return status, body

    def _modern_headers(self, method: str, params: JsonObject) -> dict[str, str]:
        """What the stateless era sends with a request, all of it read from the body."""
        given = params.get("_meta")
        version = given.get(meta.PROTOCOL_VERSION) if isinstance(given, dict) else None
        mapping = self._repeated.get(str(params.get("name")), {})
        found = dict(headers.request_headers(method, params, mapping))
        if isinstance(version, str):
            found["mcp-protocol-version"] = version
        return found

    def _learn(self, body: bytes) -> str | None:
        """Which arguments the listed tools want repeated as headers; returns the next cursor."""
        try:
            result = jsonrpc.parse(body).result
            told = json.decode(result) if result is not None else None
        except ValueError:
            return None
        tools = told.get("tools") if isinstance(told, dict) else None
        for tool in tools if isinstance(tools, list) else []:
            try:
                self._repeated[str(tool["name"])] = headers.param_headers(tool["inputSchema"])
            except (headers.BadParamHeader, LookupError, TypeError):
                continue
        cursor = told.get("nextCursor") if isinstance(told, dict) else None
        return cursor if isinstance(cursor, str) else None

    async def _list(self, params: JsonObject) -> None:
        """List the tools for ourselves: the client calls one that it did not list."""
        cursor: str | None = None
        for _ in range(PAGES):
            asked: JsonObject = {"_meta": params.get("_meta", {})}
            if cursor is not None:
                asked["cursor"] = cursor
            line = jsonrpc.request("sidecar-list", "tools/list", asked)
            _, body = await self._post(line, self._modern_headers("tools/list", asked))
            cursor = self._learn(body) if body is not None else None
            if cursor is None:
                return

    async def _tell(self, id_: RequestId, status: int, body: bytes) -> None:
        """Write the answer under the id that the client waits for, whatever the answer is."""
        try:
            message = jsonrpc.parse(body)
        except ValueError:
            await self._refuse(id_, f"the sidecar answered HTTP {status} without a message")
            return
        if message.id is None and message.error is not None:
            # Refused before its id was read, by the check of the token for one.
            body = jsonrpc.error(id_, jsonrpc.error_of(message.error))
        await self._write(body)

    async def _post(
        self, line: bytes, extra: Mapping[str, str], *, initialize: bool = False
    ) -> tuple[int, bytes | None]:
        """Send; the status and body that came back. A stream is written as it comes: no body."""
        sent = {**_ACCEPT, **self._credentials} if initialize else self._headers(extra)
        async with self._http.post(self._url, data=line, headers=sent) as answer:
            if answer.content_type == "text/event-stream":
                await self._relay(answer)
                return answer.status, None
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > LIMIT:
                    return answer.status, b""
            if initialize and answer.status == 200:
                self._remember(answer.headers, bytes(body))
            return answer.status, bytes(body)

    def _remember(self, given: Mapping[str, str], body: bytes) -> None:
        """The session that ``initialize`` opened, for every later request."""
        try:
            message = jsonrpc.parse(body)
            told = json.decode(message.result) if message.result is not None else None
        except ValueError:
            return
        version = told.get("protocolVersion") if isinstance(told, dict) else None
        session = given.get("mcp-session-id")
        self._session = {
            **({"mcp-session-id": session} if session else {}),
            **({"mcp-protocol-version": version} if isinstance(version, str) else {}),
        }

    async def _reopen(self, lost: Mapping[str, str]) -> bool:
        """The sidecar was restarted: open a new session once, whoever noticed first."""
        async with self._reopening:
            if self._session is lost and self._initialize is not None:
                await self._post(self._initialize, {}, initialize=True)
                if self._session is not lost:
                    await self._say(jsonrpc.notification("notifications/initialized", None), {})
                    log.info("joined the sidecar again")
            return self._session is not lost

    # ------------------------------------------------------------------------ streams

    async def _listen(self) -> None:
        """The legacy era's stream of notifications, opened again whenever it ends."""
        while True:
            try:
                before = self._session
                async with self._http.get(self._url, headers=self._headers({})) as answer:
                    if answer.status == 405:
                        return
                    if answer.status == 200:
                        await self._relay(answer)
                if answer.status == 404:
                    await self._reopen(before)
            except (aiohttp.ClientError, TimeoutError) as error:
                log.debug("the stream of notifications ended: %s", error)
            await asyncio.sleep(RETRY)

    async def _relay(self, answer: aiohttp.ClientResponse) -> None:
        parser = SseParser(LIMIT)
        while True:
            async with asyncio.timeout(IDLE):
                data = await answer.content.readany()
            if not data:
                return
            for event in parser.feed(data):
                if not isinstance(event, Oversize) and event.data:
                    await self._write(event.data)

    async def _refuse(self, id_: RequestId | None, why: str, code: int = -32603) -> None:
        await self._write(jsonrpc.error(id_, RpcError(code, why)))


def _code(body: bytes) -> int | None:
    """The code of an error answer."""
    try:
        error = jsonrpc.parse(body).error
        return jsonrpc.error_of(error).code if error is not None else None
    except ValueError:
        return None


async def run_joined(url: str, credentials: Mapping[str, str], socket: str | None = None) -> None:
    """Carry standard input and output until the input ends."""
    async with stdio_lines(LIMIT) as (lines, write):
        await Joined(url, credentials, write, socket).run(lines)
