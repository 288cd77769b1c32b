"""``sidecar acp HARNESS``: a coding agent on standard input and output, for editors."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sidecar.cli import agent, common
from sidecar.cli.run import loop_argument
from sidecar.cli.stdio import Join, Serving, joined_or_alone

if TYPE_CHECKING:
    from sidecar.config import Config


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

    def serving(config: Config, join: Join | None, socket: str | None) -> Serving:
        from sidecar.serving import serve_acp

        return serve_acp(config, arguments.harness, join=join, socket=socket)

    return joined_or_alone(arguments, "acp", serving)
