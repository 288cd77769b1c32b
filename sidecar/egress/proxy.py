"""The forward proxy: CONNECT, and requests in absolute form (RFC 9110 section 9.3.6, RFC 9112
section 3.2.2), for children and whoever has a token, under the same rules as our own dials.

Every request is decided before anything is dialled, and dialled at the addresses that were
decided on. What goes through a tunnel is not looked at.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from sidecar.config import Listen, ProxyLimits, ServerConfig
from sidecar.egress import heads
from sidecar.egress.access import Access, Identity, variables
from sidecar.egress.check import Checked, EgressCheck, told
from sidecar.egress.framing import BadBody, Body
from sidecar.egress.heads import BadHead, Request
from sidecar.egress.relay import CHUNK, Meter, OverLimit, both, carry
from sidecar.egress.urls import Ambiguous, Target, parse, parse_authority
from sidecar.ports.proxy import Grant, NoProxy

log = logging.getLogger("sidecar.egress")

HEAD_WAIT: Final = 10.0
"""Seconds for a request's head, and for us to say why not."""
CONNECT_WAIT: Final = 10.0
"""Seconds for all addresses of a target together; each gets a fair part."""
ANSWER_GRACE: Final = 1.0
"""Seconds that an answer of ours gets to be read before the connection is cut."""
FINISH_WAIT: Final = 10.0
"""Seconds for the last bytes of a connection, the few that are buffered."""
MOST_UNREAD: Final = 1 << 20
"""Bytes that are read, and dropped, of a client that has been refused."""
MOST_CONNECTIONS: Final = 1024
"""Connections of everybody together, those that have not said who they are included."""

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Refusal(Exception):
    """An answer of the proxy's own instead of the target's."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.text = text


class ForwardProxy:
    """A ``ChildProxy``. ``start``, then ``update`` any number of times, ``drain``, ``close``."""

    def __init__(self, check: EgressCheck, limits: ProxyLimits) -> None:
        self._check = check
        self._limits = limits
        self._access = Access(self._cut)
        self._server: asyncio.Server | None = None
        self._address = ""
        self._tasks: dict[asyncio.Task[None], Identity | None] = {}
        self._using: Counter[str] = Counter()

    # ------------------------------------------------------------------------ start and end

    async def start(self, listen: Listen) -> str:
        """Bind and serve; ``host:port``. Raises OSError."""
        self._server = await asyncio.start_server(
            self._accept, listen.host, listen.port, limit=CHUNK
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # Children are on this machine: an address that stands for all is none to connect to.
        here = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host)
        self._address = f"{here}:{port}" if here else shown
        return shown

    def update(self, tokens: Mapping[str, str], limits: ProxyLimits) -> None:
        """The clients' tokens by name, and the bounds of connections to come.

        Connections of a client whose token is another one are ended.
        """
        self._limits = limits
        self._access.update(tokens)

    async def drain(self, grace: float) -> None:
        """Take nothing new; what runs gets ``grace`` seconds."""
        self._stop()
        for task, identity in list(self._tasks.items()):
            if identity is None:
                # Nothing has been asked for yet.
                task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=grace)

    async def close(self) -> None:
        """End everything. Idempotent."""
        self._stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def grant(self, config: ServerConfig) -> Grant:
        """See :class:`sidecar.ports.proxy.ChildProxy`."""
        if self._server is None:
            raise NoProxy("the forward proxy does not listen; restart the sidecar")
        identity, token = self._access.mint(config)
        return _Grant(self._access, identity, variables(self._address, config.name, token))

    def _cut(self, identity: Identity) -> None:
        """Whoever has lost the access keeps no connection."""
        for task, whose in list(self._tasks.items()):
            if whose is not None and whose.key == identity.key:
                task.cancel()

    # ------------------------------------------------------------------------ one connection

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve((reader, writer)), name="proxy connection")
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        identity = self._tasks.pop(task)
        if identity is not None:
            self._using[identity.principal] -= 1
            if not self._using[identity.principal]:
                del self._using[identity.principal]
        if not task.cancelled() and task.exception() is not None:
            log.error("a proxy connection failed", exc_info=task.exception())

    async def _serve(self, client: Pair) -> None:
        """One request; its connection ends with it, so that each has its own decision."""
        try:
            try:
                await self._one(client)
            except Refusal as refusal:
                await _answer(client, refusal)
            await _finish(client[1])
        except OverLimit:
            pass  # Told, with whose it was.
        except (OSError, BadBody, BadHead, asyncio.IncompleteReadError):
            pass  # Broken off, or not HTTP any more: whoever is still there finds out by the end.
        finally:
            # After a good end there is nothing left to cut.
            client[1].transport.abort()

    async def _one(self, client: Pair) -> None:
        head = await _head(client[0])
        if head is None:
            return
        try:
            request = heads.request(head)
            framing = request.framing
        except BadHead as error:
            raise Refusal(400, "Bad Request", str(error)) from None
        identity = self._admit(request)
        tunnel = request.method == "CONNECT"
        if tunnel and (framing or heads.values(request.headers, "transfer-encoding")):
            raise Refusal(400, "Bad Request", "CONNECT has no body")
        target = _target(request)
        checked = await self._check.target(target, "proxy", identity.about)
        if not checked.ok:
            raise Refusal(403, "Forbidden", told(checked.decision))
        server = await _dial(checked)
        try:
            async with Meter(self._limits) as meter:
                if tunnel:
                    client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    await both(client, server, meter)
                else:
                    await _exchange(request, target, client, server, meter)
            await _finish(server[1])
        except OverLimit as limit:
            who = identity.principal
            log.info("connection of %s to %s was cut at %s", who, target.authority, limit)
            raise
        finally:
            server[1].transport.abort()

    def _admit(self, request: Request) -> Identity:
        """Whose the request is, counted against their bound. Raises Refusal."""
        given = heads.values(request.headers, "proxy-authorization")
        identity = self._access.identify(given[0]) if len(given) == 1 else None
        if identity is None:
            raise Refusal(
                407,
                "Proxy Authentication Required",
                "send a name of egress.proxy.clients and its token as user and password",
            )
        principal = identity.principal
        if self._using[principal] >= self._limits.connections:
            raise Refusal(
                503,
                "Service Unavailable",
                f"{principal} has {self._limits.connections} connections already, as many as "
                "egress.proxy.limits.connections allows",
            )
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = identity
        self._using[principal] += 1
        return identity


class _Grant:
    """Access of one process."""

    def __init__(self, access: Access, identity: Identity, env: Mapping[str, str]) -> None:
        self._access = access
        self._identity = identity
        self.env = env

    def revoke(self) -> None:
        """See :class:`sidecar.ports.proxy.Grant`."""
        self._access.revoke(self._identity)


# ------------------------------------------------------------------------------------- parts


async def _head(reader: asyncio.StreamReader) -> bytes | None:
    """A request's head; ``None`` where the connection ended before it. Raises Refusal."""
    try:
        async with asyncio.timeout(HEAD_WAIT):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        head = b"x" * (heads.MOST_HEAD + 1)
    except asyncio.IncompleteReadError:
        return None
    except TimeoutError:
        raise Refusal(408, "Request Timeout", "the request's head did not come in time") from None
    if len(head) > heads.MOST_HEAD:
        raise Refusal(
            431,
            "Request Header Fields Too Large",
            f"the request's head has more than {heads.MOST_HEAD} bytes",
        )
    return head


def _target(request: Request) -> Target:
    """What the request is for. Raises Refusal."""
    try:
        if request.method == "CONNECT":
            return parse_authority(request.target)
        if request.target.startswith("/") or request.target == "*":
            raise Refusal(400, "Bad Request", "this is a forward proxy; it serves nothing itself")
        scheme = request.target.partition("://")[0].lower()
        if scheme in ("https", "ws", "wss"):
            # A plain request is not upgraded, so a web socket needs a tunnel too.
            raise Refusal(400, "Bad Request", f"for {scheme}, ask for a tunnel with CONNECT")
        return parse(request.target)
    except Ambiguous as error:
        raise Refusal(400, "Bad Request", str(error)) from None


async def _dial(checked: Checked) -> Pair:
    """A connection to one of the checked addresses. Raises Refusal."""
    port = checked.target.port
    loop = asyncio.get_running_loop()
    until = loop.time() + CONNECT_WAIT
    left = len(checked.addresses)
    late = False
    for address in checked.addresses:
        wait = max(until - loop.time(), 0.0) / left
        left -= 1
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(wait):
                await loop.sock_connect(sock, (address, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return await asyncio.open_connection(sock=sock, limit=CHUNK)
        except TimeoutError:
            late = True
            sock.close()
        except OSError:
            sock.close()
        except BaseException:
            sock.close()
            raise
    if late:
        raise Refusal(504, "Gateway Timeout", "the target does not answer")
    raise Refusal(502, "Bad Gateway", "the target cannot be connected to")


async def _exchange(
    request: Request, target: Target, client: Pair, server: Pair, meter: Meter
) -> None:
    """One request and its answer; both connections end after it."""
    default = f":{target.port}" if target.port != 80 else ""
    host = f"[{target.host}]{default}" if ":" in target.host else f"{target.host}{default}"
    fields = [each for each in heads.end_to_end(request.headers) if each[0].lower() != "host"]
    line = f"{request.method} {target.path}{target.query} HTTP/1.{request.minor}"
    more = [("Via", "1.1 sidecar"), ("Connection", "close")]
    server[1].write(heads.encode(line, [("Host", host), *fields, *more]))
    await server[1].drain()

    async def send() -> None:
        # A server may answer before it has read everything: its answer is what counts then.
        with suppress(OSError):
            if not await carry(Body(request.framing), client[0], server[1], meter):
                raise BadBody("the request broke off")

    async def gone() -> None:
        await sending
        if await client[0].read(1):
            # Another request, which is not read: each has a connection of its own.
            await asyncio.Event().wait()

    sending = asyncio.create_task(send())
    answering = asyncio.create_task(_answered(request, client, server, meter))
    leaving = asyncio.create_task(gone())
    tasks = {sending, answering, leaving}
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            leaving.result()
            raise ConnectionResetError("the client left")
        answering.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answered(request: Request, client: Pair, server: Pair, meter: Meter) -> None:
    """Carry the answer, interim ones (100, 103) before it. Raises Refusal for what is none."""
    while True:
        try:
            head = await server[0].readuntil(b"\r\n\r\n")
            response = heads.response(head)
            body = Body(response.framing(request.method))
        except (BadHead, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            raise Refusal(502, "Bad Gateway", "the target's answer is not HTTP/1") from None
        if response.status == 101:
            raise Refusal(502, "Bad Gateway", "the target changed to another protocol")
        meter.moved(len(head))
        fields = [*heads.end_to_end(response.headers), ("Via", "1.1 sidecar")]
        final = response.status >= 200
        if final:
            fields.append(("Connection", "close"))
        line = f"HTTP/1.{response.minor} {response.status} {response.reason}"
        client[1].write(heads.encode(line, fields))
        await client[1].drain()
        if final:
            break
    if not await carry(body, server[0], client[1], meter):
        raise ConnectionResetError("the answer broke off")


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Close, with all that is still to be sent; a peer that does not take it is not waited for."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(FINISH_WAIT):
            await writer.wait_closed()


async def _answer(client: Pair, refusal: Refusal) -> None:
    """Say why not, and end."""
    reader, writer = client
    text = f"sidecar: {refusal.text}\n".encode()
    fields = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(text))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    if refusal.status == 407:
        fields.append(("Proxy-Authenticate", 'Basic realm="sidecar", charset="UTF-8"'))
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_GRACE):
            line = f"HTTP/1.1 {refusal.status} {refusal.reason}"
            writer.write(heads.encode(line, fields) + text)
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            # Closed with something unread, the connection would take the answer with it.
            left = MOST_UNREAD
            while left > 0 and (data := await reader.read(CHUNK)):
                left -= len(data)
