"""The page at the admin listener: a handful of files that come with the package.

They hold no state and no secret, so over TCP they are served before anybody has signed in; all
that is shown is fetched from the API with the viewer's own token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from aiohttp import web

from sidecar.admin.api import ACTOR, Answer, Route, answer
from sidecar.admin.roles import Role

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_INDEX: Final = "index.html"

HEADERS: Final[Mapping[str, str]] = {
    # Nothing inline, nothing from elsewhere, no frame around it, no form that leaves; and no text
    # can become markup or script, whoever wrote it (Trusted Types without a policy).
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is served."""

    body: bytes
    content_type: str
    etag: str


def files() -> dict[str, File]:
    """By path: ``/`` and ``/page/NAME``. Reads them from the package."""
    found: dict[str, File] = {}
    for entry in resources.files("sidecar.admin").joinpath("static").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is None:
            continue
        body = entry.read_bytes()
        path = "/" if entry.name == _INDEX else f"/page/{entry.name}"
        found[path] = File(body, kind, hashlib.sha256(body).hexdigest()[:32])
    return found


def serving(file: File) -> Handler:
    """The handler that answers with a file, or with 304 to whoever has it."""

    async def handle(request: web.Request) -> web.Response:
        headers = {**HEADERS, "ETag": f'"{file.etag}"'}
        had = request.if_none_match or ()
        if any(tag.value == file.etag for tag in had):
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=file.body, content_type=file.content_type, charset="utf-8", headers=headers
        )

    return handle


def me() -> Route:
    """``GET /v1/me``: as whom one is signed in."""

    async def handle(request: web.Request) -> web.Response:
        actor = request[ACTOR]
        return answer({"name": actor.name, "role": str(actor.role)})

    return Route(
        "GET",
        "/v1/me",
        handle,
        Role.VIEWER,
        "me",
        "Whose token this is, and how far it reaches.",
        {
            200: Answer(
                "Name and role.",
                {
                    "type": "object",
                    "required": ["name", "role"],
                    "properties": {
                        "name": {"type": "string"},
                        "role": {"enum": [str(role) for role in Role]},
                    },
                },
            )
        },
    )
