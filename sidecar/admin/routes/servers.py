"""``/v1/servers``: which there are, adding and removing; ``POST /v1/reconcile``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from sidecar.admin import view
from sidecar.admin.api import Answer, Route, answer
from sidecar.admin.roles import Role
from sidecar.model import ServerStatus

SERVER = {
    "type": "object",
    "required": ["name", "source", "transport", "state", "tools"],
    "properties": {
        "name": {"type": "string"},
        "source": {"enum": ["configured", "runtime"]},
        "transport": {"enum": ["stdio", "http", "sse"]},
        "state": {"enum": ["connecting", "ready", "backoff", "failed", "shadowed"]},
        "era": {"enum": ["legacy", "modern"]},
        "tools": {"type": "integer", "minimum": 0},
        "error": {"type": "string", "description": "Why it is not ready; names no secret."},
        "retry_in": {"type": "number", "description": "Seconds until the next attempt."},
    },
}


def routes(servers: Callable[[], Iterable[ServerStatus]]) -> list[Route]:
    """``servers`` gives the state of now and never waits."""

    async def listing(_request: web.Request) -> web.Response:
        return answer({"servers": [view.server(each) for each in servers()]})

    listed = {"$ref": "#/components/schemas/Server"}
    return [
        Route(
            "GET",
            "/v1/servers",
            listing,
            Role.VIEWER,
            "servers",
            "Every server and its state.",
            {
                200: Answer(
                    "The servers.",
                    {
                        "type": "object",
                        "required": ["servers"],
                        "properties": {"servers": {"type": "array", "items": listed}},
                    },
                )
            },
            components={"Server": SERVER},
        )
    ]
