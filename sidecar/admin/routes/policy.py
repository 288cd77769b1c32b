"""``GET /v1/policy``: what is in force. ``POST /v1/policy/eval``: what it would decide."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from sidecar.admin.api import Answer, Problem, Route, answer, read_object
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.model import JsonObject, Phase
from sidecar.policy import shapes
from sidecar.policy.guard import Guarded
from sidecar.policy.phases import ANSWERS
from sidecar.policy.reading import BadInput, read_input

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}

POLICY = {
    "type": "object",
    "required": ["revision", "engine", "default", "shipped", "paths", "loaded_at", "warnings"],
    "properties": {
        "revision": {"type": ["string", "null"], "description": "sha256 (hex) of all files."},
        "engine": _TEXT,
        "default": {"enum": ["allow", "deny"]},
        "shipped": _TEXTS,
        "paths": _TEXTS,
        "loaded_at": {"type": ["string", "null"], "format": "date-time"},
        "warnings": _TEXTS,
        "error": {
            "type": "object",
            "description": "Why the files as they are now are not in force.",
            "required": ["at", "faults"],
            "properties": {"at": {"type": "string", "format": "date-time"}, "faults": _TEXTS},
        },
    },
}
DECISION = {
    "type": "object",
    "required": ["decision", "rule", "rules", "policy", "revision", "message", "mode", "labels"],
    "properties": {
        "decision": {"enum": sorted(frozenset().union(*ANSWERS.values()))},
        "rule": {"type": "string", "description": "policy/id, default, or egress/why."},
        "rules": _TEXTS,
        "policy": _TEXT,
        "revision": _TEXT,
        "message": {"type": ["string", "null"]},
        "mode": {"enum": ["enforce", "audit"]},
        "would": {"type": ["string", "null"]},
        "error": {"type": ["object", "null"]},
        "labels": _TEXTS,
    },
}
INPUT = {
    "type": "object",
    "description": "What a decision is made upon; what is absent is absent.",
    "properties": {
        "phase": {"enum": [phase.value for phase in Phase], "default": "call"},
        "now": {"type": ["string", "number"]},
        "addresses": {"type": "array"},
        "reason": _TEXT,
    },
    "additionalProperties": {"type": "object"},
}


def routes(status: Callable[[], JsonObject], current: Callable[[], Guarded]) -> list[Route]:
    """``status`` tells of the load, ``current`` gives the policy in force."""

    async def show(_request: web.Request) -> web.Response:
        return answer(status())

    async def evaluate(request: web.Request) -> web.Response:
        try:
            phase, given = read_input(await read_object(request))
        except BadInput as error:
            raise Problem(422, "bad_input", str(error)) from None
        # Not recorded: nothing was decided about anything.
        return answer(shapes.decision(current().decide(phase, given)))

    return [
        Route(
            "GET",
            "/v1/policy",
            show,
            Role.VIEWER,
            "policy",
            "The policies in force, and why newer files are not.",
            {200: Answer("The state.", {"$ref": "#/components/schemas/Policy"})},
            components={"Policy": POLICY},
        ),
        Route(
            "POST",
            "/v1/policy/eval",
            evaluate,
            Role.VIEWER,
            "policy",
            "Decide an input under the policies in force; nothing happens.",
            {
                200: Answer("The decision.", {"$ref": "#/components/schemas/Decision"}),
                **refusals(s422="It is no input."),
            },
            body={"$ref": "#/components/schemas/Input"},
            components={"Decision": DECISION, "Input": INPUT},
        ),
    ]
