"""What agents connect to: MCP over HTTP and stdio in both eras, and the REST face."""
