"""What black-box tests are built of: a running sidecar, raw MCP clients, a look at processes."""
