"""One server on FastMCP, written so that its old and its new major version both run it.

``python everyday.py stdio`` or ``python everyday.py http PORT``. It is run by the interpreter of
an environment under ``.peers/``, and imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from fastmcp import Context, FastMCP

server: FastMCP[Any] = FastMCP("everyday", instructions="Everyday tools.")
# Some clients lose progress that arrives in one read with the result.
STEP = 0.03


@server.tool
def add(a: int, b: int) -> int:
    """The sum of two integers."""
    return a + b


@server.tool
def describe(name: str) -> dict[str, Any]:
    """A structured answer."""
    return {"name": name, "length": len(name), "letters": sorted(set(name))}


@server.tool
def fail() -> str:
    """An exception inside a tool."""
    raise ValueError("this tool always fails")


@server.tool
async def climb(steps: int, context: Context) -> str:
    """Reports its progress at each step."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps)
        await asyncio.sleep(STEP)
    return f"climbed {steps}"


@server.resource("everyday://motto")
def motto() -> str:
    """A text resource."""
    return "one day at a time"


@server.resource("everyday://square/{number}")
def square(number: int) -> str:
    """A resource behind a template."""
    return str(int(number) ** 2)


@server.prompt
def greet(name: str) -> str:
    """A prompt with an argument."""
    return f"Say hello to {name}."


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run(transport="stdio", show_banner=False)
    else:
        server.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False)
