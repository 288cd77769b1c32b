"""A stdio server of the tests: fetches URLs the way most programs do, and shows its variables."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

from sidecar.demo.server import DemoServer, DemoTool
from sidecar.model import JsonObject

NAMES = ("http_proxy", "HTTPS_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY")


def fetch(arguments: JsonObject) -> str:
    """Status and text, or how it failed."""
    try:
        with urllib.request.urlopen(str(arguments["url"]), timeout=10) as answer:
            return f"{answer.status} {answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except OSError as error:
        return f"failed: {error}"


def variables(arguments: JsonObject) -> str:
    """The variables that tell of a proxy."""
    return "\n".join(f"{name}={os.environ.get(name, '')}" for name in NAMES)


def main() -> None:
    """Serve standard input."""
    server = DemoServer(
        "fetcher",
        [
            DemoTool("fetch", "Fetch.", {"url": {"type": "string"}}, ["url"], fetch),
            DemoTool("env", "Variables.", {}, [], variables),
        ],
    )
    for line in sys.stdin.buffer:
        answer = server.answer(line)
        if answer is not None:
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
