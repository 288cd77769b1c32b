"""``GET /v1/tools``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from sidecar.admin import view
from sidecar.admin.api import Answer, Route, answer
from sidecar.admin.roles import Role
from sidecar.model import Tool

_FLAG = {"type": "boolean"}
_HINTS = ("read_only", "destructive", "idempotent", "open_world")

TOOL = {
    "type": "object",
    "required": ["name", "server", "upstream_name", "annotations", "hints", "gated", "digest"],
    "properties": {
        "name": {"type": "string", "description": "As it is offered: server__tool."},
        "server": {"type": "string"},
        "upstream_name": {"type": "string", "description": "The server's own name for it."},
        "annotations": {"type": "object", "description": "What the server claims of it."},
        "hints": {
            "type": "object",
            "required": list(_HINTS),
            "properties": dict.fromkeys(_HINTS, _FLAG),
        },
        "gated": {"type": "boolean", "description": "Whether a person approves its calls."},
        "trusted": _FLAG,
        "digest": {"type": "string", "description": "sha256 (hex) of its definition."},
    },
}


def routes(tools: Callable[[], Iterable[Tool]]) -> list[Route]:
    """``tools`` gives the catalog of now and never waits."""

    async def listing(_request: web.Request) -> web.Response:
        return answer({"tools": [view.tool(each) for each in tools()]})

    listed = {"$ref": "#/components/schemas/Tool"}
    return [
        Route(
            "GET",
            "/v1/tools",
            listing,
            Role.VIEWER,
            "tools",
            "Every tool of the catalog.",
            {
                200: Answer(
                    "The tools in their order.",
                    {
                        "type": "object",
                        "required": ["tools"],
                        "properties": {"tools": {"type": "array", "items": listed}},
                    },
                )
            },
            components={"Tool": TOOL},
        )
    ]
