"""``sidecar call NAME``: one tool call, as any MCP client would make it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from sidecar.cli import agent, common


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "call",
        help="call a tool of the running sidecar",
        description="Prints the result's text (all of it with --json). Exit 1 when the tool "
        "says that it failed.",
    )
    parser.add_argument("name", metavar="NAME", help="as `sidecar tools` shows it")
    parser.add_argument(
        "--args", metavar="JSON", default="{}", help="a JSON object, or @FILE that holds one"
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=60.0)
    parser.add_argument("--json", action="store_true", help="the whole result")
    agent.arguments(parser)
    common.config_arguments(parser)
    parser.set_defaults(run=call)


def call(arguments: argparse.Namespace) -> int:
    """Parse, call, print."""
    try:
        given = _object(arguments.args)
    except ValueError as error:
        print(f"sidecar call: --args: {error}", file=sys.stderr)
        return 2
    config = common.load_config(arguments, asks=True)
    if config is None:
        return common.BAD_CONFIG
    try:
        import mcp
    except ImportError:
        print(
            "sidecar call: needs the MCP client; pip install 'mcp-sidecar[client]'", file=sys.stderr
        )
        return 1
    import asyncio

    try:
        where = agent.address(arguments, config)
        agent.token_needed(where, arguments, config)
        result = asyncio.run(_call(where, arguments.name, given, arguments.timeout))
    except agent.AgentError as error:
        print(f"sidecar call: {error}", file=sys.stderr)
        return 1
    except mcp.MCPError as error:
        print(f"sidecar call: {common.cell(error)}", file=sys.stderr)
        return 1
    except TimeoutError:
        print(f"sidecar call: no answer within {arguments.timeout:g} s", file=sys.stderr)
        return 1
    if arguments.json:
        print(common.dumps(result))
    else:
        for block in result.get("content", []):
            print(common.told(block["text"]) if block.get("type") == "text" else json.dumps(block))
    return 1 if result.get("isError") else 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError("has to be more than 0")
    return seconds


def _object(text: str) -> dict[str, object]:
    """The arguments. Raises ValueError, whose text says what to write."""
    where = ""
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            text, where = path.read_text(), f" in {path}"
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {common.why(error)}") from error
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON{where}: {error}") from error
    if not isinstance(given, dict):
        raise ValueError('has to be a JSON object, such as \'{"text": "hello"}\'')
    return given


async def _call(
    where: agent.Address, name: str, given: dict[str, object], timeout: float
) -> dict[str, Any]:
    """The call through the ``mcp`` package's client, in whichever era the two agree on."""
    import asyncio

    import httpx2
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    transport = httpx2.AsyncHTTPTransport(uds=where.socket) if where.socket is not None else None
    try:
        async with (
            asyncio.timeout(timeout),
            httpx2.AsyncClient(
                headers=where.headers(), timeout=timeout, trust_env=False, transport=transport
            ) as http,
            mcp.Client(streamable_http_client(f"{where.base}/mcp", http_client=http)) as client,
        ):
            result = await client.call_tool(name, given, read_timeout_seconds=timeout)
            return result.model_dump(mode="json", by_alias=True, exclude_none=True)
    # A TimeoutError is an OSError too, so it comes first.
    except* (TimeoutError, httpx2.TimeoutException):
        raise TimeoutError from None
    except* mcp.MCPError as errors:
        raise _first(errors) from None
    except* (OSError, httpx2.HTTPError) as errors:
        raise agent.silent(where, _first(errors)) from None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first leaf: the client wraps what went wrong in groups of groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
