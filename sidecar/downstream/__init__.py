"""What agents connect to: MCP over HTTP and stdio in both eras, and the REST face."""

from sidecar.downstream.auth import Authenticator, Grant, principals, tokens_of
from sidecar.downstream.http import AgentListener
from sidecar.downstream.pipes import stdio_lines
from sidecar.downstream.stdio import StdioServer

__all__ = [
    "AgentListener",
    "Authenticator",
    "Grant",
    "StdioServer",
    "principals",
    "stdio_lines",
    "tokens_of",
]
