"""Lists: what a caller is shown, page by page, or whole for a model API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from sidecar.catalog import BadCursor, Entry, Kind, Shelf, View
from sidecar.catalog.formats import Format, as_anthropic, as_openai
from sidecar.catalog.splice import replace
from sidecar.gateway import agents
from sidecar.gateway.answers import UNAVAILABLE, UNAVAILABLE_MORE
from sidecar.gateway.roster import Roster
from sidecar.mcp.errors import invalid_params
from sidecar.mcp.methods import LISTS
from sidecar.model import Caller, Fields, JsonObject, Unroutable
from sidecar.model import Kind as Of
from sidecar.ports.gate import Gate
from sidecar.wire import json

KIND: Final[dict[str, Kind]] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "templates",
}

MOST_UNAVAILABLE: Final = 20
"""Servers that each page of a list names as missing; of more than that, it tells how many."""


class Lists:
    """Answers lists from the catalog; servers are not asked."""

    def __init__(self, roster: Roster, gate: Gate) -> None:
        self._roster = roster
        self._gate = gate
        # By server and format, valid as long as the server's tools are these very ones.
        self._formatted: dict[tuple[str, Format], tuple[tuple[Entry, ...], list[bytes]]] = {}

    async def page(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        """One page of the list that ``method`` asks for. Raises -32602 for a bad cursor."""
        cursor = params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise invalid_params("params.cursor is a string")
        view = View.of(caller)
        await self._roster.settle(view)
        self._roster.refresh()
        kind = KIND[method]
        try:
            page = self._roster.catalog.page(
                kind,
                view,
                cursor,
                listed=self._roster.listed,
                offers=self._offers(caller) if kind == "tools" else self._shows(kind, caller),
                shown=lambda entry, data: agents.shown(entry, data, caller),
            )
        except BadCursor:
            raise invalid_params(
                "params.cursor was not made here: list again without one"
            ) from None
        fields: Fields = {LISTS[method]: msgspec.Raw(page.items)}
        if page.cursor is not None:
            fields["nextCursor"] = page.cursor
        return self._noted(fields, view, kind)

    async def tools_as(
        self, format: Format, caller: Caller, separator: str | None, server: str | None
    ) -> Fields:
        """Every tool of the view in one format, under names that lead back here."""
        view = View(caller.principal.servers, None, caller.principal.harnesses)
        if server is not None and not self._roster.sees(view, server):
            raise Unroutable("unknown_server", f"there is no server {server!r} here")
        await self._roster.settle(view)
        self._roster.refresh()
        offers = self._offers(caller)
        shelves = [
            shelf
            for shelf in self._roster.catalog.shelves(view)
            if self._roster.listed(shelf.config.name)
            and (server is None or shelf.config.name == server)
        ]
        parts: list[bytes] = []
        if separator is None or separator == self._roster.catalog.separator:
            for shelf in shelves:
                if shelf.harness:
                    parts += self._agents(shelf, format, offers, caller)
                    continue
                tools = self._format(shelf, format)
                rows = shelf.rows["tools"]
                parts += [data for entry, data in zip(rows, tools, strict=True) if offers(entry)]
        else:
            # A name that leads to another tool, or that is there already, would be a trap.
            taken: set[str] = set()
            for shelf in shelves:
                if shelf.harness:
                    parts += self._agents(shelf, format, offers, caller)
                    continue
                for entry in shelf.rows["tools"]:
                    name = self._roster.catalog.separated(entry, view, separator)
                    if name not in taken and offers(entry):
                        taken.add(name)
                        parts.append(_render(format, name, entry.own_json))
        fields: Fields = {"tools": msgspec.Raw(b"[" + b",".join(parts) + b"]")}
        return self._noted(fields, View(view.globs, server, view.harnesses), "tools")

    def _agents(
        self, shelf: Shelf, format: Format, offers: Callable[[Entry], bool], caller: Caller
    ) -> list[bytes]:
        """A harness's tool, as this caller sees it; its name is the same whatever separates."""
        rendered: list[bytes] = []
        for entry in shelf.rows["tools"]:
            data = agents.shown(entry, entry.own_json, caller) if offers(entry) else None
            if data is not None:
                rendered.append(_render(format, entry.name, data))
        return rendered

    def _format(self, shelf: Shelf, format: Format) -> list[bytes]:
        rows = shelf.rows["tools"]
        if format == "mcp":
            return [entry.json for entry in rows]
        key = (shelf.config.name, format)
        known = self._formatted.get(key)
        if known is None or known[0] is not rows:
            known = (rows, [_render(format, entry.name, entry.own_json) for entry in rows])
            self._formatted[key] = known
        return known[1]

    def forget(self, server: str) -> None:
        """The server is gone."""
        for key in [key for key in self._formatted if key[0] == server]:
            del self._formatted[key]

    def _offers(self, caller: Caller) -> Callable[[Entry], bool]:
        offers = self._gate.offers
        return lambda entry: entry.tool is not None and offers(entry.tool, caller)

    def _shows(self, kind: Kind, caller: Caller) -> Callable[[Entry], bool]:
        shows = self._gate.shows
        of = Of.PROMPT if kind == "prompts" else Of.RESOURCE
        return lambda entry: shows(of, entry.server, entry.name, entry.key, caller)

    def _noted(self, fields: Fields, view: View, kind: Kind) -> Fields:
        missing = self._roster.unavailable(view, kind)
        if missing:
            meta: JsonObject = {UNAVAILABLE: missing[:MOST_UNAVAILABLE]}
            if len(missing) > MOST_UNAVAILABLE:
                meta[UNAVAILABLE_MORE] = len(missing) - MOST_UNAVAILABLE
            fields["_meta"] = meta
        return fields


def _render(format: Format, name: str, definition: bytes) -> bytes:
    if format == "anthropic":
        return as_anthropic(name, definition)
    if format == "openai":
        return as_openai(name, definition)
    return replace(definition, {"name": json.encode(name)})
