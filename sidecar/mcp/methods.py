"""Which methods exist in which era, and what the protocol says of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sidecar.model import Era

_BOTH: Final = frozenset(
    {
        "tools/list",
        "tools/call",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "completion/complete",
    }
)

LEGACY_REQUESTS: Final = _BOTH | {
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
}
"""Requests from a client, legacy era. Tasks are experimental there and not offered by us."""

MODERN_REQUESTS: Final = _BOTH | {"server/discover", "subscriptions/listen"}
"""Requests from a client, modern era."""

NAME_PARAM: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
        "tasks/get": "taskId",
        "tasks/update": "taskId",
        "tasks/cancel": "taskId",
    }
)
"""Method → the key of ``params`` whose value the ``Mcp-Name`` header carries."""

LISTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tools/list": "tools",
        "prompts/list": "prompts",
        "resources/list": "resources",
        "resources/templates/list": "resourceTemplates",
    }
)
"""Method → the key of the result that holds the list."""

CACHEABLE: Final = frozenset({*LISTS, "server/discover", "resources/read"})
"""Methods whose complete results carry ``ttlMs`` and ``cacheScope`` in the modern era."""

LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""Severities of RFC 5424 as MCP names them, lowest first."""

_SEVERITY: Final = {level: rank for rank, level in enumerate(LOG_LEVELS)}


def exists(era: Era, method: str) -> bool:
    """Whether a client may send this request in this era (else -32601)."""
    return method in (LEGACY_REQUESTS if era is Era.LEGACY else MODERN_REQUESTS)


def severe_enough(level: object, wanted: str | None) -> bool:
    """Whether a log message of ``level`` passes for someone who wants ``wanted`` and above.

    Nothing passes where no level is wanted. A level that MCP does not know passes wherever any
    is wanted: losing a message would be worse than showing one too many.
    """
    if wanted is None:
        return False
    if not isinstance(level, str):
        return True
    return _SEVERITY.get(level, len(LOG_LEVELS)) >= _SEVERITY.get(wanted, 0)


def lowest_level(*levels: str | None) -> str | None:
    """The lowest of the levels that several callers want, ``None`` if nobody wants any."""
    known = [_SEVERITY[level] for level in levels if level in _SEVERITY]
    return LOG_LEVELS[min(known)] if known else None
