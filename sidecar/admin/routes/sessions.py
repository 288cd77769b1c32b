"""``GET /v1/sessions``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from sidecar.admin.api import Answer, Route, answer
from sidecar.admin.roles import Role
from sidecar.model import JsonObject


def routes(sessions: Callable[[], Iterable[JsonObject]]) -> list[Route]:
    """``sessions`` gives the downstream sessions of now and never waits."""

    async def listing(_request: web.Request) -> web.Response:
        return answer({"sessions": list(sessions())})

    return [
        Route(
            "GET",
            "/v1/sessions",
            listing,
            Role.VIEWER,
            "sessions",
            "Every session of an agent.",
            {
                200: Answer(
                    "The sessions.",
                    {
                        "type": "object",
                        "required": ["sessions"],
                        "properties": {"sessions": {"type": "array", "items": {"type": "object"}}},
                    },
                )
            },
        )
    ]
