"""``sidecar stdio``: the same address over standard input and output, for clients that spawn."""

from __future__ import annotations

import argparse
import sys

from sidecar.cli import agent, common
from sidecar.cli.run import loop_argument, loop_runner


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "stdio",
        help="speak MCP on standard input and output",
        description="Joins the sidecar that runs at the configured address, so that its servers "
        "are shared; without one it serves alone. Nothing but JSON-RPC goes to standard output.",
    )
    parser.add_argument("--server", metavar="NAME", help="that server alone, its names unchanged")
    parser.add_argument("--alone", action="store_true", help="never join a running sidecar")
    agent.arguments(parser)
    common.config_arguments(parser)
    loop_argument(parser)
    parser.set_defaults(run=stdio)


def stdio(arguments: argparse.Namespace) -> int:
    """Join, or serve alone."""
    config = common.load_config(arguments)
    if config is None:
        return common.BAD_CONFIG
    from sidecar.app import StartError
    from sidecar.logs import configure
    from sidecar.serving import serve_stdio

    configure(config.log)
    try:
        where = None if arguments.alone else agent.address(arguments, config)
        join = (where.base, where.headers()) if where is not None else None
        socket = where.socket if where is not None else None
        runner = loop_runner(arguments.loop)
        return runner.run(serve_stdio(config, server=arguments.server, join=join, socket=socket))
    except (StartError, agent.AgentError) as error:
        print(f"sidecar stdio: {error}", file=sys.stderr)
        return error.code if isinstance(error, StartError) else 1
