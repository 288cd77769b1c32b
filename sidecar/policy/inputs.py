"""The parts of an input that depend on a tool alone, for policies that are specialised on them."""

from __future__ import annotations

from dataclasses import asdict

from sidecar.model import JsonObject, Kind, Tool


def tool_input(tool: Tool, kind: Kind = Kind.MCP) -> JsonObject:
    """The variable ``tool`` of a tool of the catalog, without ``changed``.

    Whether the definition is other than the pinned one is known at the call:
    ``{**tool_input(tool), "changed": …}``.
    """
    given: JsonObject = {
        "name": tool.name,
        "server": tool.server,
        "upstream_name": tool.upstream_name,
        "kind": kind.value,
        "annotations": dict(tool.annotations),
        "hints": asdict(tool.hints),
        "gated": tool.gated,
        "gate_set": tool.gate_set,
        "digest": tool.digest,
    }
    title = tool.annotations.get("title")
    return given if not isinstance(title, str) else {**given, "title": title}


def known(tool: JsonObject, server: JsonObject) -> dict[str, object]:
    """What to specialise a policy on: fields that stay as they are for as long as the tool does.

    Dotted paths, so that what is not given here (``tool.changed``) stays open.
    """
    found: dict[str, object] = {f"tool.{name}": value for name, value in tool.items()}
    found.update({f"server.{name}": value for name, value in server.items()})
    return found
