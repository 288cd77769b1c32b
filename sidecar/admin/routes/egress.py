"""``POST /v1/egress/check``: what would be decided about a URL. Nothing is dialled."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from sidecar.admin.api import Answer, Problem, Route, answer, read_object
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.admin.routes.policy import DECISION
from sidecar.config import ServerConfig
from sidecar.egress.addresses import CLASSES
from sidecar.egress.check import REASONS
from sidecar.egress.house import Egress

_TEXT = {"type": "string"}
_CLASS = {"enum": list(CLASSES)}
CHECKED = {
    "allOf": [
        DECISION,
        {
            "type": "object",
            "required": ["verdict", "addresses"],
            "properties": {
                "verdict": {
                    "type": "object",
                    "required": ["ok", "why", "class"],
                    "properties": {"ok": {"type": "boolean"}, "why": _TEXT, "class": _CLASS},
                },
                "url": {
                    "type": "object",
                    "description": "As it was read; absent where it cannot be.",
                    "required": ["scheme", "host", "port", "path"],
                    "properties": {
                        "scheme": _TEXT,
                        "host": _TEXT,
                        "port": {"type": "integer"},
                        "path": _TEXT,
                    },
                },
                "addresses": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["ip", "class"],
                        "properties": {"ip": _TEXT, "class": _CLASS},
                    },
                },
            },
        },
    ]
}
_ASKED = {
    "url": {"type": "string", "description": "What would be dialled."},
    "reason": {"enum": list(REASONS), "default": "added"},
    "server": {
        "type": "string",
        "description": "The server for which; about a configured one, rules alone decide.",
    },
}
QUESTION = {
    "type": "object",
    "required": ["url"],
    "additionalProperties": False,
    "properties": _ASKED,
}


def routes(egress: Egress, server: Callable[[str], ServerConfig | None]) -> list[Route]:
    """``server`` gives the configuration of a server that runs here."""

    async def check(request: web.Request) -> web.Response:
        body = await read_object(request)
        if body.keys() - _ASKED.keys():
            raise Problem(422, "bad_input", f"unknown key; there are {', '.join(_ASKED)}")
        url, reason, name = body.get("url"), body.get("reason", "added"), body.get("server")
        if not isinstance(url, str):
            raise Problem(422, "bad_input", "url is missing, or is no text")
        if reason not in REASONS:
            raise Problem(422, "bad_input", f"reason is one of {', '.join(REASONS)}")
        if name is not None and not isinstance(name, str):
            raise Problem(422, "bad_input", "server is a server's name")
        config = server(name) if name is not None else None
        if name is not None and config is None:
            raise Problem(422, "unknown_server", "no server of this name runs here")
        checked = await egress.asked(url, reason, config)
        return answer(checked.as_json())

    return [
        Route(
            "POST",
            "/v1/egress/check",
            check,
            Role.OPERATOR,
            "egress",
            "What would be decided about a URL, were it dialled. Nothing is.",
            {
                200: Answer("The decision, and what it was made upon.", CHECKED),
                **refusals(s422="The question is none."),
            },
            body=QUESTION,
        )
    ]
