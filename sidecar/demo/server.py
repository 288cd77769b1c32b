"""A whole MCP server in one sans-io function: a message in, its answer out, in both eras.

Enough of the protocol for tools: ``initialize`` or ``server/discover``, ``tools/list``,
``tools/call``, ``ping``. Transports stand around it (`notes` over stdio, `clock` over HTTP).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sidecar import __version__
from sidecar.mcp import errors
from sidecar.mcp.versions import LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSION
from sidecar.model import JsonObject, RpcError
from sidecar.wire import json, jsonrpc


class Mistake(Exception):
    """The caller's mistake, told as the tool's own error."""


@dataclass(frozen=True, slots=True)
class DemoTool:
    """A tool: ``run`` takes the arguments and returns the answer's text, or raises Mistake."""

    name: str
    description: str
    properties: Mapping[str, JsonObject]
    required: Sequence[str]
    run: Callable[[JsonObject], str]
    read_only: bool = True
    idempotent: bool = True

    def definition(self) -> JsonObject:
        """The entry of ``tools/list``."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object",
                "properties": dict(self.properties),
                "required": list(self.required),
            },
            "annotations": {
                "readOnlyHint": self.read_only,
                "destructiveHint": False,
                "idempotentHint": self.idempotent,
                "openWorldHint": False,
            },
        }


@dataclass(slots=True)
class DemoServer:
    """``answer`` is the server. ``name`` is what it calls itself."""

    name: str
    tools: Sequence[DemoTool]
    _by_name: dict[str, DemoTool] = field(init=False)

    def __post_init__(self) -> None:
        self._by_name = {tool.name: tool for tool in self.tools}

    def answer(self, data: bytes) -> bytes | None:
        """The answer to one message, or ``None`` for a notification."""
        try:
            message = jsonrpc.parse(data)
        except ValueError:
            return jsonrpc.error(None, RpcError(jsonrpc.PARSE_ERROR, "not one JSON-RPC message"))
        if not message.is_request or message.id is None:
            return None
        try:
            params = json.decode(message.params) if message.params else {}
            if not isinstance(params, dict):
                raise errors.invalid_params("params must be an object")
            return jsonrpc.result(message.id, self._result(str(message.method), params))
        except RpcError as error:
            return jsonrpc.error(message.id, error)

    def _result(self, method: str, params: JsonObject) -> JsonObject:
        info: JsonObject = {"name": self.name, "version": __version__}
        capabilities: JsonObject = {"tools": {}}
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                return {
                    "protocolVersion": asked if asked in LEGACY_VERSIONS else LATEST_LEGACY,
                    "capabilities": capabilities,
                    "serverInfo": info,
                }
            case "server/discover":
                return {
                    "resultType": "complete",
                    "supportedVersions": [MODERN_VERSION, *LEGACY_VERSIONS],
                    "capabilities": capabilities,
                    "ttlMs": 0,
                    "cacheScope": "private",
                    "_meta": {"io.modelcontextprotocol/serverInfo": info},
                }
            case "ping":
                return {}
            case "tools/list":
                return {
                    "resultType": "complete",
                    "tools": [tool.definition() for tool in self.tools],
                    "ttlMs": 0,
                    "cacheScope": "private",
                }
            case "tools/call":
                return self._call(params)
        raise errors.method_not_found(method)

    def _call(self, params: JsonObject) -> JsonObject:
        tool = self._by_name.get(str(params.get("name")))
        arguments = params.get("arguments", {})
        if tool is None:
            raise errors.invalid_params("no such tool")
        if not isinstance(arguments, dict):
            raise errors.invalid_params("arguments must be an object")
        failed = False
        try:
            missing = [name for name in tool.required if name not in arguments]
            if missing:
                raise Mistake(f"missing: {', '.join(missing)}")
            text = tool.run(arguments)
        except Mistake as mistake:
            text, failed = str(mistake), True
        return {
            "resultType": "complete",
            "content": [{"type": "text", "text": text}],
            "isError": failed,
        }
