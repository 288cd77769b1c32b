"""FastMCP's own proxy with one client shared by all requests: its fastest way.

    .peers/fastmcp-new/bin/python bench/fastmcp_proxy.py UPSTREAM_URL PORT

By default FastMCP opens an upstream session for each request; handing it a connected client is
its recipe for sharing one. Run by an environment of its own, it imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import sys

from fastmcp import Client
from fastmcp.server import create_proxy


async def main(upstream: str, port: int) -> None:
    async with Client(upstream) as client:
        proxy = create_proxy(client)
        await proxy.run_async(
            transport="http",
            host="127.0.0.1",
            port=port,
            show_banner=False,
            log_level="ERROR",
            uvicorn_config={"access_log": False},
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
