"""``sidecar acp HARNESS``: a coding agent on standard input and output, for editors."""

from __future__ import annotations

import argparse
import sys

from sidecar.cli import agent, common
from sidecar.cli.run import loop_argument, loop_runner


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "acp",
        help="a coding agent for an editor that speaks ACP (Zed, JetBrains)",
        description="Speaks ACP on standard input and output, as the coding agent HARNESS of "
        "`harnesses`: it works in worktrees of its own, and what it asks passes the policies. "
        "Joins the sidecar that runs at the configured address; without one it runs the agent "
        "alone. Nothing but JSON-RPC goes to standard output.",
    )
    parser.add_argument("harness", metavar="HARNESS", help="a name of `harnesses:`")
    parser.add_argument("--alone", action="store_true", help="never join a running sidecar")
    agent.arguments(parser)
    common.config_arguments(parser)
    loop_argument(parser)
    parser.set_defaults(run=acp)


def acp(arguments: argparse.Namespace) -> int:
    """Join, or serve alone."""
    config = common.load_config(arguments)
    if config is None:
        return common.BAD_CONFIG
    from sidecar.app import StartError
    from sidecar.downstream.acp_join import JoinError
    from sidecar.logs import configure
    from sidecar.serving import serve_acp

    configure(config.log)
    try:
        where = None if arguments.alone else agent.address(arguments, config)
        join = (where.base, where.headers()) if where is not None else None
        socket = where.socket if where is not None else None
        runner = loop_runner(arguments.loop)
        return runner.run(serve_acp(config, arguments.harness, join=join, socket=socket))
    except (StartError, agent.AgentError, JoinError) as error:
        print(f"sidecar acp: {error}", file=sys.stderr)
        return error.code if isinstance(error, StartError) else 1
