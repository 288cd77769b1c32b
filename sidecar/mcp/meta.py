"""``_meta``: what it carries for us, how it is taken out of a request and written into one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from sidecar.mcp.errors import invalid_params
from sidecar.mcp.methods import LOG_LEVELS
from sidecar.mcp.versions import MODERN_VERSION
from sidecar.model import (
    NO_TRACE,
    SIDECAR_META,
    Client,
    JsonObject,
    RequestId,
    TraceContext,
)

MCP_META: Final = "io.modelcontextprotocol/"
"""The prefix of every key that the specification keeps for itself."""

PROTOCOL_VERSION: Final = MCP_META + "protocolVersion"
CLIENT_CAPABILITIES: Final = MCP_META + "clientCapabilities"
CLIENT_INFO: Final = MCP_META + "clientInfo"
LOG_LEVEL: Final = MCP_META + "logLevel"
SERVER_INFO: Final = MCP_META + "serverInfo"
SUBSCRIPTION_ID: Final = MCP_META + "subscriptionId"
PROGRESS_TOKEN: Final = "progressToken"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

# Version 00 ends with the flags; later ones may go on after a dash; ff is not a version.
_NOBODY = Client()
_IDS = r"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(rf"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(?:-[\x21-\x7e]*)?")
_TRACE_TEXT = re.compile(r"[\x20-\x7e]*")
# W3C trace context asks for at least 512 of tracestate, W3C baggage for at least 8192.
_LONGEST_TRACE_TEXT = 8192


@dataclass(slots=True)
class Envelope:
    """What a request's ``_meta`` said about the request itself.

    ``protocol_version`` and ``capabilities`` are ``None`` when the key was absent; ``client``
    is empty then. ``progress`` is the caller's token, ``None`` when it wants no progress.
    ``request`` is the request's id, and ``link`` what ``ambient`` says.
    """

    protocol_version: str | None = None
    capabilities: JsonObject | None = None
    client: Client = _NOBODY
    log_level: str | None = None
    progress: RequestId | None = None
    trace: TraceContext = NO_TRACE
    link: TraceContext = NO_TRACE
    request: RequestId | None = None

    def ambient(self, http: TraceContext) -> None:
        """Take in the trace context of the HTTP request that carried the message.

        It is the parent where the message has none; else it is a span to link to (semantic
        conventions for MCP, context propagation).
        """
        if http is NO_TRACE:
            return
        if not self.trace.traceparent:
            self.trace = TraceContext(
                http.traceparent, http.tracestate, self.trace.baggage or http.baggage
            )
        elif http.traceparent[3:52] != self.trace.traceparent[3:52]:
            self.link = http


def take(params: JsonObject, *, strict: bool = True) -> Envelope:
    """Take out of ``params["_meta"]`` what is not for the server, and return it.

    Taken: the progress token, the trace keys, every ``io.modelcontextprotocol/*`` key and every
    ``sidecar/*`` key (nobody but us may write those; they are dropped). What is left, vendors'
    keys, stays in ``params`` untouched; an empty ``_meta`` goes.

    A trace context that is not W3C's is dropped, as its specification asks: the trace starts
    anew. With ``strict`` (the modern era) an envelope key of the wrong shape is an error;
    without, it is dropped, since legacy requests have no such keys.

    Raises:
        Rejection: -32602; ``_meta`` is not an object, the progress token is neither a string
            nor an integer, or (strict) an envelope key has the wrong shape.
    """
    found = params.get("_meta")
    if found is None:
        params.pop("_meta", None)
        return Envelope()
    if not isinstance(found, dict):
        raise invalid_params("params._meta is an object")
    meta = cast("JsonObject", found)
    envelope = Envelope()
    if PROGRESS_TOKEN in meta:
        envelope.progress = _progress(meta.pop(PROGRESS_TOKEN))
    if PROTOCOL_VERSION in meta:
        version = meta.pop(PROTOCOL_VERSION)
        if isinstance(version, str):
            envelope.protocol_version = version
        elif strict:
            raise invalid_params(f"params._meta[{PROTOCOL_VERSION!r}] is a string")
    if CLIENT_CAPABILITIES in meta:
        capabilities = meta.pop(CLIENT_CAPABILITIES)
        if isinstance(capabilities, dict):
            envelope.capabilities = cast("JsonObject", capabilities)
        elif strict:
            raise invalid_params(f"params._meta[{CLIENT_CAPABILITIES!r}] is an object")
    if CLIENT_INFO in meta:
        # Display only, and only SHOULD be sent: never a reason to refuse.
        envelope.client = client_of(meta.pop(CLIENT_INFO))
    if LOG_LEVEL in meta:
        level = meta.pop(LOG_LEVEL)
        if isinstance(level, str) and level in LOG_LEVELS:
            envelope.log_level = level
        elif strict:
            raise invalid_params(f"params._meta[{LOG_LEVEL!r}] is one of {', '.join(LOG_LEVELS)}")
    parent, state = meta.pop(TRACEPARENT, None), meta.pop(TRACESTATE, None)
    baggage = meta.pop(BAGGAGE, None)
    if parent is not None or baggage is not None:
        envelope.trace = trace(parent, state, baggage)
    if meta:
        for key in [key for key in meta if key.startswith((MCP_META, SIDECAR_META))]:
            del meta[key]
    if not meta:
        del params["_meta"]
    return envelope


def envelope(
    *,
    client: Client,
    capabilities: Mapping[str, object],
    log_level: str | None = None,
    version: str = MODERN_VERSION,
) -> JsonObject:
    """The ``_meta`` keys that open every modern request (2026-07-28, basic)."""
    keys: JsonObject = {
        PROTOCOL_VERSION: version,
        CLIENT_CAPABILITIES: dict(capabilities),
        CLIENT_INFO: {"name": client.name, "version": client.version},
    }
    if log_level is not None:
        keys[LOG_LEVEL] = log_level
    return keys


def put(
    params: JsonObject,
    *,
    envelope: Mapping[str, object] | None = None,
    progress: RequestId | None = None,
    trace: TraceContext = NO_TRACE,
) -> JsonObject:
    """A copy of ``params`` whose ``_meta`` carries these on top of what it has.

    Without anything to add it is ``params`` itself.
    """
    ours: JsonObject = dict(envelope) if envelope is not None else {}
    if progress is not None:
        ours[PROGRESS_TOKEN] = progress
    if trace.traceparent:
        ours[TRACEPARENT] = trace.traceparent
        if trace.tracestate:
            ours[TRACESTATE] = trace.tracestate
    if trace.baggage:
        ours[BAGGAGE] = trace.baggage
    if not ours:
        return params
    theirs = params.get("_meta")
    if isinstance(theirs, dict):
        ours = {**cast("JsonObject", theirs), **ours}
    return {**params, "_meta": ours}


def client_of(value: object) -> Client:
    """``clientInfo`` as a ``Client``; what is not text is left out, what is long is cut."""
    if not isinstance(value, dict):
        return Client()
    info = cast("JsonObject", value)
    name, version = info.get("name"), info.get("version")
    return Client(
        name[:128] if isinstance(name, str) else "",
        version[:64] if isinstance(version, str) else "",
    )


def _progress(value: object) -> RequestId | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise invalid_params("params._meta.progressToken is a string or an integer")


def trace(traceparent: object, tracestate: object, baggage: object) -> TraceContext:
    """A trace context of what somebody sent; what is not W3C's is left out."""
    parent = traceparent if isinstance(traceparent, str) else ""
    if len(parent) > _LONGEST_TRACE_TEXT or not _TRACEPARENT.fullmatch(parent):
        parent = ""
    # tracestate without a valid traceparent means nothing (W3C trace context §4.3).
    return TraceContext(parent, _text(tracestate) if parent else "", _text(baggage))


def _text(value: object) -> str:
    if (
        isinstance(value, str)
        and len(value) <= _LONGEST_TRACE_TEXT
        and _TRACE_TEXT.fullmatch(value)
    ):
        return value
    return ""
