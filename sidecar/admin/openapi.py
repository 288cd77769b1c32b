"""The OpenAPI document (3.1) of the admin API, made of its routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from sidecar import __version__
from sidecar.admin.api import PROBLEM, Answer, Param, Route, answer
from sidecar.admin.roles import Role
from sidecar.model import JsonObject

_REFUSAL = {"$ref": "#/components/responses/Refused"}


def route(routes: Callable[[], Sequence[Route]]) -> Route:
    """``GET /openapi.json``, of the routes and itself."""

    async def handle(_request: web.Request) -> web.Response:
        return answer(document(routes()))

    return Route(
        "GET",
        "/openapi.json",
        handle,
        Role.VIEWER,
        "openapi",
        "This document.",
        {200: Answer("An OpenAPI document.", {"type": "object", "required": ["openapi"]})},
    )


def document(routes: Sequence[Route]) -> JsonObject:
    """The document. Everything in it is plain JSON."""
    paths: dict[str, dict[str, object]] = {}
    schemas: dict[str, object] = {"Problem": PROBLEM}
    for each in routes:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
        schemas.update(each.components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sidecar admin API",
            "version": __version__,
            "description": (
                "On a unix socket the peer's uid is its authority; on TCP a bearer token is."
            ),
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Refused": {
                    "description": "What went wrong and what to do next.",
                    "content": {
                        "application/problem+json": {
                            "schema": {"$ref": "#/components/schemas/Problem"}
                        }
                    },
                }
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, object]:
    path = route.path.strip("/").replace("/", "_").replace("{", "").replace("}", "")
    responses: dict[str, object] = {
        str(status): _response(each) for status, each in route.answers.items()
    }
    # 400 and 421 are about the Host header.
    shared = [400, 401, 403, 421]
    if route.body is not None:
        shared += [413, 415]
    for status in shared:
        responses.setdefault(str(status), _REFUSAL)
    operation: dict[str, object] = {
        "operationId": f"{route.method.lower()}_{path}".replace(".", "_"),
        "summary": route.about,
        "description": f"Least role: {route.role}.",
        "tags": [route.noun],
        "x-role": str(route.role),
        "responses": dict(sorted(responses.items())),
    }
    parameters = [_parameter(each, "path") for each in route.path_params]
    parameters += [_parameter(each, "query") for each in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {"application/json": {"schema": route.body}},
        }
    return operation


def _response(each: Answer) -> dict[str, object]:
    response: dict[str, object] = {"description": each.about}
    if each.schema is not None:
        response["content"] = {each.content_type: {"schema": each.schema}}
    elif each.content_type != "application/json":
        # A stream: there is something, and no schema says what.
        response["content"] = {each.content_type: {}}
    return response


def refusals(**statuses: str) -> dict[int, Answer]:
    """Answers that are problems, as ``refusals(s404="no such server")``."""
    problem = {"$ref": "#/components/schemas/Problem"}
    return {
        int(status.removeprefix("s")): Answer(about, problem, "application/problem+json")
        for status, about in statuses.items()
    }


def _parameter(each: Param, where: str) -> dict[str, object]:
    return {
        "name": each.name,
        "in": where,
        "description": each.about,
        "required": where == "path" or each.required,
        "schema": each.schema,
    }
