"""What one server offers, kept up to date, and what each listing changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sidecar.config import Limits
from sidecar.mcp.headers import BadParamHeader, ParamHeaders, param_headers
from sidecar.model import (
    NOTHING,
    Definition,
    Entries,
    Era,
    Fields,
    JsonObject,
    Unavailable,
)
from sidecar.upstream import listing
from sidecar.upstream.complaints import Complaints
from sidecar.upstream.leg import SELF, Leg
from sidecar.upstream.listing import Difference, Failed, List

LIST_DEADLINE: Final = 120.0
"""Seconds that all pages of one list may take together."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a listing changed. ``failed`` says what could not be read, ``None`` if all was."""

    tools: Difference
    prompts: bool
    resources: bool
    failed: str | None


class Lister:
    """Keeps the last complete lists. One listing runs at a time: its owner sees to that."""

    def __init__(self, limits: Limits, complaints: Complaints, timeout: float) -> None:
        """``timeout`` is for one page, in seconds."""
        self.entries: Entries = NOTHING
        self.param_headers: Mapping[str, ParamHeaders] = {}
        self._bounds = listing.Bounds.of(limits)
        self._complaints = complaints
        self._timeout = timeout

    async def read(self, leg: Leg, which: Iterable[List]) -> Outcome:
        """Read these lists; those that cannot be read stay as they are."""
        hello = leg.hello
        offered = listing.declared(hello.capabilities)
        before = self.entries
        found: dict[str, tuple[Definition, ...]] = {}
        headers = self.param_headers
        failures: list[str] = []
        for kind in (kind for kind in listing.METHODS if kind in set(which)):
            if kind not in offered:
                found[kind] = ()
                continue
            mappings: dict[str, ParamHeaders] = {}
            try:
                found[kind] = await self._one(leg, kind, mappings)
            except Failed as error:
                failures.append(str(error))
            else:
                if kind == "tools":
                    headers = mappings
        after = replace(
            before,
            capabilities=hello.capabilities,
            instructions=hello.instructions,
            **found,
        )
        if after != before:
            # The same object until something changes: readers compare it by identity.
            self.entries = after
        self.param_headers = headers
        if failures:
            self._complaints.warn("lists", f"{'; '.join(failures)}; what was known stays listed")
        else:
            self._complaints.forgive("lists")
        return Outcome(
            tools=listing.difference(before.tools, after.tools),
            prompts=bool(listing.difference(before.prompts, after.prompts)),
            resources=bool(
                listing.difference(before.resources, after.resources)
                or listing.difference(before.templates, after.templates)
            ),
            failed="; ".join(failures) or None,
        )

    async def _one(
        self, leg: Leg, kind: List, mappings: dict[str, ParamHeaders]
    ) -> tuple[Definition, ...]:
        async def ask(method: str, params: JsonObject) -> Fields:
            try:
                async with asyncio.timeout(self._timeout):
                    return await leg.request(method, params, SELF)
            except TimeoutError:
                raise Unavailable("", f"no answer within {self._timeout:g} s", ran="maybe") from (
                    None
                )

        def refuse(tool: JsonObject) -> str | None:
            try:
                mapping = param_headers(tool.get("inputSchema"))
            except BadParamHeader as error:
                return str(error)
            if mapping:
                mappings[str(tool["name"])] = mapping
            return None

        # x-mcp-header means something over modern HTTP only (2026-07-28, transports).
        strict = kind == "tools" and leg.hello.era is Era.MODERN and leg.over_http
        try:
            async with asyncio.timeout(LIST_DEADLINE):
                return await listing.read(
                    kind,
                    ask,
                    self._bounds,
                    self._complaints,
                    refuse if strict else None,
                    era=leg.hello.era,
                )
        except TimeoutError:
            raise Failed(
                f"{listing.METHODS[kind]} failed: not all pages within {LIST_DEADLINE:g} s"
            ) from None
