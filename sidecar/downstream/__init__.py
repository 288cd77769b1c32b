"""What agents connect to: MCP over HTTP and stdio in both eras, and the REST face."""

from sidecar.downstream.auth import Authenticator, Grant, tokens_of
from sidecar.downstream.http import AgentListener

__all__ = ["AgentListener", "Authenticator", "Grant", "tokens_of"]
