"""One server on the Python SDK 2.x, which answers both eras.

``python sdk.py stdio`` or ``python sdk.py http PORT``.
"""

from __future__ import annotations

import asyncio
import sys

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("sdk", instructions="Tools on the SDK.")
MOTTO = "sdk://motto"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
# Some clients lose progress that arrives in one read with the result.
STEP = 0.03
motto_text = "first"


class Weather(BaseModel):
    city: str
    celsius: float


@server.tool()
def weather(city: str) -> Weather:
    """A structured answer with an output schema."""
    return Weather(city=city, celsius=21.5)


@server.tool()
def era(context: Context) -> str:
    """The protocol version of this request."""
    return str(context.protocol_version)


@server.tool()
async def climb(steps: int, context: Context) -> str:
    """Reports its progress at each step."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps, f"step {step}")
        await asyncio.sleep(STEP)
    return f"climbed {steps}"


@server.tool()
async def speak(context: Context) -> str:
    """Writes a warning to the client's log."""
    await context.warning("spoken aloud")
    return "spoke"


@server.tool()
async def rewrite(text: str, context: Context) -> str:
    """Changes the motto, and says so to whoever subscribed to it."""
    global motto_text
    motto_text = text
    await context.notify_resource_updated(MOTTO)
    return "rewritten"


@server.tool()
async def grow(name: str, context: Context) -> str:
    """Offers one more tool, and says so."""

    def grown() -> str:
        return f"{name} answers"

    server.add_tool(grown, name=name)
    await context.notify_tools_changed()
    if context.protocol_version in LEGACY:
        await context.session.send_tool_list_changed()
    return "grown"


@server.resource(MOTTO)
def motto() -> str:
    """A text resource that ``rewrite`` changes."""
    return motto_text


@server.resource("sdk://square/{number}")
def square(number: int) -> str:
    """A resource behind a template."""
    return str(int(number) ** 2)


@server.prompt()
def greet(name: str) -> str:
    """A prompt with an argument."""
    return f"Say hello to {name}."


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
