"""Real parts: a DNS server that changes its mind, and HTTP servers that count their peers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trustme
from aiohttp import web
from dnslib import AAAA, QTYPE, RR, A, DNSRecord
from dnslib.server import BaseResolver, DNSServer

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Dns(BaseResolver):  # type: ignore[misc]
    """A DNS server over UDP: each name has a list of answers, one a query, the last for good."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self._server = DNSServer(self, port=port, address=address)

    def __enter__(self) -> Dns:
        self._server.start_thread()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()
        self._server.server.server_close()

    def resolve(self, request: DNSRecord, handler: object) -> DNSRecord:
        """A query of type A counts; AAAA is answered from the same list, and does not."""
        reply = request.reply()
        name = str(request.q.qname)
        listed = self.answers.get(name.rstrip("."), [])
        kind = QTYPE[request.q.qtype]
        if listed and kind == "A":
            self.asked.append(name)
        current = listed[0] if listed else []
        for address in current:
            if (":" in address) != (kind == "AAAA"):
                continue
            data = AAAA(address) if kind == "AAAA" else A(address)
            reply.add_answer(RR(name, getattr(QTYPE, kind), rdata=data, ttl=0))
        if len(listed) > 1 and kind == "AAAA":
            # A look-up asks for A, then for AAAA: now it is over.
            listed.pop(0)
        return reply

    def look_up(self, host: str) -> list[str]:
        """Ask it as a client does, over the wire."""
        address, port = self._server.server.server_address[:2]
        found = []
        for kind in ("A", "AAAA"):
            raw = DNSRecord.question(host, kind).send(address, port, timeout=5)
            found += [str(each.rdata) for each in DNSRecord.parse(raw).rr]
        return found


class Seen:
    """What a server has seen: connections, and requests as (method, path, headers, body)."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.port = 0
        self.connections = 0
        self.names: list[str | None] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []


async def fine(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="fine")


@asynccontextmanager
async def serving(
    host: str, handler: Handler = fine, *, port: int = 0, cert: trustme.LeafCert | None = None
) -> AsyncIterator[Seen]:
    """An HTTP server that keeps what it sees."""
    seen = Seen(host)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        # Not request.read(), which bounds a body to a megabyte.
        body = await request.content.read()
        seen.requests.append((request.method, request.path_qs, dict(request.headers), body))
        return await handler(request)

    server = web.Server(handle, access_log=None)
    context = None
    if cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        cert.configure_cert(context)

        def named(_: object, name: str | None, __: object) -> None:
            seen.names.append(name)

        context.sni_callback = named

    def protocol() -> asyncio.BaseProtocol:
        seen.connections += 1
        return server()

    loop = asyncio.get_running_loop()
    listener = await loop.create_server(protocol, host, port, ssl=context)
    seen.port = listener.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        listener.close()
        await server.shutdown(0.1)
