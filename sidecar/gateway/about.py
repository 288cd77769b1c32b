"""What a connection is told of the servers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from sidecar.catalog import Shelf
from sidecar.model import JsonObject


def capabilities(shelves: Sequence[Shelf]) -> JsonObject:
    """Server capabilities for these servers together.

    Tools are always there: they come and go while a client is connected. The rest is there if
    a server has it, or if one of them has not told yet: a client that was told no never asks
    again. Only what is carried through here is claimed, so neither tasks nor extensions are.
    """
    unknown = any(not shelf.told for shelf in shelves)

    def somewhere(name: str) -> bool:
        return unknown or any(shelf.has(name) for shelf in shelves)

    told: JsonObject = {"tools": {"listChanged": True}}
    if somewhere("prompts"):
        told["prompts"] = {"listChanged": True}
    if somewhere("resources"):
        resources: JsonObject = {"listChanged": True}
        if unknown or any(_subscribable(shelf) for shelf in shelves):
            resources["subscribe"] = True
        told["resources"] = resources
    if somewhere("completions"):
        told["completions"] = {}
    if somewhere("logging"):
        told["logging"] = {}
    return told


def _subscribable(shelf: Shelf) -> bool:
    resources = shelf.entries.capabilities.get("resources")
    return isinstance(resources, dict) and (cast("JsonObject", resources).get("subscribe") is True)


def instructions(shelves: Sequence[Shelf], *, named: bool) -> str:
    """The servers' instructions, in order; ``named`` puts each under its server's name."""
    parts: list[str] = []
    for shelf in shelves:
        text = shelf.entries.instructions.strip()
        if text:
            parts.append(f"## {shelf.config.name}\n\n{text}" if named else text)
    return "\n\n".join(parts)
