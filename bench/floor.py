"""The yardstick: a reverse proxy of aiohttp that copies bytes and looks at nothing.

    python -m bench.floor UPSTREAM_URL PORT

What any gateway of Python on aiohttp costs at the least, written the plain way.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

HOP_BY_HOP = {
    "connection",
    "content-encoding",
    "content-length",
    "host",
    "keep-alive",
    "transfer-encoding",
}
UPSTREAM = web.AppKey("UPSTREAM", str)
SESSION = web.AppKey("SESSION", aiohttp.ClientSession)


async def client(app: web.Application) -> AsyncIterator[None]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        app[SESSION] = session
        yield


async def forward(request: web.Request) -> web.Response:
    headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
    body = await request.read()
    async with request.app[SESSION].request(
        request.method, request.app[UPSTREAM], data=body, headers=headers
    ) as response:
        back = {k: v for k, v in response.headers.items() if k.lower() not in HOP_BY_HOP}
        return web.Response(body=await response.read(), status=response.status, headers=back)


def main(upstream: str, port: int) -> None:
    app = web.Application()
    app[UPSTREAM] = upstream
    app.cleanup_ctx.append(client)
    app.router.add_route("*", "/mcp", forward)
    loop = uvloop.new_event_loop()
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, loop=loop)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
