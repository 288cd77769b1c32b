"""The content blocks of an editor's prompt, as the one text that a task is. Pure.

Source: ACP schema v1.21, `ContentBlock`.
"""

from __future__ import annotations

import os
from typing import Final, cast
from urllib.parse import unquote, urlsplit

from sidecar.mcp.errors import invalid_params
from sidecar.model import JsonObject

__all__ = ["task_of"]

MOST_BLOCKS: Final = 1000


def task_of(prompt: object, folder: str) -> str:
    """The task. What is said of files in ``folder``, the checkout's, is said of the same files
    in the worktree: their paths are relative.

    Raises:
        Rejection: -32602, it is no list of blocks that can be told as text.
    """
    if not isinstance(prompt, list) or not prompt or len(prompt) > MOST_BLOCKS:
        raise invalid_params(f"params.prompt is a list of 1 to {MOST_BLOCKS} content blocks")
    text = "".join(_block(block, folder) for block in cast("list[object]", prompt))
    if not text.strip():
        raise invalid_params("params.prompt says nothing")
    return text


def _block(value: object, folder: str) -> str:
    block = cast("JsonObject", value) if isinstance(value, dict) else {}
    match block.get("type"):
        case "text":
            return _text(block, "text")
        case "resource_link":
            return _link(_text(block, "uri"), folder)
        case "resource":
            given = block.get("resource")
            resource = cast("JsonObject", given) if isinstance(given, dict) else {}
            if not isinstance(resource.get("text"), str):
                raise invalid_params("a resource in a prompt is text here")
            uri = _place(_text(resource, "uri"), folder)
            return f"\n\n{uri}:\n{_fenced(_text(resource, 'text'))}\n\n"
    raise invalid_params(
        "a block of a prompt is text, a resource_link or a resource with text; images and sounds "
        "are not taken"
    )


def _text(block: JsonObject, key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise invalid_params(f"{key} of a content block is a string")
    return value


def _link(uri: str, folder: str) -> str:
    return f"`{_place(uri, folder)}`"


def _place(uri: str, folder: str) -> str:
    """A file below ``folder`` by its path there; anything else as it is."""
    try:
        parts = urlsplit(uri)
        path = os.path.normpath(unquote(parts.path)) if parts.scheme == "file" else ""
    except ValueError:
        return uri
    if parts.netloc not in ("", "localhost") or not path.startswith(folder.rstrip("/") + "/"):
        return uri
    where = path[len(folder.rstrip("/")) + 1 :]
    # Editors say which lines are meant by a fragment.
    return f"{where}#{parts.fragment}" if parts.fragment else where


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
