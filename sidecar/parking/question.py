"""What whoever runs the calling client is asked, and what they say to it. Pure.

All of it but our own words was written by strangers, and nobody knows how a client draws it: as
plain text, as Markdown, in a terminal. So everything is JSON in lines that are indented, which
Markdown takes for code; nothing in it ends a line, and what cannot be seen stands as its escape.
"""

from __future__ import annotations

import json as text_json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from sidecar.mcp import rounds
from sidecar.model import SIDECAR_META, Era, JsonObject
from sidecar.parking.claim import pointer
from sidecar.parking.record import Parked
from sidecar.wire import json
from sidecar.wire.visible import visible

KEY: Final = "approval"
"""Under which the question is asked, where a request may be answered with several."""
STATE: Final = SIDECAR_META + "approval:"

MOST_TEXT: Final = 300
"""Characters of one text of others; of longer ones both ends are shown."""
MOST_VALUES: Final = 100
"""Values of arguments; of more the first are shown."""
MOST_NESTED: Final = 16
_DEPTH: Final = 512
_INDENT: Final = "    "


@dataclass(frozen=True, slots=True)
class Said:
    """``approve`` is ``None`` where they did not say."""

    approve: bool | None
    why: str = ""


def state(parked: Parked) -> str:
    """What comes back with the answer to the question about this call."""
    return STATE + parked.id


def asked_about(state: str) -> str:
    """The id of the call that it was given for; empty for anything else."""
    return state.removeprefix(STATE) if state.startswith(STATE) else ""


def params(parked: Parked, folded: Sequence[str], era: Era) -> JsonObject:
    """The params of ``elicitation/create``. ``parked`` has its arguments; ``folded`` are JSON
    pointers of those that are not to be shown unasked."""
    decision: JsonObject = {
        "type": "string",
        "title": "Decision",
        "description": "approve: it runs, once. deny: it does not.",
        "enum": ["approve", "deny"],
    }
    reason: JsonObject = {
        "type": "string",
        "title": "Reason",
        "description": "The agent is told, and it is kept.",
        "maxLength": 2000,
    }
    properties: JsonObject = {"decision": decision, "reason": reason}
    return rounds.form(era, message(parked, folded), properties, ["decision"])


def said(response: object) -> Said:
    """What an answer to the question says. Whatever is not clear says nothing."""
    answer = rounds.elicited(response)
    if answer is None:
        return Said(None)
    action, content = answer
    reason = content.get("reason")
    why = reason.strip() if isinstance(reason, str) else ""
    if action == "decline":
        return Said(False)
    match content.get("decision") if action == "accept" else None:
        case "approve":
            return Said(True, why)
        case "deny":
            return Said(False, why)
    return Said(None)


def message(parked: Parked, folded: Sequence[str]) -> str:
    """The words of the question."""
    server = f"{quoted(parked.server)}{'' if parked.trusted else ', which is not trusted'}"
    rows = [
        ("tool", quoted(parked.tool)),
        ("server", server),
        ("asks", quoted(parked.principal)),
        ("rules", quoted(", ".join(parked.rules))),
    ]
    because = [text for _, text in parked.reasons] or [parked.message]
    rows += [("because", quoted(text)) for text in because if text]
    lines = [f"{_INDENT}{name + ':':10}{value}" for name, value in rows]
    args, less = _arguments(parked, folded)
    all_of_it = f" (not all is shown; sidecar calls show {parked.id})" if less else ""
    lines.append(f"{_INDENT}arguments:{all_of_it}")
    lines += [_INDENT + line for line in args]
    return "\n".join(
        [
            "This call waits for a person's approval. Nothing of it has run.",
            "",
            *lines,
            "",
            f"Id {parked.id}. People with access to the sidecar may answer as well; "
            "the first answer counts.",
        ]
    )


def _arguments(parked: Parked, folded: Sequence[str]) -> tuple[list[str], bool]:
    """The lines, and whether something is left out."""
    shown = _Shown(folded)
    args = shown.of(json.decode(parked.args, depth=_DEPTH), ())
    lines = visible(text_json.dumps(args, indent=2, ensure_ascii=False), "\n").split("\n")
    return lines, shown.less


class _Shown:
    """What is shown of arguments: bounded, so that neither a person nor the loop is held up."""

    def __init__(self, folded: Sequence[str]) -> None:
        self._folded = frozenset(folded)
        self._left = MOST_VALUES
        self.less = False

    def of(self, value: object, path: tuple[str, ...]) -> object:
        if path and pointer(path) in self._folded:
            return "(folded: its tool calls it secret)"
        if isinstance(value, str):
            self.less = self.less or len(value) > MOST_TEXT
            return _short(value)
        if not isinstance(value, dict | list) or not value:
            return value
        if len(path) >= MOST_NESTED:
            self.less = True
            return "(nested deeper)"
        if isinstance(value, dict):
            return self._object(cast("JsonObject", value), path)
        return self._list(cast("list[object]", value), path)

    def _object(self, value: JsonObject, path: tuple[str, ...]) -> JsonObject:
        found: JsonObject = {}
        for key, item in value.items():
            if self._left <= 0:
                found["…"] = self._rest(len(value) - len(found))
                break
            self._left -= 1
            name = _short(key)
            # Two long names with the same ends are two.
            while name in found:
                name += "'"
            found[name] = self.of(item, (*path, key))
        return found

    def _list(self, value: list[object], path: tuple[str, ...]) -> list[object]:
        found: list[object] = []
        for i, item in enumerate(value):
            if self._left <= 0:
                found.append(self._rest(len(value) - i))
                break
            self._left -= 1
            found.append(self.of(item, (*path, str(i))))
        return found

    def _rest(self, count: int) -> str:
        self.less = True
        return f"({count} more are not shown)"


def _short(text: str) -> str:
    cut = len(text) - MOST_TEXT
    if cut <= 0:
        return text
    half = MOST_TEXT // 2
    return f"{text[:half]} … ({cut} characters are not shown) … {text[-half:]}"


def quoted(text: str) -> str:
    """A text of others within a line: a JSON string, bounded, with nothing unseen in it."""
    return visible(text_json.dumps(_short(text), ensure_ascii=False))
