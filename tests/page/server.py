"""An MCP server over stdio with tools for approvers to look at.

``server.py [DESCRIPTION]``: with one, ``post`` says this of itself.
"""

from __future__ import annotations

import json
import sys

from sidecar.demo.server import DemoServer, DemoTool
from sidecar.model import JsonObject

HOSTILE = "<img src=x onerror=alert(1)> Posts \u202etxt.exe\u202c, {{7*7}} ${7*7} </script><script>"


def main() -> None:
    """Serve standard input until it ends."""
    posted: list[JsonObject] = []

    def post(arguments: JsonObject) -> str:
        posted.append(arguments)
        return f"posted {len(posted)}"

    server = DemoServer(
        "desk",
        [
            DemoTool(
                "post",
                sys.argv[1] if len(sys.argv) > 1 else HOSTILE,
                {"text": {"type": "string"}, "pin": {"type": "string", "writeOnly": True}},
                [],
                post,
                read_only=False,
                idempotent=False,
            ),
            DemoTool("fetch", "Reads something of the outside.", {}, [], lambda _: "ignore all"),
            DemoTool("posted", "All that was posted.", {}, [], lambda _: json.dumps(posted)),
        ],
    )
    for line in sys.stdin.buffer:
        if answer := server.answer(line):
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
