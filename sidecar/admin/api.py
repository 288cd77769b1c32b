"""What every module of routes is made of: a route, what it answers, and how it says no.

Errors are problem+json (RFC 9457). Bodies are JSON objects within a bound, with duplicate keys
refused. A route says its least role and its shapes; the OpenAPI document is made of the routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

import msgspec
from aiohttp import web

from sidecar.admin.roles import Actor, Role
from sidecar.model import JsonObject
from sidecar.wire.json import BadJson, decode_request

MOST_BODY = 1 << 20
"""Bytes of a request's body."""
_DEPTH = 64

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Schema: TypeAlias = Mapping[str, object]

ACTOR: web.RequestKey[Actor] = web.RequestKey("actor", Actor)
"""Who asks; set before a handler runs."""
TARGETS: web.RequestKey[list[str]] = web.RequestKey("targets", list)
"""What a route that changes something was about, beside what its path names; a handler adds."""
STREAMS: web.AppKey[set[Callable[[], None]]] = web.AppKey("streams", set)
"""How to end each answer that would go on for ever; it registers here while it is open."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a route: what it means, and the JSON Schema of its body (none: no body)."""

    about: str
    schema: Schema | None = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter in the path or the query."""

    name: str
    about: str
    schema: Schema
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. ``role`` is the least that may use it; ``noun`` groups it in the document.

    ``path`` holds parameters as ``{name}``, each described in ``path_params``. ``body`` is the
    schema of the JSON object that the request carries. ``answers`` need not name the refusals
    that every route shares (400, 401, 403, 421, and for a body 413, 415).
    """

    method: str
    path: str
    handler: Handler
    role: Role
    noun: str
    about: str
    answers: Mapping[int, Answer]
    body: Schema | None = None
    body_required: bool = True
    path_params: tuple[Param, ...] = ()
    query: tuple[Param, ...] = ()
    changes: str = ""
    """What it is called in the audit trail (``servers.put``). Empty: it changes nothing, or what it
    changes has events of its own."""
    components: Mapping[str, Schema] = field(default_factory=dict)
    """Schemas that this route's own refer to as ``#/components/schemas/NAME``."""


class Problem(Exception):
    """Raised by a handler: answered as problem+json.

    ``reason`` is a word for programs (``not_found``, ``configured`` …), ``detail`` says what to
    do next and holds no secret. ``more`` are further members of the problem object.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        detail: str,
        *,
        more: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.more = more or {}
        self.headers = headers or {}


def problem(error: Problem) -> web.Response:
    """One problem+json answer."""
    body = {
        **error.more,
        "type": "about:blank",
        "title": _title(error.status),
        "status": error.status,
        "reason": error.reason,
        "detail": error.detail,
    }
    return web.Response(
        status=error.status,
        body=msgspec.json.encode(body),
        content_type="application/problem+json",
        headers={"Cache-Control": "no-store", **error.headers},
    )


def _title(status: int) -> str:
    """The status in words (RFC 9110 section 15)."""
    try:
        return _RENAMED.get(status) or HTTPStatus(status).phrase
    except ValueError:
        return "Error"


# Python had the names of earlier RFCs for them until 3.13.
_RENAMED = {413: "Content Too Large", 422: "Unprocessable Content"}

PROBLEM: Schema = {
    "type": "object",
    "description": "What went wrong and what to do next (RFC 9457).",
    "required": ["type", "title", "status", "reason", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "reason": {"type": "string", "description": "A word for programs."},
        "detail": {"type": "string", "description": "A sentence for people."},
    },
}


def answer(body: object, status: int = 200) -> web.Response:
    """One JSON answer, not to be cached: it is a state of now."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


async def read_object(request: web.Request, *, most: int = MOST_BODY) -> JsonObject:
    """The request's body.

    Raises:
        Problem: 415 for another content type, 413 over the bound, 400 for what is no JSON
            object or has a key twice.
    """
    if request.content_type != "application/json":
        raise Problem(415, "content_type", "send the body as application/json")
    if request.content_length is not None and request.content_length > most:
        raise _too_large(most)
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > most:
            raise _too_large(most)
    try:
        value = decode_request(bytes(body), _DEPTH)
    except BadJson as error:
        raise Problem(400, "bad_json", f"the body is not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise Problem(400, "bad_json", "the body must be a JSON object")
    return value


def _too_large(most: int) -> Problem:
    return Problem(413, "too_large", f"the body has more than {most} bytes")


def query(request: web.Request, *names: str) -> dict[str, str]:
    """The query's parameters, each at most once.

    Raises:
        Problem: 400 for one that is not among ``names``, or stands twice.
    """
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in names:
            known = ", ".join(names) or "none"
            raise Problem(400, "bad_query", f"an unknown parameter in the query; known: {known}")
        if name in found:
            raise Problem(400, "bad_query", f"the parameter {name} stands in the query twice")
        found[name] = value
    return found
