"""One server on the Python SDK 1.x, which knows the handshake era only.

``python sdk1.py stdio``, ``python sdk1.py http PORT`` or ``python sdk1.py sse PORT``. It is run
by the interpreter of ``.peers/fastmcp-old``, whose ``mcp`` is a 1.x.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("sdk1", port=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
# Some clients lose progress that arrives in one read with the result.
STEP = 0.03


@server.tool()
def multiply(a: int, b: int) -> int:
    """The product of two integers."""
    return a * b


@server.tool()
async def climb(steps: int, context: Context[Any, Any, Any]) -> str:
    """Reports its progress at each step."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps)
        await asyncio.sleep(STEP)
    return f"climbed {steps}"


@server.resource("sdk1://motto")
def motto() -> str:
    """A text resource."""
    return "still here"


if __name__ == "__main__":
    transports: dict[str, Any] = {"stdio": "stdio", "http": "streamable-http", "sse": "sse"}
    server.run(transport=transports[sys.argv[1]])
