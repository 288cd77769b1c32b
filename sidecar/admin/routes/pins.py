"""``/v1/pins``: definitions of tools as they were first seen, and accepting those of now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from aiohttp import web

from sidecar.admin.api import TARGETS, Answer, Param, Problem, Route, answer, read_object
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.admin.view import present
from sidecar.gate.pins import Pins
from sidecar.model import Tool
from sidecar.ports.store import StoreError
from sidecar.wire import json

_TEXT = {"type": "string"}

PIN = {
    "type": "object",
    "required": ["name", "server", "upstream_name", "digest", "changed"],
    "properties": {
        "name": _TEXT,
        "server": _TEXT,
        "upstream_name": _TEXT,
        "digest": {"type": "string", "description": "sha256 (hex) of the definition of now."},
        "pinned": {"type": "string", "description": "The same of the pinned one."},
        "at": {"type": "number", "description": "When it was pinned, in seconds since 1970."},
        "changed": {"type": "boolean", "description": "Whether the two differ."},
    },
}
_PINNED = {
    "type": "object",
    "required": ["pinned"],
    "properties": {"pinned": {"type": "array", "items": _TEXT}},
}


def routes(pins: Pins, tools: Callable[[], Sequence[Tool]]) -> list[Route]:
    """``tools`` gives the catalog of now and never waits."""

    async def listing(_request: web.Request) -> web.Response:
        return answer({"pins": pins.listing(tools())})

    async def compare(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        tool = next((each for each in tools() if each.name == name), None)
        if tool is None:
            raise Problem(404, "not_found", f"there is no tool {name[:80]!r}")
        try:
            pinned = await pins.definition(tool)
        except StoreError as error:
            raise Problem(503, "store_unavailable", str(error)) from None
        now = json.decode(tool.own_json)
        return answer(present(name=name, pinned=pinned, definition=now))

    async def pin(request: web.Request) -> web.Response:
        body = await read_object(request)
        here = {tool.name: tool for tool in tools()}
        if body.get("all") is True and set(body) == {"all"}:
            chosen = list(here.values())
        else:
            names = body.get("names")
            texts = isinstance(names, list) and all(isinstance(each, str) for each in names)
            if set(body) != {"names"} or not isinstance(names, list) or not texts or not names:
                raise Problem(422, "bad_names", 'send {"names": ["server__tool"]} or {"all": true}')
            missing = [name for name in names if name not in here]
            if missing:
                raise Problem(
                    404,
                    "not_found",
                    f"there is no tool {str(missing[0])[:80]!r}; nothing was pinned",
                )
            chosen = [here[cast("str", name)] for name in dict.fromkeys(names)]
        try:
            for tool in chosen:
                await pins.pin(tool)
                if TARGETS in request:
                    request[TARGETS].append(tool.name)
        except StoreError as error:
            raise Problem(503, "store_unavailable", f"not every tool was pinned: {error}") from None
        return answer({"pinned": [tool.name for tool in chosen]})

    return [
        Route(
            "GET",
            "/v1/pins",
            listing,
            Role.VIEWER,
            "tools",
            "Every tool, and whether its definition is other than the pinned one.",
            {
                200: Answer(
                    "The tools in their order.",
                    {
                        "type": "object",
                        "required": ["pins"],
                        "properties": {
                            "pins": {"type": "array", "items": {"$ref": "#/components/schemas/Pin"}}
                        },
                    },
                )
            },
            components={"Pin": PIN},
        ),
        Route(
            "GET",
            "/v1/pins/{name}",
            compare,
            Role.VIEWER,
            "tools",
            "The pinned definition of a tool, and the one of now, to compare.",
            {
                200: Answer(
                    "Both as the server gave them; no pinned one where it was too long to keep.",
                    {
                        "type": "object",
                        "required": ["name", "definition"],
                        "properties": {
                            "name": _TEXT,
                            "pinned": {"type": "object"},
                            "definition": {"type": "object"},
                        },
                    },
                ),
                **refusals(s404="There is no such tool.", s503="The store is lost."),
            },
            path_params=(Param("name", "As it is offered: server__tool.", _TEXT, required=True),),
        ),
        Route(
            "POST",
            "/v1/pins",
            pin,
            Role.OPERATOR,
            "tools",
            "Accept definitions as they are now.",
            changes="pins.accept",
            answers={
                200: Answer("The names of what is pinned as it is now.", _PINNED),
                **refusals(
                    s404="There is no such tool.",
                    s422="It names nothing.",
                    s503="The store is lost.",
                ),
            },
            body={
                "type": "object",
                "properties": {
                    "names": {"type": "array", "items": _TEXT, "minItems": 1},
                    "all": {"const": True},
                },
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
            },
        ),
    ]
