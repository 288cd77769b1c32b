"""What a listener asked to be told (``subscriptions/listen``), and the messages it is told in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from sidecar.downstream.feed import LIST_CHANGES, RESOURCE_UPDATED, Notification
from sidecar.mcp import errors, shape
from sidecar.mcp.meta import SUBSCRIPTION_ID
from sidecar.model import Era, JsonObject, RequestId
from sidecar.wire import jsonrpc

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
MOST_URIS = 1024
"""Resources that one stream may watch."""

_KINDS = {f"{kind}ListChanged": method for method, kind in LIST_CHANGES.items()}


@dataclass(frozen=True, slots=True)
class Filter:
    """What a listener asked to be told: notification methods, and resources by URI."""

    kinds: dict[str, str]
    uris: tuple[str, ...]

    @classmethod
    def of(cls, params: JsonObject) -> Filter:
        """Read the params of ``subscriptions/listen``; what is not known is not honoured.

        Raises:
            Rejection: -32602, a known key of the wrong shape.
        """
        wanted = params.get("notifications", {})
        if not isinstance(wanted, dict):
            raise errors.invalid_params("params.notifications is an object")
        notifications = cast("JsonObject", wanted)
        kinds: dict[str, str] = {}
        for key, method in _KINDS.items():
            value = notifications.get(key)
            if value is not None and not isinstance(value, bool):
                raise errors.invalid_params(f"params.notifications.{key} is a boolean")
            if value:
                kinds[key] = method
        uris = notifications.get("resourceSubscriptions") or []
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
            raise errors.invalid_params("params.notifications.resourceSubscriptions is URIs")
        if len(uris) > MOST_URIS:
            raise errors.invalid_params(f"at most {MOST_URIS} resources can be watched")
        return cls(kinds, tuple(dict.fromkeys(cast("list[str]", uris))))

    def honoured(self, uris: list[str]) -> JsonObject:
        """What the acknowledgement names."""
        found: JsonObject = dict.fromkeys(self.kinds, True)
        if uris:
            found["resourceSubscriptions"] = uris
        return found

    def passes(self, method: str, params: JsonObject, uris: frozenset[str]) -> bool:
        if method == RESOURCE_UPDATED:
            return params.get("uri") in uris
        return method in self.kinds.values()


def acknowledgement(id_: RequestId, honoured: JsonObject) -> bytes:
    """The first message of a listen stream."""
    return jsonrpc.notification(
        ACKNOWLEDGED, {"_meta": {SUBSCRIPTION_ID: id_}, "notifications": honoured}
    )


def render(
    notification: Notification, era: Era, subscription: RequestId | None = None
) -> bytes | None:
    """A notification as a message to this client; ``None``: its era has no such one.

    ``subscription`` is the id of the listen on whose stream it goes.
    """
    method, params = notification
    shaped = shape.notification_for(era, method, params, subscription=subscription)
    return None if shaped is None else jsonrpc.notification(method, shaped or None)


def listened(id_: RequestId, server_info: Mapping[str, object]) -> bytes:
    """The result that ends a listen."""
    fields = shape.result_for(Era.MODERN, LISTEN, {"_meta": {SUBSCRIPTION_ID: id_}}, server_info)
    return jsonrpc.result(id_, fields)
