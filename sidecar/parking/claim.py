"""What an approval is for: who calls, what, as it is defined, with which arguments. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from sidecar.model import Call, Caller, JsonObject, Kind
from sidecar.wire import json

HIDDEN: Final = "[hidden]"
"""What stands in place of an argument that ``parking.redact`` hides."""

_CALLED: Final = (Kind.MCP, Kind.ACP, Kind.PROMPT)


@dataclass(frozen=True, slots=True)
class Claim:
    """``digest`` names all of it; ``arguments`` is the digest of what is sent, but ``_meta``.

    The order of keys makes no difference, and nothing else is the same: ``1`` is not ``1.0``,
    and no argument is not an empty one.
    """

    digest: str
    definition: str
    arguments: str


def claim(call: Call, caller: Caller) -> Claim:
    """The claim of a call as it is now."""
    sent = {key: value for key, value in call.params.items() if key != "_meta"}
    definition = call.tool.digest if call.tool is not None else ""
    arguments = json.digest(sent)
    parts = [
        caller.principal.name,
        str(call.kind),
        call.method,
        call.server,
        call.target,
        definition,
        arguments,
        # Each question of a coding agent is one of its own, however alike they are.
        call.id if call.kind is Kind.PERMISSION else "",
    ]
    return Claim(json.digest(parts), definition, arguments)


def shown(call: Call) -> JsonObject:
    """The arguments as people think of them: a tool's own, or all of the params."""
    if call.kind in _CALLED:
        arguments = call.params.get("arguments")
        return cast("JsonObject", arguments) if isinstance(arguments, dict) else {}
    return {key: value for key, value in call.params.items() if key != "_meta"}


def hide(args: JsonObject, globs: Sequence[str]) -> tuple[JsonObject, tuple[str, ...]]:
    """The arguments without what matches, and the JSON pointers (RFC 6901) of what that was.

    A glob is compared with a key's name, and with its dotted path from the top, whatever their
    case; an index of a list counts as a name in the path.
    """
    if not globs:
        return args, ()
    hidden: list[str] = []
    # Not the catalog's matcher: it remembers names, and these come from a caller.
    pattern = re.compile("|".join(map(fnmatch.translate, globs)), re.IGNORECASE)
    return cast("JsonObject", _hide(args, pattern, (), hidden)), tuple(hidden)


def _hide(
    value: object, pattern: re.Pattern[str], path: tuple[str, ...], hidden: list[str]
) -> object:
    if isinstance(value, dict):
        return {
            key: _one(item, pattern, (*path, key), key, hidden)
            for key, item in cast("JsonObject", value).items()
        }
    if isinstance(value, list):
        return [
            _one(item, pattern, (*path, str(i)), None, hidden)
            for i, item in enumerate(cast("list[object]", value))
        ]
    return value


def _one(
    value: object,
    pattern: re.Pattern[str],
    path: tuple[str, ...],
    name: str | None,
    hidden: list[str],
) -> object:
    if (name is not None and pattern.match(name)) or pattern.match(".".join(path)):
        hidden.append(pointer(path))
        return HIDDEN
    return _hide(value, pattern, path, hidden)


def pointer(path: Sequence[str]) -> str:
    """RFC 6901."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
