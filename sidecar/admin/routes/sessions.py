"""``GET /v1/sessions``, and the trust labels of their principals: ``DELETE /v1/labels/…``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from sidecar.admin.api import Answer, Param, Problem, Route, answer
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.gate.ledger import Ledger
from sidecar.model import JsonObject
from sidecar.ports.store import StoreError

_TEXT = {"type": "string"}
_TIME = {"type": "number", "description": "In seconds since 1970."}

LABELS = {
    "type": "object",
    "required": ["principal", "labels"],
    "properties": {
        "principal": _TEXT,
        "labels": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["label", "at", "until", "results"],
                "properties": {
                    "label": _TEXT,
                    "session": {"type": "string", "description": "Absent: of every session."},
                    "at": _TIME,
                    "until": _TIME,
                    "results": {
                        "type": "array",
                        "description": "The latest that brought it.",
                        "items": {
                            "type": "object",
                            "required": ["call", "target", "at"],
                            "properties": {"call": _TEXT, "target": _TEXT, "at": _TIME},
                        },
                    },
                },
            },
        },
    },
}


def routes(sessions: Callable[[], Iterable[JsonObject]], ledger: Ledger) -> list[Route]:
    """``sessions`` gives the downstream sessions of now and never waits."""

    async def listing(_request: web.Request) -> web.Response:
        return answer({"sessions": list(sessions()), "labels": ledger.listing()})

    async def clear(request: web.Request) -> web.Response:
        principal = request.match_info["principal"]
        try:
            cleared = await ledger.clear(principal)
        except StoreError as error:
            detail = f"the labels are as they were: {error}"
            raise Problem(503, "store_unavailable", detail) from None
        if not cleared:
            raise Problem(404, "not_found", f"{principal!r} has no labels")
        return web.Response(status=204)

    return [
        Route(
            "GET",
            "/v1/sessions",
            listing,
            Role.VIEWER,
            "sessions",
            "Every session of an agent, and the labels of every principal.",
            {
                200: Answer(
                    "The sessions, and by principal what was gathered from which results.",
                    {
                        "type": "object",
                        "required": ["sessions", "labels"],
                        "properties": {
                            "sessions": {"type": "array", "items": {"type": "object"}},
                            "labels": {
                                "type": "array",
                                "items": {"$ref": "#/components/schemas/Labels"},
                            },
                        },
                    },
                )
            },
            components={"Labels": LABELS},
        ),
        Route(
            "DELETE",
            "/v1/labels/{principal}",
            clear,
            Role.OPERATOR,
            "sessions",
            "Forget a principal's labels.",
            {
                204: Answer("They are gone."),
                **refusals(s404="It has none.", s503="The store is lost; they stay."),
            },
            changes="labels.clear",
            path_params=(Param("principal", "The principal.", _TEXT, required=True),),
        ),
    ]
