"""The rules of MCP as pure functions, beside the reference SDK where it has the same."""
