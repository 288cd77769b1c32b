"""The parts of an input that depend on a tool alone, and policies specialised on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from sidecar.model import JsonObject, Kind, Tool
from sidecar.policy.guard import Guarded

MOST_TOOLS: Final = 4096
"""Tools whose policy is kept; beyond, it is made anew."""


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


class PerTool:
    """A policy specialised for each tool when it is first asked about it.

    Belongs to one revision: make a new one on reload. A changed tool is another object, and
    gets a policy of its own.
    """

    def __init__(self, policy: Guarded) -> None:
        self.policy: Final = policy
        self._kept: dict[str, tuple[Tool, Guarded]] = {}

    def of(self, tool: Tool, about: Callable[[], Mapping[str, object]]) -> Guarded:
        """The policy for a tool; ``about`` makes what is known of it (:func:`known`)."""
        kept = self._kept.get(tool.name)
        if kept is not None and kept[0] is tool:
            return kept[1]
        special = self.policy.specialise(about())
        if len(self._kept) >= MOST_TOOLS:
            self._kept.clear()
        self._kept[tool.name] = (tool, special)
        return special
