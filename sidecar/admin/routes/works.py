"""``GET /v1/works``: the works of coding agents; ``POST /v1/sweep``: remove what has landed."""

from __future__ import annotations

from aiohttp import web

from sidecar.admin.api import Answer, Problem, Route, answer, read_object
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.ports.agents import AgentRuns

_TEXT = {"type": "string"}

WORK = {
    "type": "object",
    "required": ["harness", "checkout", "principal", "work", "branch", "path", "state"],
    "properties": {
        "harness": _TEXT,
        "checkout": _TEXT,
        "principal": {"type": "string", "description": "Who asked the agent."},
        "work": {"type": "string", "description": "The work's name."},
        "branch": {"type": "string", "description": "Without refs/heads/."},
        "path": {"type": "string", "description": "The worktree."},
        "state": {
            "enum": ["none", "idle", "working", "waiting"],
            "description": "Of its agent: there is none, it does nothing, works, or waits for "
            "a person.",
        },
        "base_ref": {"type": "string", "description": "Where it began and has to land."},
        "base": {"type": "string", "description": "The commit where it began."},
        "created": {"type": "number", "description": "In seconds since 1970."},
        "call": {"type": "string", "description": "The id of the call that it works on."},
        "waiting": {
            "type": "array",
            "description": "What its agent asked and nobody has answered yet.",
            "items": {
                "type": "object",
                "required": ["id", "tool", "title"],
                "properties": {"id": _TEXT, "tool": _TEXT, "title": _TEXT},
            },
        },
    },
}
SWEPT = {
    "type": "object",
    "required": ["removed", "kept", "dry_run"],
    "properties": {
        "removed": {"type": "array", "items": _TEXT, "description": "Paths of worktrees."},
        "kept": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "reason", "detail"],
                "properties": {
                    "path": _TEXT,
                    "reason": {"type": "string", "description": "A word for programs."},
                    "detail": {"type": "string", "description": "A sentence for people."},
                },
            },
        },
        "dry_run": {"type": "boolean", "description": "Nothing was removed: it would have been."},
    },
}
SWEEP = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "dry_run": {"type": "boolean", "description": "Tell only what would be removed and kept."}
    },
}


def routes(runs: AgentRuns) -> list[Route]:
    """``runs`` are there, and empty, also where no coding agent is configured."""

    async def listing(_request: web.Request) -> web.Response:
        return answer({"works": list(await runs.works())})

    async def sweep(request: web.Request) -> web.Response:
        given = await read_object(request) if request.can_read_body else {}
        unknown = given.keys() - {"dry_run"}
        dry_run = given.get("dry_run", False)
        if unknown or not isinstance(dry_run, bool):
            raise Problem(422, "options", "a sweep takes dry_run: true or false, and nothing else")
        return answer(await runs.sweep(dry_run=dry_run))

    return [
        Route(
            "GET",
            "/v1/works",
            listing,
            Role.VIEWER,
            "works",
            "Every work of a coding agent: a worktree and a branch.",
            {
                200: Answer(
                    "The works, sorted by harness, checkout, principal and name.",
                    {
                        "type": "object",
                        "required": ["works"],
                        "properties": {
                            "works": {
                                "type": "array",
                                "items": {"$ref": "#/components/schemas/Work"},
                            }
                        },
                    },
                ),
            },
            components={"Work": WORK},
        ),
        Route(
            "POST",
            "/v1/sweep",
            sweep,
            Role.OPERATOR,
            "works",
            "Remove every worktree whose work has landed and that holds nothing else.",
            {
                200: Answer("What was removed, and what was kept and why.", SWEPT),
                **refusals(s422="The options are wrong."),
            },
            changes="works.sweep",
            body=SWEEP,
            body_required=False,
        ),
    ]
