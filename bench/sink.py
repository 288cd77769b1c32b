"""A receiver of OTLP that takes everything and looks at nothing: ``python -m bench.sink PORT``."""

from __future__ import annotations

import sys

from aiohttp import web


async def take(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(content_type="application/x-protobuf")


if __name__ == "__main__":
    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/{signal}", take)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
