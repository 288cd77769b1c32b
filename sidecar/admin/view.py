"""What the admin API shows, as plain functions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sidecar.model import JsonObject, ServerStatus, Tool


def present(**values: Any) -> JsonObject:  # noqa: ANN401  JSON values of every kind
    """An object without the keys whose value is ``None``: absent means absent."""
    return {key: value for key, value in values.items() if value is not None}


def server(status: ServerStatus) -> JsonObject:
    """Design's shape: ``{name, source, transport, state, era, tools, error, retry_in}``."""
    return present(**asdict(status))


def tool(entry: Tool) -> JsonObject:
    """``{name, server, upstream_name, annotations, hints, gated, trusted, digest}``."""
    return {
        "name": entry.name,
        "server": entry.server,
        "upstream_name": entry.upstream_name,
        "annotations": dict(entry.annotations),
        "hints": asdict(entry.hints),
        "gated": entry.gated,
        "trusted": entry.trusted,
        "digest": entry.digest,
    }
