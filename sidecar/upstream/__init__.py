"""The servers behind the gateway: legs of every transport and era, kept up by themselves."""

from sidecar.upstream.server import McpServer

__all__ = ["McpServer"]
