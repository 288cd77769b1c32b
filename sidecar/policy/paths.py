"""Paths into a result: ``structuredContent.token``, ``content[*].text``, ``$["a key"]``."""

from __future__ import annotations

import json
import re
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str | int | None, ...]
"""Steps: a key, an index (negative from the end), or ``None`` for every one."""

LONGEST: Final = 1000
_STEP: Final = re.compile(
    r"""\.?\*|\.?(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|\[(?P<index>-?[0-9]{1,6})\]|\[\*\]"""
    r"""|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]"""
)


def parse_path(text: str) -> Path:
    """A JSON path of names, indexes and ``*``; a leading ``$`` is the result itself.

    Raises:
        ValueError: what it should look like.
    """
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    at = 1 if text.startswith("$") else 0
    steps: list[str | int | None] = []
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or (not steps and at == 0 and text[0] == "."):
            raise ValueError(
                "is not a path; write it like structuredContent.token, content[*].text "
                'or structuredContent["a key"]'
            )
        if found["name"] is not None:
            steps.append(found["name"])
        elif found["index"] is not None:
            steps.append(int(found["index"]))
        elif found["quoted"] is not None:
            steps.append(_text(found["quoted"]))
        else:
            steps.append(None)
        if found["name"] is not None and steps[:-1] and not text[at:].startswith("."):
            raise ValueError("has two names without a dot between them")
        at = found.end()
    if not steps:
        raise ValueError("is the whole result; name a part of it")
    return tuple(steps)


def _text(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise ValueError("has a key in quotes that is no JSON string") from None
