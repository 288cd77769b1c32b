"""``Mcp-Param-*`` headers against the arguments that they repeat (2026-07-28, transports)."""

from __future__ import annotations

from collections import OrderedDict

from sidecar.gateway import Gateway
from sidecar.mcp.errors import Rejection
from sidecar.mcp.headers import BadParamHeader, Headers, ParamHeaders, check_params, param_headers
from sidecar.model import Caller, JsonObject, Tool
from sidecar.wire.json import BadJson, decode

REMEMBERED = 4096
"""Tool definitions whose annotations are kept; the ones read first go first."""


class ArgumentHeaders:
    """Knows which arguments a tool wants repeated; a definition is read once."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._by_digest: OrderedDict[str, ParamHeaders] = OrderedDict()

    def check(self, headers: Headers, params: JsonObject, caller: Caller) -> Rejection | None:
        """Refuse a ``tools/call`` whose headers say something else than its arguments.

        Headers that the tool does not ask for pass. An unknown tool is the gateway's to refuse.
        """
        name = params.get("name")
        if not isinstance(name, str):
            return None
        tool = self._gateway.tool(name, caller)
        if tool is None:
            return None
        mapping = self._by_digest.get(tool.digest)
        if mapping is None:
            mapping = self._read(tool)
        return check_params(headers, params, mapping) if mapping else None

    def _read(self, tool: Tool) -> ParamHeaders:
        try:
            definition = decode(tool.json)
            schema = definition.get("inputSchema") if isinstance(definition, dict) else None
            mapping: ParamHeaders = param_headers(schema)
        except (BadJson, BadParamHeader):
            mapping = {}
        self._by_digest[tool.digest] = mapping
        if len(self._by_digest) > REMEMBERED:
            self._by_digest.popitem(last=False)
        return mapping
