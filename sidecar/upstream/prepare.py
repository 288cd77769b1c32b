"""What a leg writes into ``params`` before they are sent: token, trace, envelope."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import sidecar
from sidecar.mcp import meta
from sidecar.model import Caller, Client, JsonObject, TraceContext

ME: Final = Client("mcp-sidecar", sidecar.__version__)
"""Who we say we are. Display only."""

CAPABILITIES: Final[JsonObject] = {}
"""What legs declare: no sampling, no elicitation, no roots, since nobody could answer."""

ENVELOPE: Final = meta.envelope(client=ME, capabilities=CAPABILITIES)


def legacy(params: JsonObject, token: int, caller: Caller, *, baggage: bool) -> JsonObject:
    """For a server with sessions: ``params`` itself when there is nothing to add."""
    return meta.put(
        params,
        progress=token if caller.progress is not None else None,
        trace=_trace(caller, baggage=baggage),
    )


def modern(
    params: JsonObject, token: int, caller: Caller, log_level: str | None, *, baggage: bool
) -> JsonObject:
    """For a stateless server: the envelope on top."""
    return meta.put(
        params,
        envelope=ENVELOPE if log_level is None else {**ENVELOPE, meta.LOG_LEVEL: log_level},
        progress=token if caller.progress is not None else None,
        trace=_trace(caller, baggage=baggage),
    )


def _trace(caller: Caller, *, baggage: bool) -> TraceContext:
    trace = caller.trace
    return replace(trace, baggage="") if trace.baggage and not baggage else trace
