"""Two small MCP servers that come with the package, so that a newcomer has something to call."""
