"""What the MCP specification says, for both eras, as pure functions."""
