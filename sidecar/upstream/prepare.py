"""What a leg writes into ``params`` before they are sent: token, trace, envelope."""

from __future__ import annotations

from typing import Final

import sidecar
from sidecar.mcp import meta
from sidecar.model import Caller, Client, JsonObject, TraceContext

ME: Final = Client("mcp-sidecar", sidecar.__version__)
"""Who we say we are. Display only."""

CAPABILITIES: Final[JsonObject] = {}
"""What legs declare: no sampling, no elicitation, no roots, since nobody could answer."""

_NO_HEADERS: Final[dict[str, str]] = {}

ENVELOPE: Final = meta.envelope(client=ME, capabilities=CAPABILITIES)


def legacy(params: JsonObject, token: int, caller: Caller, *, trusted: bool) -> JsonObject:
    """For a server with sessions: ``params`` itself when there is nothing to add."""
    return meta.put(
        params,
        progress=token if caller.progress is not None else None,
        trace=_trace(caller, trusted=trusted),
    )


def modern(
    params: JsonObject, token: int, caller: Caller, log_level: str | None, *, trusted: bool
) -> JsonObject:
    """For a stateless server: the envelope on top."""
    return meta.put(
        params,
        envelope=ENVELOPE if log_level is None else {**ENVELOPE, meta.LOG_LEVEL: log_level},
        progress=token if caller.progress is not None else None,
        trace=_trace(caller, trusted=trusted),
    )


def trace_headers(caller: Caller, *, trusted: bool) -> dict[str, str]:
    """The same trace as ``_meta`` has, for what looks at HTTP alone (W3C trace context)."""
    trace = caller.trace
    if not trace.traceparent and not trace.baggage:
        return _NO_HEADERS
    trace = _trace(caller, trusted=trusted)
    found = {
        meta.TRACEPARENT: trace.traceparent,
        meta.TRACESTATE: trace.tracestate,
        meta.BAGGAGE: trace.baggage,
    }
    return {name: value for name, value in found.items() if value}


def _trace(caller: Caller, *, trusted: bool) -> TraceContext:
    """A server that is not trusted learns which trace it is part of, and nothing that others
    along the way wrote down about it."""
    trace = caller.trace
    if trusted or not (trace.baggage or trace.tracestate):
        return trace
    return TraceContext(trace.traceparent)
