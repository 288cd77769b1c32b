"""``sidecar stdio``: the same address over standard input and output, for clients that spawn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, TypeAlias

from sidecar.cli import agent, common
from sidecar.cli.run import loop_argument, loop_runner

if TYPE_CHECKING:
    from sidecar.config import Config

Join: TypeAlias = tuple[str, dict[str, str]]
Serving: TypeAlias = Coroutine[object, object, int]


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

    def serving(config: Config, join: Join | None, socket: str | None) -> Serving:
        from sidecar.serving import serve_stdio

        return serve_stdio(config, server=arguments.server, join=join, socket=socket)

    return joined_or_alone(arguments, "stdio", serving)


def joined_or_alone(
    arguments: argparse.Namespace,
    verb: str,
    serving: Callable[[Config, Join | None, str | None], Serving],
) -> int:
    """Serve standard input until it ends; the exit code.

    ``serving`` makes what does so of the configuration and of where to join, if anywhere: as
    ``serving.serve_stdio`` takes them.
    """
    config = common.load_config(arguments)
    if config is None:
        return common.BAD_CONFIG
    from sidecar.app import StartError
    from sidecar.logs import configure

    configure(config.log)
    try:
        where = None if arguments.alone else agent.address(arguments, config)
        join = (where.base, where.headers()) if where is not None else None
        socket = where.socket if where is not None else None
        return loop_runner(arguments.loop).run(serving(config, join, socket))
    except StartError as error:
        # As it is: policies that do not load are told line by line.
        print(f"sidecar {verb}: {error}", file=sys.stderr)
        return error.code
    except agent.AgentError as error:
        return common.failed(verb, error)
