"""The command line: one module a noun, each adding its parser; only what a verb needs is imported.

Exit codes: 0 ok, 1 failed, 2 usage, 3 bad configuration or policy, 4 a check found something.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from sidecar import __version__

NOUNS = (
    "run",
    "stdio",
    "acp",
    "demo",
    "config",
    "servers",
    "tools",
    "sessions",
    "call",
    "calls",
    "policy",
    "egress",
    "works",
    "harness",
    "audit",
)


def parser() -> argparse.ArgumentParser:
    """Every verb; no verb's heavy imports."""
    top = argparse.ArgumentParser(
        prog="sidecar",
        description="One MCP address in front of many servers, with policy in between.",
    )
    top.add_argument("--version", action="version", version=f"sidecar {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for noun in NOUNS:
        importlib.import_module(f"sidecar.cli.{noun}").add(verbs)
    return top


def main(argv: Sequence[str]) -> int:
    """Run one verb and return its exit code."""
    arguments = parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; closing stdout now keeps the exit quiet.
        sys.stderr.close()
        return 0
    return int(code)
