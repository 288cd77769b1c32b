"""``sidecar demo``: the main job with nothing to configure."""

from __future__ import annotations

import argparse
import secrets
import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING

from sidecar.cli.run import loop_argument, loop_runner

if TYPE_CHECKING:
    from sidecar.app import Ready
    from sidecar.config import Listen

DEFAULT = "127.0.0.1:8808"
PAGE = "127.0.0.1:8809"
HOLD = 300.0
"""Seconds that a call waits for its approval: a newcomer reads first."""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "demo",
        help="two small servers behind one address, nothing to configure",
        description="Serves `notes` (stdio) and `clock` (HTTP), which come with the package, and "
        "the page on which a person approves calls.",
    )
    parser.add_argument("--listen", metavar="ADDR", default=DEFAULT)
    parser.add_argument(
        "--admin",
        metavar="ADDR",
        help=f"where the page is, on loopback ({PAGE}; with --listen, at a free port)",
    )
    loop_argument(parser)
    parser.set_defaults(run=demo)


def demo(arguments: argparse.Namespace) -> int:
    """Serve the two until told to stop."""
    from sidecar.app import StartError
    from sidecar.logs import configure

    page = PAGE if arguments.listen == DEFAULT else "127.0.0.1:0"
    try:
        listen = _address("--listen", arguments.listen)
        admin = _address("--admin", arguments.admin or page, loopback=True)
    except ValueError as error:
        print(f"sidecar demo: {error}", file=sys.stderr)
        return 2
    configure()
    try:
        return loop_runner(arguments.loop).run(_demo(listen, admin))
    except StartError as error:
        print(f"sidecar demo: {error}", file=sys.stderr)
        return 1


def _address(option: str, text: str, *, loopback: bool = False) -> Listen:
    """Raises ValueError, which names the option."""
    from sidecar.config import parse_listen

    try:
        listen = parse_listen(text)
        if loopback and not (listen.host and ip_address(listen.host).is_loopback):
            raise ValueError(f"{text} is not an address of loopback; try {PAGE}")
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error
    return listen


async def _demo(listen: Listen, admin: Listen) -> int:
    from sidecar.config import AdminConfig, Config, ParkingConfig, SecretRef, ServerConfig
    from sidecar.demo.clock import ClockServer
    from sidecar.serving import serve

    clock = ClockServer()
    url = await clock.start()
    notes = (sys.executable, "-m", "sidecar.demo.notes")
    servers = {
        # Its tool `add` is not read-only, and so needs a person's approval.
        "notes": ServerConfig("notes", "stdio", command=notes, trusted=True),
        # What is not trusted labels whoever reads it: see the page.
        "clock": ServerConfig("clock", "http", url=url),
    }
    # A browser cannot open a unix socket. The token is for this run alone.
    token = secrets.token_urlsafe(24)
    config = Config(
        listen=listen,
        health=None,
        admin=AdminConfig(admin, SecretRef(literal=token)),
        servers=servers,
        parking=ParkingConfig(hold=HOLD),
        store="memory",
    )
    try:
        return await serve(config, lambda: None, on_ready=lambda ready: invite(ready, token))
    finally:
        await clock.close()


def invite(ready: Ready, token: str) -> None:
    """The addresses, and what to try."""
    base = ready.mcp.removesuffix("/mcp")
    # As the newcomer can type it: `make demo` started the one of its own environment.
    command = ".venv/bin/sidecar" if ".venv/bin/sidecar" in sys.argv[0] else "sidecar"
    url = "" if base == f"http://{DEFAULT}" else f" --url {base}"
    print(
        f"""
Two servers are behind one MCP address: notes (stdio) and clock (HTTP).

    {ready.mcp}

To try, in another terminal:

  1. Call a tool that changes something. It waits until you approve it:
     {command} call notes__add --args '{{"text": "hello"}}' --timeout {HOLD:g}{url}

  2. Open the page, look at the call and press Approve. The call above runs and returns:
     {ready.admin}/#token={token}

  3. Call a tool that only reads. It runs at once:
     {command} call notes__search{url}

  4. See what an agent sees, in the format of the model you use (mcp, anthropic, openai):
     {command} tools --format anthropic{url}

  5. Point your agent at the address. Claude Code, for example:
     claude mcp add --transport http sidecar {ready.mcp}

The link of 2. is your key to the page, and good as long as this runs. Ctrl-C ends it.
""",
        flush=True,
    )
