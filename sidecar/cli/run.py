"""``sidecar run``: serve until told to stop."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from typing import TYPE_CHECKING

from sidecar import memory
from sidecar.cli import common

if TYPE_CHECKING:
    import asyncio

    from sidecar.config import Config


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "run",
        help="serve until told to stop",
        description="SIGTERM or Ctrl-C drains and ends (a second one at once); SIGHUP, or an "
        "edit of the file, reloads what can be reloaded.",
    )
    common.config_arguments(parser)
    parser.add_argument("--listen", metavar="ADDR", help="in place of the configuration's listen")
    loop_argument(parser)
    parser.set_defaults(run=run)


def loop_argument(parser: argparse.ArgumentParser) -> None:
    """``--loop``, for those who debug with the standard one."""
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")


def run(arguments: argparse.Namespace) -> int:
    """Load, serve, and turn what went wrong into an exit code."""

    def read() -> Config | None:
        loaded = common.load_config(arguments, listen=arguments.listen)
        if loaded is None:
            return None
        return dataclasses.replace(loaded, limits=memory.fitted(loaded.limits, available))

    available = memory.limit()
    config = read()
    if config is None:
        return common.BAD_CONFIG
    from sidecar.app import StartError
    from sidecar.logs import configure
    from sidecar.serving import serve

    configure(config.log)
    if available is not None:
        logging.getLogger("sidecar").info("%s", memory.told(config.limits, available))
    files = [*([config.path] if config.path is not None else []), *arguments.mcp_config]
    try:
        return loop_runner(arguments.loop).run(serve(config, read, files=files))
    except StartError as error:
        print(f"sidecar run: {error}", file=sys.stderr)
        return error.code


def loop_runner(loop: str) -> asyncio.Runner:
    """A runner of the chosen event loop."""
    import asyncio

    if loop == "uvloop":
        import uvloop

        return asyncio.Runner(loop_factory=uvloop.new_event_loop)
    return asyncio.Runner()
