"""``/v1/servers``: which there are, adding and removing; ``POST /v1/reconcile``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from aiohttp import web

from sidecar.admin import view
from sidecar.admin.api import ACTOR, Answer, Param, Problem, Route, answer, read_object
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.config import values
from sidecar.config.nodes import Plain
from sidecar.config.runtime import OPTIONS
from sidecar.model import JsonObject, ServerStatus
from sidecar.ports.store import StoreError
from sidecar.upstream.registry import Registry
from sidecar.upstream.runtime import NotFound, Refused, warnings

SERVER = {
    "type": "object",
    "required": ["name", "source", "transport", "state", "tools"],
    "properties": {
        "name": {"type": "string"},
        "source": {"enum": ["configured", "runtime"]},
        "transport": {"enum": ["stdio", "http", "sse", "acp"]},
        "state": {"enum": ["connecting", "ready", "backoff", "failed", "shadowed"]},
        "era": {"enum": ["legacy", "modern"]},
        "tools": {"type": "integer", "minimum": 0},
        "error": {"type": "string", "description": "Why it is not ready; names no secret."},
        "retry_in": {"type": "number", "description": "Seconds until the next attempt."},
        "warnings": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Where it was added just now: what is unwise about its options.",
        },
    },
}
_NAMES = {"type": "array", "items": {"type": "string"}}
RECONCILED = {
    "type": "object",
    "required": ["added", "removed", "changed", "servers"],
    "properties": {
        "added": _NAMES,
        "removed": _NAMES,
        "changed": _NAMES,
        "servers": {"type": "integer", "minimum": 0, "description": "In the store."},
    },
}
_NAME = Param(
    "name",
    "The server's name.",
    {"type": "string", "pattern": values.NAME, "maxLength": values.LONGEST_NAME},
    required=True,
)
# Conflicts with what is there; everything else that is refused is a matter of the options.
_CONFLICTS = ("configured", "reserved", "alike", "too_many")


def routes(servers: Callable[[], Iterable[ServerStatus]], registry: Registry) -> list[Route]:
    """``servers`` gives the state of now, sorted by name, and never waits."""

    async def listing(_request: web.Request) -> web.Response:
        return answer({"servers": [view.server(each) for each in servers()]})

    async def put(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        options = cast(Plain, await read_object(request))
        try:
            new = await registry.add(name, options, by=request[ACTOR].name)
        except Refused as error:
            raise _refused(error) from None
        except StoreError as error:
            raise _lost(error) from None
        told = cast("list[object]", warnings(options))
        state = _now(servers(), name)
        return answer({**state, "warnings": told} if told else state, 201 if new else 200)

    async def delete(request: web.Request) -> web.Response:
        try:
            await registry.remove(request.match_info["name"], by=request[ACTOR].name)
        except NotFound as error:
            raise Problem(404, error.reason, str(error)) from None
        except Refused as error:
            raise _refused(error) from None
        except StoreError as error:
            raise _lost(error) from None
        return web.Response(status=204)

    async def reconcile(_request: web.Request) -> web.Response:
        try:
            return answer((await registry.reconcile()).as_json())
        except StoreError as error:
            raise _lost(error) from None

    one = {"$ref": "#/components/schemas/Server"}
    lost = refusals(s503="The store is lost; nothing was changed.")
    return [
        Route(
            "GET",
            "/v1/servers",
            listing,
            Role.VIEWER,
            "servers",
            "Every server and its state, sorted by name.",
            {
                200: Answer(
                    "The servers.",
                    {
                        "type": "object",
                        "required": ["servers"],
                        "properties": {"servers": {"type": "array", "items": one}},
                    },
                )
            },
            components={"Server": SERVER},
        ),
        Route(
            "PUT",
            "/v1/servers/{name}",
            put,
            Role.OPERATOR,
            "servers",
            "Add a server, or replace one that was added.",
            {
                200: Answer("It was there, and is now what was sent.", one),
                201: Answer("It was added; every node connects to it.", one),
                **refusals(
                    s409="A configured server has this name, or there are too many.",
                    s422="The options are wrong, or the egress check says no.",
                ),
                **lost,
            },
            changes="servers.put",
            body={"$ref": "#/components/schemas/ServerOptions"},
            path_params=(_NAME,),
            components={"ServerOptions": OPTIONS.schema()},
        ),
        Route(
            "DELETE",
            "/v1/servers/{name}",
            delete,
            Role.OPERATOR,
            "servers",
            "Remove a server that was added, and close every connection to it on every node.",
            {
                204: Answer("It is gone."),
                **refusals(
                    s404="No server of this name was added.",
                    s409="It is a configured server.",
                ),
                **lost,
            },
            changes="servers.remove",
            path_params=(_NAME,),
        ),
        Route(
            "POST",
            "/v1/reconcile",
            reconcile,
            Role.OPERATOR,
            "servers",
            "Compare what runs here with the store, now.",
            {200: Answer("What that changed here.", RECONCILED), **lost},
            changes="servers.reconcile",
        ),
    ]


def _now(servers: Iterable[ServerStatus], name: str) -> JsonObject:
    for each in servers:
        if each.name == name and each.source == "runtime":
            return view.server(each)
    raise Problem(409, "removed", "it was added, and removed again by somebody else")


def _refused(error: Refused) -> Problem:
    more: JsonObject = {}
    if error.faults:
        more["faults"] = [{"path": each.path, "message": each.message} for each in error.faults]
    status = 409 if error.reason in _CONFLICTS else 422
    return Problem(status, error.reason, error.detail, more=more)


def _lost(error: StoreError) -> Problem:
    return Problem(503, "store_unavailable", f"nothing was changed: {error}")
