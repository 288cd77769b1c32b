"""``/v1/calls``: parked calls, and a person's answer to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from typing import cast

from aiohttp import web

from sidecar.admin.api import ACTOR, Answer, Param, Problem, Route, answer, query, read_object
from sidecar.admin.openapi import refusals
from sidecar.admin.roles import Role
from sidecar.admin.view import present
from sidecar.gate.ledger import Ledger
from sidecar.model import Json, JsonObject, Tool
from sidecar.parking import Missing, Parked, Parking, State, WrongState
from sidecar.parking.answers import moment
from sidecar.parking.picture import differences, folded
from sidecar.ports.store import StoreError
from sidecar.wire import json

MOST = 500
"""Calls of one page."""
MOST_DEPTH = 512
"""How deep arguments nest at most: what `limits.depth` may be."""
ANSWERED = "answered"
"""The one value of ``state`` that is no state: everything that has been answered, or has ended."""

_TEXT = {"type": "string"}
_TIME = {"type": "string", "format": "date-time"}
_STATE = {"type": "string", "enum": [state.value for state in State]}

CALL = {
    "type": "object",
    "required": ["id", "state", "tool", "server", "principal", "rules", "asked_at", "expires_at"],
    "properties": {
        "id": _TEXT,
        "state": _STATE,
        "tool": _TEXT,
        "server": _TEXT,
        "principal": _TEXT,
        "session": _TEXT,
        "client": _TEXT,
        "kind": _TEXT,
        "trusted": {"type": "boolean"},
        "args": {"type": "object", "description": "Of one call only; lists leave them out."},
        "args_dropped": {"type": "boolean"},
        "hidden": {"type": "array", "items": _TEXT},
        "rules": {"type": "array", "items": _TEXT},
        "message": _TEXT,
        "reasons": {
            "type": "array",
            "description": "The rules that ask and what each says, where more than one rule "
            "matched. Of one call only.",
            "items": {
                "type": "object",
                "required": ["rule", "message"],
                "properties": {"rule": _TEXT, "message": _TEXT},
            },
        },
        "labels": {"type": "array", "items": {}},
        "hints": {"type": "object"},
        "description": _TEXT,
        "definition": _TEXT,
        "asked_revision": _TEXT,
        "asked_at": _TIME,
        "expires_at": _TIME,
        "answered_by": _TEXT,
        "answered_at": _TIME,
        "way": _TEXT,
        "why": _TEXT,
        "ended_at": _TIME,
        "ended": _TEXT,
        "parent": {
            **_TEXT,
            "description": "The id of the coding agent's call in which it came up; answering by "
            "that id answers this one, while no other of its questions waits.",
        },
        "ran_as": {**_TEXT, "description": "The id of the call that ran, in its span and answer."},
        "held": {"type": "boolean", "description": "Whether a request is held open for it."},
        "polled": {"type": "boolean", "description": "Whether its agent was told to call again."},
        "folded": {
            "type": "array",
            "items": _TEXT,
            "description": "JSON pointers of arguments that the tool's schema calls writeOnly: "
            "to be shown on request. Of trusted servers, of one call only.",
        },
        "compared": {
            "type": "object",
            "description": "The call of this tool that was approved last, before this one was "
            "answered or ended. Of one call only.",
            "required": ["id", "args"],
            "properties": {
                "id": _TEXT,
                "args": {"type": "object"},
                "answered_by": _TEXT,
                "answered_at": _TIME,
                "differences": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["path"],
                        "properties": {"path": _TEXT, "before": {}, "now": {}},
                    },
                },
                "more_differences": {"type": "boolean"},
            },
        },
        "previous": {
            "type": "object",
            "description": "The parked call before this one, of the same call or of the tool "
            "before it changed; shaped as in lists. Of one call only.",
        },
        "redefined": {
            "type": "object",
            "description": "The tool's definition as it was for the call `since`, and as it is "
            "asked for now, where the two differ. Of one call only.",
            "required": ["since"],
            "properties": {"since": _TEXT, "before": {}, "now": {}},
        },
    },
}
_ID = Param("id", "The call's id.", _TEXT, required=True)


def shape(parked: Parked) -> JsonObject:
    """A parked call without its arguments: what the index holds."""
    return present(
        id=parked.id,
        state=parked.state.value,
        tool=parked.tool,
        server=parked.server,
        principal=parked.principal,
        session=parked.session or None,
        client=parked.client or None,
        kind=parked.kind,
        trusted=parked.trusted,
        hidden=list(parked.hidden) or None,
        rules=list(parked.rules),
        message=parked.message or None,
        labels=list(parked.labels) or None,
        definition=parked.definition or None,
        asked_revision=parked.asked_revision,
        asked_at=moment(parked.asked_at),
        expires_at=moment(parked.expires_at),
        answered_by=parked.answered_by or None,
        answered_at=moment(parked.answered_at),
        way=parked.way or None,
        why=parked.why or None,
        ended_at=moment(parked.ended_at),
        ended=parked.ended or None,
        parent=parked.parent or None,
        ran_as=parked.ran_as or None,
        held=bool(parked.nodes) or None,
        polled=parked.polled or None,
    )


def _plain(parked: Parked) -> Json:
    """The arguments, for looking into."""
    return json.decode(parked.args, depth=MOST_DEPTH)


class Calls:
    """The handlers. ``tool`` gives a tool of now by server and its own name."""

    def __init__(
        self, parking: Parking, ledger: Ledger, tool: Callable[[str, str], Tool | None]
    ) -> None:
        self._parking = parking
        self._ledger = ledger
        self._tool = tool

    async def listing(self, request: web.Request) -> web.Response:
        """One page, newest first unless ``order=oldest``."""
        given = query(request, "state", "limit", "after", "order")
        wanted = _wanted(given.get("state"))
        oldest = given.get("order", "newest")
        if oldest not in {"newest", "oldest"}:
            raise Problem(400, "bad_query", "order is newest or oldest")
        index = self._parking.book.index
        rows, more = index.page(
            wanted,
            after=given.get("after"),
            limit=_limit(given.get("limit")),
            oldest_first=oldest == "oldest",
        )
        calls = [shape(row.parked) for row in rows]
        return answer(
            present(calls=calls, counts=index.counts(), next=rows[-1].parked.id if more else None)
        )

    async def show(self, request: web.Request) -> web.Response:
        """One call with its arguments, and the last approved one to compare them with."""
        try:
            parked = await self._parking.book.get(request.match_info["id"])
            return answer(await self._whole(parked))
        except Missing:
            raise _no_call() from None
        except StoreError as error:
            raise _no_store(error) from None

    async def _whole(self, parked: Parked) -> JsonObject:
        found = shape(parked)
        found["args"] = parked.args
        if parked.reasons:
            found["reasons"] = [{"rule": r, "message": text} for r, text in parked.reasons]
        if parked.args_dropped:
            found["args_dropped"] = True
        found["labels"] = self._labels(parked)
        tool = self._tool(parked.server, parked.upstream_name)
        if tool is not None:
            found["hints"] = asdict(tool.hints)
        book, last = self._parking.book, None
        definition = await book.definition(parked.definition)
        if isinstance(definition, dict) and isinstance(definition.get("description"), str):
            found["description"] = definition["description"]
        if isinstance(definition, dict) and parked.trusted:
            # Not for a server that nobody trusts: it could fold away what matters.
            found["folded"] = folded(definition.get("inputSchema"), _plain(parked)) or None
        with contextlib.suppress(Missing):
            # Of what is over: what could be compared with then, not what came after it.
            over = parked.answered_at or parked.ended_at or None
            id = book.index.last_approved(parked.server, parked.tool, over)
            last = await book.get(id) if id is not None else None
        if last is not None and not last.args_dropped:
            told, more = differences(_plain(last), _plain(parked))
            found["compared"] = present(
                id=last.id,
                args=last.args,
                answered_by=last.answered_by,
                answered_at=moment(last.answered_at),
                differences=told,
                more_differences=more or None,
            )
        row = book.index.get(parked.previous)
        before = row.parked if row is not None else None
        if before is not None:
            found["previous"] = shape(before)
        # What a person approved last, else what this call asked for before it changed.
        known = last or before
        if known is not None and known.definition != parked.definition:
            was = await book.definition(known.definition)
            found["redefined"] = present(since=known.id, before=was, now=definition)
        return present(**found)

    def _labels(self, parked: Parked) -> list[object]:
        """The labels it carried, each with the results that brought it where they are known."""
        known: dict[object, object] = {}
        for entry in self._ledger.listing():
            if entry["principal"] == parked.principal:
                for held in cast("list[JsonObject]", entry["labels"]):
                    known[held["label"]] = held
        return [known.get(label, {"label": label}) for label in parked.labels]

    async def approve(self, request: web.Request) -> web.Response:
        return await self._answer(request, approve=True)

    async def deny(self, request: web.Request) -> web.Response:
        return await self._answer(request, approve=False)

    async def _answer(self, request: web.Request, *, approve: bool) -> web.Response:
        body = await read_object(request) if request.can_read_body else {}
        why = body.get("why", "")
        if not isinstance(why, str) or set(body) - {"why"}:
            raise Problem(400, "bad_body", 'the body is {} or {"why": "the reason, as text"}')
        actor = request[ACTOR]
        way = "socket" if actor.name.startswith("uid:") else "token"
        try:
            parked = await self._parking.answer(
                request.match_info["id"], approve=approve, by=actor.name, way=way, why=why
            )
        except Missing:
            raise _no_call() from None
        except WrongState as wrong:
            raise Problem(409, "conflict", wrong.why, more={"call": shape(wrong.parked)}) from None
        except StoreError as error:
            raise _no_store(error) from None
        return answer(shape(parked))


def routes(
    parking: Parking, ledger: Ledger, tool: Callable[[str, str], Tool | None]
) -> list[Route]:
    """``tool`` gives a tool of now by its server and its own name, and never waits."""
    calls = Calls(parking, ledger, tool)
    body = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"why": {"type": "string", "description": "Told to the agent if denied."}},
    }
    missing = refusals(s404="no such call", s503="the store does not answer")
    conflict = refusals(s409="it is answered already, or over; `call` is how it stands")
    listed = {
        "type": "object",
        "required": ["calls", "counts"],
        "properties": {
            "calls": {"type": "array", "items": CALL},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "next": {"type": "string", "description": "Give it as `after` for what follows."},
        },
    }
    return [
        Route(
            "GET",
            "/v1/calls",
            calls.listing,
            Role.VIEWER,
            "calls",
            "Parked calls, without their arguments.",
            {200: Answer("One page, and how many there are in each state.", listed)},
            query=(
                Param(
                    "state",
                    "Those in this state alone; `answered`: all that do not wait any more.",
                    {"type": "string", "enum": [*_STATE["enum"], ANSWERED]},
                ),
                Param("order", "By when they were asked.", {"enum": ["newest", "oldest"]}),
                Param("limit", "At most so many.", {"type": "integer", "minimum": 1}),
                Param("after", "The `next` of the page before.", _TEXT),
            ),
        ),
        Route(
            "GET",
            "/v1/calls/{id}",
            calls.show,
            Role.VIEWER,
            "calls",
            "One parked call, with its arguments and the last approved ones to compare.",
            {200: Answer("The call.", CALL), **missing},
            path_params=(_ID,),
        ),
        *(
            Route(
                "POST",
                f"/v1/calls/{{id}}/{what}",
                handler,
                Role.APPROVER,
                "calls",
                about,
                {200: Answer("The call as it stands now.", CALL), **missing, **conflict},
                body=body,
                body_required=False,
                path_params=(_ID,),
            )
            for what, handler, about in (
                ("approve", calls.approve, "Let the call run, once."),
                ("deny", calls.deny, "Refuse the call; the agent is told why."),
            )
        ),
    ]


def _wanted(state: str | None) -> Callable[[Parked], bool]:
    if state is None:
        return lambda parked: True
    if state == ANSWERED:
        return lambda parked: parked.state is not State.WAITING
    try:
        only = State(state)
    except ValueError:
        known = ", ".join([*(each.value for each in State), ANSWERED])
        raise Problem(400, "bad_query", f"there is no such state; known: {known}") from None
    return lambda parked: parked.state is only


def _limit(text: str | None) -> int:
    if text is None:
        return MOST
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise Problem(400, "bad_query", "limit is a whole number from 1")
    return min(int(text), MOST)


def _no_call() -> Problem:
    return Problem(404, "not_found", "there is no such call (any more); `sidecar calls` lists them")


def _no_store(error: StoreError) -> Problem:
    return Problem(503, "store_unavailable", f"the call is as it was: {error}; try again")
