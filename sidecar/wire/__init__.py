"""Bytes and ids: JSON, JSON-RPC, NDJSON and SSE. Nothing here knows what MCP means."""
