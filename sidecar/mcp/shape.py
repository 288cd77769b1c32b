"""One era's results, errors and notifications in the shape of the other.

What is not named here passes as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from sidecar.mcp.errors import RESOURCE_NOT_FOUND, Rejection
from sidecar.mcp.meta import MCP_META, SERVER_INFO, SUBSCRIPTION_ID
from sidecar.mcp.methods import CACHEABLE
from sidecar.model import Era, Fields, JsonObject, RequestId, RpcError
from sidecar.wire.json import BadJson, decode
from sidecar.wire.json import fields as fields_of
from sidecar.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS

COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"

_RESOURCE_METHODS: Final = frozenset(
    {"resources/read", "resources/subscribe", "resources/unsubscribe"}
)
_LEGACY_ONLY: Final = frozenset(
    {"notifications/elicitation/complete", "notifications/tasks/status"}
)
_MODERN_ONLY: Final = frozenset({"notifications/subscriptions/acknowledged", "notifications/tasks"})


def result_type(fields: Fields) -> str:
    """``resultType`` of a result; absent means ``complete`` (2026-07-28, basic)."""
    found = plain(fields.get("resultType"))
    return found if isinstance(found, str) else COMPLETE


def result_for(
    era: Era,
    method: str,
    fields: Fields,
    server_info: Mapping[str, object],
    *,
    ttl_ms: int = 0,
) -> Fields:
    """A result as a client of ``era`` expects it. ``fields`` is not changed.

    Modern: ``resultType`` where it is absent; ``_meta`` names this server, as whom we answer;
    complete results of cacheable methods carry ``ttlMs`` (the server's own, else ``ttl_ms``)
    and ``cacheScope`` ``private``, whatever the server said: what one principal may see is not
    what another may.
    Legacy: without these keys, and without ``io.modelcontextprotocol/*`` in ``_meta``.

    Raises:
        Rejection: -32603; a result that is not complete has no legacy form.
    """
    kind = result_type(fields)
    if era is Era.LEGACY:
        if kind != COMPLETE:
            raise Rejection(
                INTERNAL_ERROR,
                f"the server answered {kind[:32]!r}, which no client of this revision knows",
            )
        return _for_legacy(method, fields)
    shaped = dict(fields)
    shaped.setdefault("resultType", kind)
    if kind == COMPLETE and method in CACHEABLE:
        if not _is_ttl(plain(shaped.get("ttlMs"))):
            shaped["ttlMs"] = ttl_ms
        shaped["cacheScope"] = "private"
    meta = _meta_of(fields)
    shaped["_meta"] = {**(meta or {}), SERVER_INFO: server_info}
    return shaped


def _for_legacy(method: str, fields: Fields) -> Fields:
    dropped = {"resultType"}
    if method in CACHEABLE:
        dropped |= {"ttlMs", "cacheScope"}
    shaped = {key: value for key, value in fields.items() if key not in dropped}
    meta = _meta_of(fields)
    if meta and any(key.startswith(MCP_META) for key in meta):
        rest = _without_protocol_keys(meta)
        if rest:
            shaped["_meta"] = rest
        else:
            del shaped["_meta"]
    return shaped


def error_for(era: Era, error: RpcError, method: str = "", uri: str | None = None) -> RpcError:
    """An error as a client of ``era`` expects it; only "resource not found" differs.

    Legacy servers say -32002, modern ones -32602 with ``data.uri``. ``method`` is what was
    asked: elsewhere these codes mean something else and stay. ``uri``, if given, is told in
    ``data`` where a modern error about a resource does not tell it. Our own refusals keep their
    code in either era.
    """
    if method not in _RESOURCE_METHODS:
        return error
    data = plain(error.data)
    if era is Era.LEGACY:
        if (
            error.code == INVALID_PARAMS
            and not isinstance(error, Rejection)
            and isinstance(data, dict)
            and "uri" in data
        ):
            return RpcError(RESOURCE_NOT_FOUND, error.message, error.data)
        return error
    if error.code == RESOURCE_NOT_FOUND:
        told = error.data if data is not None or uri is None else {"uri": uri}
        return RpcError(INVALID_PARAMS, error.message, told)
    if isinstance(error, Rejection) and isinstance(data, dict) and uri is not None:
        found = cast("JsonObject", data)
        if found.get("reason") == "unknown_resource" and "uri" not in found:
            return Rejection(error.code, error.message, {**found, "uri": uri}, id=error.id)
    return error


def notification_for(
    era: Era,
    method: str,
    params: JsonObject,
    *,
    subscription: RequestId | None = None,
) -> JsonObject | None:
    """A notification's params as a client of ``era`` expects them; ``None``: it has no such one.

    ``subscription`` is the id of the ``subscriptions/listen`` on whose stream it goes (modern).
    """
    if method in (_MODERN_ONLY if era is Era.LEGACY else _LEGACY_ONLY):
        return None
    meta = _meta_of(params)
    if era is Era.LEGACY:
        kept = _without_protocol_keys(meta) if meta else {}
    else:
        # A subscription id is the one of our own request to the server.
        kept = {key: value for key, value in (meta or {}).items() if key != SUBSCRIPTION_ID}
        if subscription is not None:
            kept[SUBSCRIPTION_ID] = subscription
    if subscription is None and len(kept) == len(meta or {}):
        return params
    shaped = {key: value for key, value in params.items() if key != "_meta"}
    if kept:
        shaped["_meta"] = kept
    return shaped


def plain(value: object) -> object:
    """A value of ``Fields`` as plain JSON, whichever form it has; ``None`` if it is not JSON."""
    if isinstance(value, msgspec.Raw):
        try:
            return decode(value)
        except BadJson:
            return None
    return value


def _meta_of(fields: Fields) -> JsonObject | None:
    """``_meta`` by its keys; its values stay as they came."""
    found = fields.get("_meta")
    if isinstance(found, msgspec.Raw):
        try:
            return fields_of(found)
        except BadJson:
            return None
    return cast("JsonObject", found) if isinstance(found, dict) else None


def _without_protocol_keys(meta: JsonObject) -> JsonObject:
    return {key: value for key, value in meta.items() if not key.startswith(MCP_META)}


def _is_ttl(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
