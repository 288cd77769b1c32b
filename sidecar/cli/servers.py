"""``sidecar servers list|add|remove|reconcile``: what stands behind the address."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.admin.client import AdminClient


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser("servers", help="the MCP servers of the running sidecar")
    nouns = parser.add_subparsers(metavar="WHAT", required=True)

    listing = nouns.add_parser("list", help="every server and its state")
    listing.add_argument("--json", action="store_true", help="as a JSON array")
    common.config_arguments(listing)
    listing.set_defaults(run=list_servers)

    adding = nouns.add_parser(
        "add",
        help="add a server while it runs",
        description="The server is kept in the store, and every node on it connects. It is not "
        "trusted, and its hints only make its tools stricter. Adding one that was added before "
        "replaces it.",
    )
    _add_arguments(adding)
    common.config_arguments(adding)
    adding.set_defaults(run=add_server)

    removing = nouns.add_parser("remove", help="remove a server that was added while it runs")
    removing.add_argument("name", metavar="NAME")
    common.config_arguments(removing)
    removing.set_defaults(run=remove_server)

    comparing = nouns.add_parser("reconcile", help="compare what runs with the store, now")
    comparing.add_argument("--json", action="store_true", help="as a JSON object")
    common.config_arguments(comparing)
    comparing.set_defaults(run=reconcile)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", metavar="URL", help="its MCP address")
    what.add_argument(
        "--command",
        metavar="PROGRAM ...",
        nargs=argparse.REMAINDER,
        help="a program and all that follows as its arguments, where runtime_servers.commands "
        "allows it; stands last",
    )
    what.add_argument("--options", metavar="JSON", help="everything at once, as a JSON object")
    parser.add_argument("--transport", choices=("http", "sse"))
    parser.add_argument("--credential", metavar="NAME", help="a credential of sidecar.yaml")
    parser.add_argument(
        "--header",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_pair,
        help="no secrets; may be repeated",
    )
    parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], type=_pair, help="for a program"
    )
    parser.add_argument("--cwd", metavar="FOLDER", help="where a program starts")
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", help="offer these tools alone"
    )
    parser.add_argument("--except", metavar="PATTERN", action="append", dest="except_")
    parser.add_argument("--gated", action="store_true", help="a person approves every call")
    parser.add_argument("--timeout", metavar="DURATION", help="for one attempt, such as 30s")
    parser.add_argument("--era", choices=("auto", "legacy", "modern"))
    parser.add_argument("--isolation", choices=("auto", "shared", "session"))


_OURS = {
    *("--transport", "--credential", "--header", "--env", "--cwd", "--only", "--except"),
    *("--gated", "--timeout", "--era", "--isolation", "--config", "--mcp-config"),
    *("--options", "--url"),
}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("write it as NAME=VALUE")
    return name, value


def _options(arguments: argparse.Namespace) -> dict[str, object]:
    """The options as the API takes them. Raises ValueError for what is none."""
    options: dict[str, object] = {}
    if arguments.options is not None:
        given = json.loads(arguments.options)
        if not isinstance(given, dict):
            raise ValueError("--options takes a JSON object")
        options.update(given)
    if arguments.command == []:
        raise ValueError("--command names no program; it stands last, with all of its arguments")
    plain = ("url", "command", "transport", "credential", "cwd", "only", "timeout", "era")
    for key in (*plain, "isolation"):
        value = getattr(arguments, key)
        if value is not None:
            options[key] = value
    if arguments.except_ is not None:
        options["except"] = arguments.except_
    if arguments.header:
        options["headers"] = dict(arguments.header)
    if arguments.env:
        options["env"] = dict(arguments.env)
    if arguments.gated:
        options["gated"] = True
    return options


def list_servers(arguments: argparse.Namespace) -> int:
    """Ask the admin API and print."""

    def question(client: AdminClient) -> int:
        servers = client.servers()
        if not servers and not arguments.json:
            print("no servers are configured; add some under `servers:` in sidecar.yaml")
            return 0
        columns = ("name", "source", "state", "transport", "era", "tools", "retry_in", "error")
        added = any(each.get("source") == "runtime" for each in servers)
        head = columns if added else tuple(each for each in columns if each != "source")
        common.show(servers, arguments.json, head)
        return 0

    return common.asked(arguments, "servers", question)


def add_server(arguments: argparse.Namespace) -> int:
    """Add or replace one."""
    try:
        options = _options(arguments)
    except ValueError as error:
        print(f"sidecar servers add: {error}", file=sys.stderr)
        return 2
    for word in arguments.command or ():
        if word in _OURS:
            print(
                f"sidecar servers add: {word} goes to the program, since it stands after "
                "--command; write it in front if it is meant for this command",
                file=sys.stderr,
            )

    def question(client: AdminClient) -> int:
        new, told = client.put(arguments.name, options)
        print(f"{arguments.name}: {'added' if new else 'replaced'}")
        for each in told:
            print(f"sidecar servers add: {each}", file=sys.stderr)
        return 0

    return common.asked(arguments, "servers", question)


def remove_server(arguments: argparse.Namespace) -> int:
    """Remove one."""

    def question(client: AdminClient) -> int:
        client.remove(arguments.name)
        print(f"{arguments.name}: removed")
        return 0

    return common.asked(arguments, "servers", question)


def reconcile(arguments: argparse.Namespace) -> int:
    """Compare with the store."""

    def question(client: AdminClient) -> int:
        found = client.reconcile()
        if arguments.json:
            print(common.dumps(found))
            return 0
        words = [
            f"{what}: {', '.join(map(str, names))}"
            for what in ("added", "removed", "changed")
            if isinstance(names := found.get(what), list) and names
        ]
        print("; ".join(words) or "nothing changed")
        return 0

    return common.asked(arguments, "servers", question)
