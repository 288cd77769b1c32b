"""Harnesses as the catalog offers them: each caller sees the checkouts that it may use."""

from __future__ import annotations

import functools
from typing import Final, cast

from sidecar.catalog import Entry
from sidecar.catalog.names import matches
from sidecar.catalog.splice import replace
from sidecar.config import ServerConfig
from sidecar.model import Caller, JsonObject
from sidecar.wire import json

CHECKOUT: Final = "checkout"
"""The argument of a harness's tool whose values depend on who looks."""


def is_harness(config: ServerConfig) -> bool:
    """Whether what the catalog holds under this configuration is a coding agent."""
    return config.transport == "acp"


def shown(entry: Entry, data: bytes, caller: Caller) -> bytes | None:
    """A harness's definition for this caller; ``None`` where no checkout is left of it."""
    return _narrowed(data, caller.principal.checkouts)


@functools.lru_cache(maxsize=256)
def _narrowed(data: bytes, globs: tuple[str, ...]) -> bytes | None:
    definition = cast("JsonObject", json.decode(data, depth=256))
    schema = cast("JsonObject", definition.get("inputSchema"))
    properties = cast("JsonObject", schema.get("properties"))
    checkout = cast("JsonObject", properties.get(CHECKOUT))
    names = [name for name in cast("list[str]", checkout["enum"]) if matches(globs, name)]
    if not names:
        return None
    if len(names) == len(cast("list[str]", checkout["enum"])):
        return data
    narrowed = {**properties, CHECKOUT: {**checkout, "enum": names}}
    return replace(data, {"inputSchema": json.encode({**schema, "properties": narrowed})})
