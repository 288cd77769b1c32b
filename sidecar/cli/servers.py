"""``sidecar servers list``: what stands behind the address, and its state."""

from __future__ import annotations

import argparse
import sys

from sidecar.cli import common


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser("servers", help="the MCP servers of the running sidecar")
    nouns = parser.add_subparsers(metavar="WHAT", required=True)
    listing = nouns.add_parser("list", help="every server and its state")
    listing.add_argument("--json", action="store_true", help="as a JSON array")
    common.config_arguments(listing)
    listing.set_defaults(run=list_servers)


def list_servers(arguments: argparse.Namespace) -> int:
    """Ask the admin API and print."""
    from sidecar.admin.client import AdminError

    config = common.load_config(arguments, asks=True)
    if config is None:
        return common.BAD_CONFIG
    try:
        servers = common.admin_client(config).servers()
    except AdminError as error:
        print(f"sidecar servers: {error}", file=sys.stderr)
        return 1
    if not servers and not arguments.json:
        print("no servers are configured; add some under `servers:` in sidecar.yaml")
        return 0
    common.show(
        servers, arguments.json, ("name", "state", "transport", "era", "tools", "retry_in", "error")
    )
    return 0
