"""``sidecar tools``: the catalog, for people or in a model API's format."""

from __future__ import annotations

import argparse
import json
import sys
from urllib.parse import urlencode

from sidecar.cli import agent, common


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
            found = agent.get(agent.address(arguments, config), f"/v1/tools?{urlencode(asked)}")
            print(json.dumps(found.get("tools", []), indent=2, ensure_ascii=False))
            return 0
        listed = common.admin_client(config).tools()
    except (AdminError, agent.AgentError) as error:
        print(f"sidecar tools: {error}", file=sys.stderr)
        return 1
    if arguments.server is not None:
        listed = [tool for tool in listed if tool.get("server") == arguments.server]
    if not arguments.json:
        listed = [{**tool, "read_only": hint(tool, "read_only")} for tool in listed]
    common.show(listed, arguments.json, ("name", "server", "read_only", "gated"))
    return 0


def hint(tool: dict[str, object], key: str) -> object:
    """One of a tool's four hints."""
    hints = tool.get("hints")
    return hints.get(key) if isinstance(hints, dict) else None
