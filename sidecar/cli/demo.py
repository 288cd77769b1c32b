"""``sidecar demo``: the main job with nothing to configure."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from sidecar.cli.run import loop_argument, loop_runner

if TYPE_CHECKING:
    from sidecar.app import Ready

DEFAULT = "127.0.0.1:8808"


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "demo",
        help="two small servers behind one address, nothing to configure",
        description="Serves `notes` (stdio) and `clock` (HTTP), which come with the package.",
    )
    parser.add_argument("--listen", metavar="ADDR", default=DEFAULT)
    loop_argument(parser)
    parser.set_defaults(run=demo)


def demo(arguments: argparse.Namespace) -> int:
    """Serve the two until told to stop."""
    from sidecar.app import StartError
    from sidecar.config import parse_listen
    from sidecar.logs import configure

    try:
        listen = parse_listen(arguments.listen)
    except ValueError as error:
        print(f"sidecar demo: --listen: {error}", file=sys.stderr)
        return 2
    configure()
    try:
        return loop_runner(arguments.loop).run(_demo(listen))
    except StartError as error:
        print(f"sidecar demo: {error}", file=sys.stderr)
        return 1


async def _demo(listen: object) -> int:
    from sidecar.app import serve
    from sidecar.config import AdminConfig, Config, Listen, ServerConfig
    from sidecar.demo.clock import ClockServer

    assert isinstance(listen, Listen)
    clock = ClockServer()
    url = await clock.start()
    servers = {
        # Its tool `add` is not read-only: elsewhere it would need a person's approval.
        "notes": ServerConfig(
            "notes",
            "stdio",
            command=(sys.executable, "-m", "sidecar.demo.notes"),
            trusted=True,
            gated=False,
        ),
        "clock": ServerConfig("clock", "http", url=url, trusted=True),
    }
    config = Config(
        listen=listen, health=None, admin=AdminConfig(None), servers=servers, store="memory"
    )
    try:
        return await serve(config, lambda: None, on_ready=invite)
    finally:
        await clock.close()


def invite(ready: Ready) -> None:
    """The address, and three things to try."""
    base = ready.mcp.removesuffix("/mcp")
    # As the newcomer can type it: `make demo` started the one of its own environment.
    command = ".venv/bin/sidecar" if ".venv/bin/sidecar" in sys.argv[0] else "sidecar"
    url = "" if base == f"http://{DEFAULT}" else f" --url {base}"
    print(
        f"""
Two servers are behind one MCP address: notes (stdio) and clock (HTTP).

    {ready.mcp}

Three things to try, in another terminal:

  1. Call a tool:
     {command} call notes__add --args '{{"text": "hello"}}'{url}
     {command} call notes__search{url}

  2. See what an agent sees, in the format of the model you use (mcp, anthropic, openai):
     {command} tools --format anthropic{url}

  3. Point your agent at the address. Claude Code, for example:
     claude mcp add --transport http sidecar {ready.mcp}

Ctrl-C ends it.
""",
        flush=True,
    )
