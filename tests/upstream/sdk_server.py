"""A server built with the ``mcp`` package, which speaks both eras: over stdio, or on a port.

``python sdk_server.py stdio``, or ``python sdk_server.py http PORT_FILE``: the port that it got
is written to the file.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("sdk", instructions="Be kind.")
seen = {"calls": 0}


@server.tool()
def echo(message: str) -> str:
    """Says it again."""
    return message


@server.tool()
def count() -> int:
    """Counts its own calls."""
    seen["calls"] += 1
    return seen["calls"]


@server.tool()
async def slow(ms: int) -> str:
    """Takes its time."""
    await asyncio.sleep(ms / 1000)
    return "slept"


@server.tool()
async def steps(n: int, ctx: Context) -> str:
    """Tells of its progress."""
    for step in range(n):
        await ctx.report_progress(step + 1, n, f"step {step + 1}")
    return "done"


@server.tool()
async def grow(ctx: Context) -> str:
    """Adds a tool."""
    server.add_tool(lambda: "new", name="grown", description="Was not there before.")
    if hasattr(ctx.session, "send_tool_list_changed"):
        await ctx.session.send_tool_list_changed()
    return "grown"


@server.prompt()
def greeting(name: str) -> str:
    """A greeting."""
    return f"Greet {name}."


@server.resource("note://one")
def note() -> str:
    """A note."""
    return "one"


@server.resource("note://{name}/text")
def notes(name: str) -> str:
    """Any note."""
    return name


async def over_http(port_file: Path) -> None:
    import uvicorn

    config = uvicorn.Config(
        server.streamable_http_app(json_response="json" in sys.argv),
        host="127.0.0.1",
        port=0,
        log_level="error",
    )
    web = uvicorn.Server(config)
    serving = asyncio.create_task(web.serve())
    while not web.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = web.servers[0].sockets[0].getsockname()[1]
    temporary = port_file.with_suffix(".tmp")
    temporary.write_text(str(port))
    temporary.rename(port_file)
    await serving


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        asyncio.run(over_http(Path(sys.argv[2])))
