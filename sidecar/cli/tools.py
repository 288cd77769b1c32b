"""``sidecar tools``: the catalog, for people or in a model API's format; its pins."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from sidecar.cli import agent, common

if TYPE_CHECKING:
    from sidecar.admin.client import AdminClient


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "tools",
        help="the tools of the running sidecar",
        description="Without --format: a table from the admin API. With it: exactly what the "
        "agent's listener gives as GET /v1/tools.",
    )
    parser.add_argument("--json", action="store_true", help="as a JSON array")
    parser.add_argument(
        "--format", choices=("mcp", "anthropic", "openai"), help="as a model API takes them"
    )
    parser.add_argument("--separator", help="between server and tool, in place of the catalog's")
    parser.add_argument("--server", help="one server's tools alone")
    agent.arguments(parser)
    common.config_arguments(parser)
    parser.set_defaults(run=tools)
    nouns = parser.add_subparsers(metavar="[pin|pins]", required=False)
    listing = nouns.add_parser(
        "pins",
        help="whose definition is other than when it was first seen",
        description="A tool's definition is pinned when it is first seen. Policies read "
        "tool.changed; a changed tool of a server that was added at run time needs approval.",
    )
    listing.add_argument("--json", action="store_true", help="as a JSON array")
    common.config_arguments(listing)
    listing.set_defaults(run=pins)
    pinning = nouns.add_parser(
        "pin", help="accept definitions as they are now", description="After a look at them."
    )
    pinning.add_argument("names", metavar="NAME", nargs="*", help="tools, as they are offered")
    pinning.add_argument("--all", action="store_true", help="every tool there is")
    common.config_arguments(pinning)
    pinning.set_defaults(run=pin)


def tools(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    from sidecar.admin.client import AdminError

    config = common.load_config(arguments, asks=True)
    if config is None:
        return common.BAD_CONFIG
    try:
        if arguments.format is not None:
            asked = {
                key: value
                for key in ("format", "separator", "server")
                if (value := getattr(arguments, key)) is not None
            }
            where = agent.address(arguments, config)
            agent.token_needed(where, arguments, config)
            found = agent.get(where, f"/v1/tools?{urlencode(asked)}")
            print(common.dumps(found.get("tools", [])))
            return 0
        client = common.admin_client(config)
        listed = client.tools()
        if arguments.server is not None:
            listed = [tool for tool in listed if tool.get("server") == arguments.server]
            names = [str(server["name"]) for server in client.servers()]
            if arguments.server not in names:
                there = f"there are {', '.join(names)}" if names else "there are none"
                print(f"sidecar tools: no server {arguments.server!r}: {there}", file=sys.stderr)
                return 1
    except (AdminError, agent.AgentError) as error:
        return common.failed("tools", error)
    if not arguments.json:
        listed = [{**tool, "read_only": hint(tool, "read_only")} for tool in listed]
    common.show(
        listed,
        arguments.json,
        ("name", "server", "read_only", "gated"),
        "no tools; `sidecar servers list` tells how the servers are",
    )
    return 0


def pins(arguments: argparse.Namespace) -> int:
    """``sidecar tools pins``."""

    def question(client: AdminClient) -> int:
        listed = client.pins()
        if not arguments.json:
            listed = [
                {**row, "digest": str(row["digest"])[:12], "pinned": _short(row.get("pinned"))}
                for row in listed
            ]
        common.show(listed, arguments.json, ("name", "changed", "pinned", "digest"))
        return 0

    return common.asked(arguments, "tools", question)


def _short(digest: object) -> str | None:
    return digest[:12] if isinstance(digest, str) else None


def pin(arguments: argparse.Namespace) -> int:
    """``sidecar tools pin``."""
    if bool(arguments.names) == arguments.all:
        print("sidecar tools pin: name the tools, or say --all", file=sys.stderr)
        return 2

    def question(client: AdminClient) -> int:
        for name in client.pin(None if arguments.all else arguments.names):
            print(f"pinned {common.cell(name)}")
        return 0

    return common.asked(arguments, "tools", question)


def hint(tool: dict[str, object], key: str) -> object:
    """One of a tool's four hints."""
    hints = tool.get("hints")
    return hints.get(key) if isinstance(hints, dict) else None
